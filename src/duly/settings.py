"""Every setting, in one place: its type, bounds, meaning and default.

Sources, later ones win: defaults, TOML file, DULY_* environment, command line flags. A secret may
also be given as a path, under its name with `_file` appended. What is wrong with a value is said in
one line with a suggestion; nothing here touches the database.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from duly.domain.errors import ConfigurationError
from duly.domain.fairness import AGING_S
from duly.domain.folders import default_config_file, default_data_folder
from duly.domain.lanes import LANE_DEPTH_MAX

ENVIRONMENT_PREFIX = "DULY_"
# Names that carry the prefix but are not settings of the server.
NOT_SETTINGS = frozenset(
    {"DULY_CONFIG", "DULY_URL", "DULY_API_KEY", "DULY_SOURCE_URL", "DULY_CRASH_AT"}
)
TEST_PREFIX = "DULY_TEST_"
SECRET_FILE_BYTES_MAX = 64 * 1024
SECRET = {"secret": True}
POSTGRES_CARRIER = "postgres"
RoleName = Literal["api", "scheduler", "executor", "maintenance"]
ROLES: tuple[RoleName, ...] = get_args(RoleName)
BandName = Literal["high", "normal", "low"]
BANDS: tuple[BandName, ...] = get_args(BandName)


def default_data_dir() -> str:
    return str(default_data_folder(os.environ))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    roles: Annotated[
        list[RoleName],
        Meta(description="Roles of this `duly serve` process.", min_length=1, max_length=16),
    ] = msgspec.field(default_factory=lambda: list(ROLES))
    host: Annotated[
        str, Meta(description="Address the API listens on.", min_length=1, max_length=255)
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(description="Port of the API; 0 chooses a free one.", ge=0, le=65535)
    ] = 3859
    http_connections_max: Annotated[
        int, Meta(description="HTTP connections of one process at once.", ge=1, le=100_000)
    ] = 1000
    http_connections_per_address_max: Annotated[
        int,
        Meta(
            description="HTTP connections of one address; 0: four fifths of them all.",
            ge=0,
            le=100_000,
        ),
    ] = 0
    tls_certificate_file: Annotated[
        str, Meta(description="Certificate chain in PEM form; makes it HTTPS.", max_length=4096)
    ] = ""
    tls_key_file: Annotated[
        str, Meta(description="Private key of the certificate, in PEM form.", max_length=4096)
    ] = ""
    jwt_issuer: Annotated[str, Meta(description="Accepted JWT issuer.", max_length=2048)] = ""
    jwt_audience: Annotated[str, Meta(description="Accepted JWT audience.", max_length=2048)] = ""
    jwt_algorithms: Annotated[
        list[str], Meta(description="Accepted JWT algorithms: HS*, or others.", max_length=16)
    ] = []
    jwt_key: Annotated[
        str,
        Meta(
            description="Public key in PEM form, or the secret of HS*.",
            max_length=16384,
            extra=SECRET,
        ),
    ] = ""
    data_dir: Annotated[
        str,
        Meta(
            description="Data directory of the embedded PostgreSQL.", min_length=1, max_length=4096
        ),
    ] = msgspec.field(default_factory=default_data_dir)
    database_url: Annotated[
        str,
        Meta(
            description="An external PostgreSQL instead of the embedded one.",
            max_length=4096,
            extra=SECRET,
        ),
    ] = ""
    migration_database_url: Annotated[
        str,
        Meta(
            description="Login of the schema's owner, if the engine's login may not change it.",
            max_length=4096,
            extra=SECRET,
        ),
    ] = ""
    database_pooler: Annotated[
        bool, Meta(description="database_url is a pooler in transaction mode.")
    ] = False
    allow_unsafe_durability: Annotated[
        bool, Meta(description="Accept a server with unsafe durability settings.")
    ] = False
    carrier: Annotated[
        str,
        Meta(
            description="Carrier of the ready queue: postgres, or a URL (Redis, RabbitMQ, Kafka).",
            min_length=1,
            max_length=4096,
            extra=SECRET,
        ),
    ] = POSTGRES_CARRIER
    carrier_fallback: Annotated[
        Literal["postgres", "wait"],
        Meta(description="While the carrier is down, tickets go there, or wait for it."),
    ] = "postgres"
    pool_connections_max: Annotated[
        int, Meta(description="Database connections of one process.", ge=2, le=200)
    ] = 10
    pg_bin: Annotated[
        str, Meta(description="Folder of PostgreSQL's programs.", max_length=4096)
    ] = ""
    webhook_allow_private: Annotated[
        bool | None,
        Meta(description="Webhooks may go to private addresses; unset: on a laptop only."),
    ] = None
    webhook_allow_networks: Annotated[
        list[str], Meta(description="Networks that webhooks may go to as well.", max_length=100)
    ] = []
    webhook_ports: Annotated[
        list[int], Meta(description="Ports that webhooks may go to.", max_length=100)
    ] = msgspec.field(default_factory=lambda: [80, 443, 8080, 8443])
    webhook_host_concurrency: Annotated[
        int, Meta(description="Requests of a tenant to one host at a time.", ge=1, le=1000)
    ] = 50
    smtp_url: Annotated[
        str,
        Meta(
            description="Relay of notifications by mail: smtp://user:password@host:587 or smtps:.",
            max_length=2048,
            extra=SECRET,
        ),
    ] = ""
    mail_from: Annotated[
        str, Meta(description="Sender of mail; empty: duly@ and this machine.", max_length=254)
    ] = ""
    notification_command: Annotated[
        list[str],
        Meta(description="Program and arguments that notifications may run.", max_length=32),
    ] = []
    executor_bands: Annotated[
        list[BandName],
        Meta(
            description="Bands of webhooks that an executor delivers.", min_length=1, max_length=3
        ),
    ] = msgspec.field(default_factory=lambda: list(BANDS))
    aging_s: Annotated[
        float, Meta(description="Waiting time that raises a due task by one band.", ge=1, le=86_400)
    ] = AGING_S
    lane_depth: Annotated[
        int, Meta(description="Tickets in one lane at most.", ge=2, le=100_000)
    ] = LANE_DEPTH_MAX
    retention_days: Annotated[
        int, Meta(description="Days for which finished tasks are kept.", ge=1, le=36_500)
    ] = 30
    log_retention_days: Annotated[
        int, Meta(description="Days for which lines of handlers are kept.", ge=1, le=36_500)
    ] = 7
    log_quota_mb: Annotated[
        int,
        Meta(description="Mebibytes that handlers of a tenant may log a day.", ge=0, le=1_000_000),
    ] = 1024
    otlp_endpoint: Annotated[
        str,
        Meta(description="OpenTelemetry collector (OTLP); empty: off.", max_length=2048),
    ] = ""
    otlp_protocol: Annotated[
        Literal["http", "grpc"], Meta(description="How spans are sent to it.")
    ] = "http"
    trace_sample_ratio: Annotated[
        float,
        Meta(description="Share of tasks traced whose caller has no trace.", ge=0, le=1),
    ] = 0.01
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Minimum severity of log lines."),
    ] = "info"
    log_format: Annotated[
        Literal["auto", "text", "json"], Meta(description="auto: text on a terminal, else JSON.")
    ] = "auto"
    stop_timeout_s: Annotated[
        float, Meta(description="Longest graceful shutdown.", ge=0.1, le=600)
    ] = 10.0


# As msgspec words it.
NO_CHOICE = re.compile(r"Invalid enum value ('[^']*')")
HINTS = get_type_hints(Settings, include_extras=True)
FIELDS = tuple(Settings.__struct_fields__)


def meta_of(name: str) -> Meta:
    (meta,) = HINTS[name].__metadata__
    assert isinstance(meta, Meta)
    return meta


def is_secret(name: str) -> bool:
    return bool((meta_of(name).extra or {}).get("secret"))


@dataclass(frozen=True)
class SettingValue:
    """One value as it was given, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True)
