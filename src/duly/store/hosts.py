"""The servers that a database URL names, and which of them answered last. Runs no statement.

The driver tries the hosts of a URL within one timeout, so a first host that accepts connections and
never answers (a stopped machine, a cut network) hides the others for ever. Here each has its own.

| event | what happens |
|---|---|
| a host refuses, hangs, or is a standby | the next is tried; all failed: the last fault is raised |
| another host than before answers | it is tried first from then on, and `changes` rises |
"""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from duly.store.connection_pool import CONNECTION_FAULTS

CONNECT_TIMEOUT_S = 10.0
# Of each, where there are several.
HOST_TIMEOUT_S = 2.0


class Hosts:
    def __init__(self, url: str) -> None:
        self.urls = urls_by_host(url)
        self.chosen = 0
        # How often another one was chosen.
        self.changes = 0
        self.timeout_s = HOST_TIMEOUT_S if self.are_many else CONNECT_TIMEOUT_S

    @property
    def are_many(self) -> bool:
        return len(self.urls) > 1

    def address(self) -> str:
        """Of the chosen one, without secrets."""
        return self.urls[self.chosen].rpartition("@")[2].partition("?")[0]

    async def connect(self, **options: Any) -> asyncpg.Connection:
        fault: BaseException | None = None
        for step in range(len(self.urls)):
            index = (self.chosen + step) % len(self.urls)
            try:
                connection = await asyncpg.connect(
                    self.urls[index], timeout=self.timeout_s, **options
                )
            except CONNECTION_FAULTS as error:
                fault = error
                continue
            if index != self.chosen:
                self.chosen = index
                self.changes += 1
            return connection
        assert fault is not None, "a URL names one host at least"
        raise fault


def urls_by_host(url: str) -> list[str]:
    """One URL for each host before the path; hosts named in the query stay together."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # For the driver to complain about.
        return [url]
    login, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [url]
    return [urlunsplit(parts._replace(netloc=login + at + host)) for host in hosts.split(",")]
