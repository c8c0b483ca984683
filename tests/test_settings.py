"""Settings: which source wins, and what a mistake looks like: one line, a suggestion, no secret."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from duly.domain.errors import ConfigurationError
from duly.settings import (
    FIELDS,
    ROLES,
    SECRET_FILE_BYTES_MAX,
    LoadedSettings,
    Settings,
    is_secret,
    load_settings,
    meta_of,
)

SECRETS = [name for name in FIELDS if is_secret(name)]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def write_config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "duly.toml"
    path.write_text(text)
    return str(path)


def refusal(environ: dict[str, str], flags: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(flags or {}, environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_later_sources_win_and_each_origin_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    """A flag that loses to a forgotten file is the classic lost afternoon."""
    config = write_config(tmp_path, 'port = 1111\nhost = "0.0.0.0"\nlog_level = "debug"\n')
    environ |= {"DULY_CONFIG": config, "DULY_PORT": "2222", "DULY_HOST": "127.0.0.2"}
    loaded = load_settings({"port": "3333", "data_dir": None}, environ)
    assert (loaded.settings.port, loaded.origins["port"]) == (3333, "--port")
    assert (loaded.settings.host, loaded.origins["host"]) == ("127.0.0.2", "DULY_HOST")
    assert loaded.settings.log_level == "debug"
    assert loaded.origins["log_level"] == f"{config}: log_level"
    assert loaded.origins["data_dir"] == "default"


def test_a_file_named_by_flag_comes_before_the_one_of_the_environment(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """The nearest word counts."""
    named = write_config(tmp_path, "port = 4444\n")
    environ["DULY_CONFIG"] = "does-not-exist.toml"
    assert load_settings({"config": named}, environ).settings.port == 4444


def test_the_file_in_the_users_folder_is_read_when_none_is_named(tmp_path: Path) -> None:
    """A documented place that is not read is worse than none."""
    (tmp_path / "duly").mkdir()
    (tmp_path / "duly" / "duly.toml").write_text("port = 5555\n")
    assert load_settings({}, {"XDG_CONFIG_HOME": str(tmp_path)}).settings.port == 5555


def test_an_unknown_setting_is_refused_with_a_suggestion(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Ignored, a misspelt setting runs production on a default."""
    assert refusal(environ | {"DULY_PROT": "1"}).endswith("DULY_PROT; did you mean DULY_PORT?")
    config = write_config(tmp_path, "databse_url = ''\n")
    assert refusal(environ, {"config": config}).endswith("did you mean database_url?")
    roles = refusal(environ | {"DULY_ROLES": "api,schedular"})
    assert roles.endswith("'schedular' is not one of api, scheduler, executor, maintenance")
    level = refusal(environ | {"DULY_LOG_LEVEL": "loud"})
    assert level.endswith("'loud' is not one of debug, info, warning, error")
    assert "`duly config` lists them" in refusal(environ | {"DULY_XYZZY": "1"})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PORT", "65536", "<= 65535"),
        ("PORT", "-1", ">= 0"),
        ("PORT", "http", "expected int"),
        ("POOL_CONNECTIONS_MAX", "1", ">= 2"),
        ("POOL_CONNECTIONS_MAX", "201", "<= 200"),
        ("STOP_TIMEOUT_S", "0", ">= 0.1"),
        ("STOP_TIMEOUT_S", "601", "<= 600"),
        ("LOG_LEVEL", "loud", "loud"),
        ("ALLOW_UNSAFE_DURABILITY", "perhaps", "expected bool"),
        ("HOST", "", "length >= 1"),
        ("ROLES", "api,cook", "cook"),
        ("ROLES", "", "length >= 1"),
    ],
)
def test_a_value_out_of_bounds_is_refused_and_named(
    environ: dict[str, str], name: str, value: str, reason: str
) -> None:
    """One past the bound must be told where it was written and what would be right."""
    said = refusal(environ | {f"DULY_{name}": value})
    assert said.startswith(f"DULY_{name} is ")
    assert reason in said


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "65535"), ("PORT", "0"), ("POOL_CONNECTIONS_MAX", "200"), ("STOP_TIMEOUT_S", "0.1")],
)
def test_a_value_at_its_bound_is_accepted(environ: dict[str, str], name: str, value: str) -> None:
    """A documented maximum that is refused is a bug."""
    loaded = load_settings({}, environ | {f"DULY_{name}": value})
    assert getattr(loaded.settings, name.lower()) == float(value)