class LoadedSettings:
    settings: Settings
    origins: dict[str, str]


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str]) -> LoadedSettings:
    """Merge the sources; `flags` holds only what the command line actually named."""
    given: dict[str, SettingValue] = {}
    given |= read_file(config_path(flags.get("config"), environ))
    given |= read_environment(environ)
    given |= {
        name: SettingValue(value, "--" + name.replace("_", "-"))
        for name, value in flags.items()
        if name != "config" and value is not None
    }
    values = {name: convert(name, entry) for name, entry in given.items()}
    origins = {name: given[name].origin if name in given else "default" for name in FIELDS}
    return LoadedSettings(Settings(**values), origins)


def config_path(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    named = flag or environ.get("DULY_CONFIG")
    if named:
        return Path(named)
    default = default_config_file(environ)
    try:
        return default if default is not None and default.is_file() else None
    except PermissionError:
        # After `su`, HOME may still name the home of another user.
        return None


def read_file(path: Path | None) -> dict[str, SettingValue]:
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(problem=f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(problem=f"{path} is not valid TOML: {error}") from None
    return resolve({key: SettingValue(value, f"{path}: {key}") for key, value in table.items()})


def read_environment(environ: Mapping[str, str]) -> dict[str, SettingValue]:
    return resolve(given_by(environ))


def given_by(environ: Mapping[str, str]) -> dict[str, SettingValue]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): SettingValue(value, name)
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
        and not name.startswith(TEST_PREFIX)
        and name not in NOT_SETTINGS
    }


