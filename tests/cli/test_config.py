"""`duly config` shows what counts and hides what is secret."""

import json
import shlex

import pytest

from duly.cli.main import run
from duly.settings import FIELDS


def test_every_setting_is_shown_with_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a value came from is the question behind most misconfigurations."""
    monkeypatch.setenv("DULY_PORT", "4321")
    assert run(["config", "--json", "--log-level", "error"]) == 0
    items = {item["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    assert tuple(items) == FIELDS
    assert (items["port"]["value"], items["port"]["origin"]) == (4321, "DULY_PORT")
    assert items["log_level"]["origin"] == "--log-level"
    assert items["host"]["origin"] == "default"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_secret_is_hidden_in_every_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    """Its output is what people paste into bug reports."""
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://u:hunter2@db/x")
    assert run(["config", *form]) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert "(hidden)" in out


def test_a_table_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """The documentation of last resort."""
    assert run(["config"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in FIELDS)


def test_env_prints_what_a_client_would_find(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluated by a shell: a key with a quote in it must not run as a command."""
    monkeypatch.setenv("DULY_URL", "https://duly.example.com/")
    monkeypatch.setenv("DULY_API_KEY", "a'; rm -rf x")
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://u:hunter2@db/x")
    assert run(["env", "--json"]) == 0
    found = {"DULY_URL": "https://duly.example.com", "DULY_API_KEY": "a'; rm -rf x"}
    assert json.loads(capsys.readouterr().out) == found
    assert run(["env"]) == 0
    url, key = capsys.readouterr().out.splitlines()
    assert url == "export DULY_URL=https://duly.example.com"
    assert shlex.split(key) == ["export", "DULY_API_KEY=a'; rm -rf x"]