def test_roles_are_a_list_with_commas(environ: dict[str, str]) -> None:
    """A process that was told one role and does all of them is found out by its bill."""
    loaded = load_settings({"roles": "scheduler, maintenance"}, environ | {"DULY_ROLES": "api"})
    assert loaded.settings.roles == ["scheduler", "maintenance"]
    assert load_settings({}, environ).settings.roles == list(ROLES)


@pytest.mark.parametrize(("text", "is_true"), [("true", True), ("1", True), ("false", False)])
def test_a_switch_in_the_environment_is_text(
    environ: dict[str, str], text: str, is_true: bool
) -> None:
    """bool("false") is True in Python: a durability check would be off by saying so."""
    loaded = load_settings({}, environ | {"DULY_ALLOW_UNSAFE_DURABILITY": text})
    assert loaded.settings.allow_unsafe_durability is is_true


def test_a_number_in_the_file_must_be_a_number(environ: dict[str, str], tmp_path: Path) -> None:
    """TOML has types; `true` is not a port."""
    assert "port is True" in refusal(environ, {"config": write_config(tmp_path, "port = true\n")})


@pytest.mark.parametrize("text", ["port = ", "port = 1\nport = 2\n", "[port]\nx = 1\n"])
def test_a_broken_file_is_refused_in_one_line(
    environ: dict[str, str], tmp_path: Path, text: str
) -> None:
    """A traceback out of a parser helps nobody."""
    config = write_config(tmp_path, text)
    assert "duly.toml" in refusal(environ, {"config": config})


def test_a_file_that_was_named_must_exist(environ: dict[str, str], tmp_path: Path) -> None:
    """Silently starting without it would mean other settings than those that were written."""
    missing = str(tmp_path / "missing.toml")
    assert "No such file" in refusal(environ, {"config": missing})
    assert "Is a directory" in refusal(environ, {"config": str(tmp_path)})


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_come_from_a_file(environ: dict[str, str], tmp_path: Path, name: str) -> None:
    """Secrets in the environment are seen by every child and in every crash report."""
    (tmp_path / "secret").write_text("postgresql://u:p@h/d\n")
    variable = f"DULY_{name.upper()}_FILE"
    loaded = load_settings({}, environ | {variable: str(tmp_path / "secret")})
    assert getattr(loaded.settings, name) == "postgresql://u:p@h/d"
    assert loaded.origins[name] == variable


def test_a_secret_given_twice_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    """Which one counts would be a guess."""
    both = {"DULY_DATABASE_URL": "x", "DULY_DATABASE_URL_FILE": str(tmp_path / "secret")}
    assert refusal(environ | both) == "both database_url and database_url_file are set; keep one"


def test_a_secret_file_is_bounded_readable_text(environ: dict[str, str], tmp_path: Path) -> None:
    """A path to a device or a log would be read into memory until none is left."""
    path = tmp_path / "secret"
    named = environ | {"DULY_DATABASE_URL_FILE": str(path)}
    assert "No such file" in refusal(named)
    path.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in refusal(named)
    path.write_bytes(b"x" * (SECRET_FILE_BYTES_MAX + 1))
    assert "too large" in refusal(named)
    assert "too large" in refusal(environ | {"DULY_DATABASE_URL_FILE": "/dev/zero"})


def test_only_a_secret_has_a_file_form(environ: dict[str, str]) -> None:
    """`port_file` is a spelling mistake, not a setting."""
    assert "unknown setting DULY_PORT_FILE" in refusal(environ | {"DULY_PORT_FILE": "x"})


def test_an_invalid_secret_is_not_shown(environ: dict[str, str]) -> None:
    """The line ends up in logs and screenshots."""
    said = refusal(environ | {"DULY_DATABASE_URL": "hunter2" * 1000})
    assert "hunter2" not in said
    assert "DULY_DATABASE_URL is a secret" in said


def test_names_that_are_not_settings_are_left_alone(environ: dict[str, str]) -> None:
    """The client's variables share the prefix; the server must not refuse to start for them."""
    loaded = load_settings({}, environ | {"DULY_URL": "x", "DULY_TEST_DATABASE_URL": "y"})
    assert isinstance(loaded, LoadedSettings)


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_is_described_and_bounded(name: str) -> None:
    """An undocumented setting cannot be found; an unbounded one breaks something else."""
    meta = meta_of(name)
    assert meta.description
    assert meta.description.endswith(".")
    schema = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"][name]
    bounds = {"maxLength", "maxItems", "maximum", "enum"} & schema.keys()
    kinds = {kind.get("type") for kind in schema.get("anyOf", [schema])}
    assert bounds or kinds <= {"boolean", "null"}, f"{name} has no upper bound"