def check_names(environ: Mapping[str, str]) -> None:
    """For commands that read no settings: a name with a typing error is refused by them, too."""
    for key, entry in given_by(environ).items():
        if key not in FIELDS and secret_of(key) is None:
            raise ConfigurationError(problem=unknown(key, entry))


def secret_of(key: str) -> str | None:
    """The secret whose file form this name is."""
    secret = key.removesuffix("_file")
    is_file_form = key not in FIELDS and secret != key and secret in FIELDS and is_secret(secret)
    return secret if is_file_form else None


def resolve(given: dict[str, SettingValue]) -> dict[str, SettingValue]:
    """Refuse unknown names, and replace each `secret_file` by what the file holds."""
    resolved: dict[str, SettingValue] = {}
    for key, entry in given.items():
        secret = secret_of(key)
        if secret is not None:
            if secret in given:
                raise ConfigurationError(problem=f"both {secret} and {key} are set; keep one")
            resolved[secret] = SettingValue(read_secret(entry), entry.origin)
        elif key in FIELDS:
            resolved[key] = entry
        else:
            raise ConfigurationError(problem=unknown(key, entry))
    return resolved


def unknown(key: str, entry: SettingValue) -> str:
    close = difflib.get_close_matches(key, FIELDS, n=1)
    is_variable = entry.origin.startswith(ENVIRONMENT_PREFIX)
    named = [ENVIRONMENT_PREFIX + each.upper() if is_variable else each for each in close]
    hint = f"; did you mean {named[0]}?" if named else "; `duly config` lists them"
    return f"unknown setting {entry.origin}{hint}"


def read_secret(entry: SettingValue) -> str:
    try:
        with Path(str(entry.value)).open("rb") as file:
            content = file.read(SECRET_FILE_BYTES_MAX + 1)
        if len(content) > SECRET_FILE_BYTES_MAX:
            raise ConfigurationError(problem=f"{entry.origin}: the file is too large for a secret")
        return content.decode("utf-8").strip()
    except OSError as error:
        problem = f"{entry.origin}: cannot read {entry.value}: {error.strerror}"
        raise ConfigurationError(problem=problem) from None
    except UnicodeDecodeError:
        raise ConfigurationError(problem=f"{entry.origin}: the file is not UTF-8 text") from None


def convert(name: str, entry: SettingValue) -> Any:
    value = entry.value
    is_text = isinstance(value, str)
    if is_text and get_origin(get_args(HINTS[name])[0]) is list:
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, HINTS[name], strict=not is_text)
    except msgspec.ValidationError as error:
        shown = "a secret" if is_secret(name) else repr(entry.value)
        reason = str(error).replace("`", "").replace("Expected", "expected")
        if wrong := NO_CHOICE.match(reason):
            reason = f"{wrong[1]} is not one of {', '.join(choices_of(name))}"
        raise ConfigurationError(problem=f"{entry.origin} is {shown}: {reason}") from None


def choices_of(name: str) -> tuple[str, ...]:
    kind = get_args(HINTS[name])[0]
    return get_args(get_args(kind)[0] if get_origin(kind) is list else kind)
