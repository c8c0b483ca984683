"""`duly psql` and `duly config --database-url` on a real server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from duly.cli.main import run
from duly.cli.psql import find_program, login_of
from tests.processes import PROJECT


def duly(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duly", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_psql_is_opened_on_the_database_of_the_settings(owner_url: str) -> None:
    """The URL copied from a file onto a command line shows its password to the whole machine."""
    program = find_program("")
    assert program is not None, "each PostgreSQL that runs these tests has psql beside it"
    said = duly("psql", "-Atc", "select count(*) from duly.tasks", DULY_DATABASE_URL=owner_url)
    assert (said.returncode, said.stdout) == (0, "0\n"), said.stderr
    said = duly("psql", "--database-url", owner_url, "-c", "select 1/0")
    assert said.returncode == 1
    assert "division by zero" in said.stderr


def test_without_psql_the_url_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback about a missing file, where a URL for another program was all that was wanted."""
    monkeypatch.setattr("duly.cli.psql.find_program", lambda _folder: None)
    assert run(["psql", "--database-url", "postgresql://u:p@db/x"]) == 1
    out, err = capsys.readouterr()
    assert out == "postgresql://u:p@db/x\n"
    assert "psql is not installed" in err


def test_the_one_of_the_path_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the one with the user's pager and completion; without it there is the server's own."""
    own = tmp_path / "psql"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("") == str(own)
    monkeypatch.setenv("PATH", "")
    found = find_program("")
    assert found is None or (found != str(own) and shutil.which(found) is not None)
    assert find_program(str(tmp_path)) is None, "a folder without a PostgreSQL has no psql of it"


@pytest.mark.parametrize(
    ("url", "address", "password"),
    [
        ("postgresql://u:p%40ss@db:5432/x", "postgresql://u@db:5432/x", "p@ss"),
        ("postgresql://u@db/x?sslmode=require", "postgresql://u@db/x?sslmode=require", None),
        (
            "postgresql://u@db/x?password=a&sslmode=require",
            "postgresql://u@db/x?sslmode=require",
            "a",
        ),
        ("postgresql://u:p@/x?host=%2Frun&port=1", "postgresql://u@/x?host=%2Frun&port=1", "p"),
        ("postgresql://db/x", "postgresql://db/x", None),
    ],
)
def test_no_password_stands_on_the_command_line(
    url: str, address: str, password: str | None
) -> None:
    """Every user of the machine sees the arguments of every process."""
    assert login_of(url) == (address, password)


def test_the_url_of_the_database_is_printed_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """For pg_dump; the table of all settings hides it, and must go on doing so."""
    url = "postgresql://u:hunter2@db/x"
    monkeypatch.setenv("DULY_DATABASE_URL", url)
    assert run(["config", "--database-url"]) == 0
    assert capsys.readouterr().out == f"{url}\n"
    assert run(["config", "--database-url", "--json"]) == 0
    assert capsys.readouterr().out == f'{{"database_url":"{url}"}}\n'
    assert run(["config", "--database-url", "postgresql://u:hunter3@db/y"]) == 0
    assert "hunter" not in capsys.readouterr().out
    monkeypatch.setenv("DULY_DATABASE_URL", "")
    monkeypatch.setenv("DULY_DATA_DIR", str(tmp_path))
    for command in (["config", "--database-url"], ["psql"]):
        assert run(command) == 2
        assert capsys.readouterr().err == (
            f"duly: no embedded PostgreSQL runs in {tmp_path};"
            " start `duly up`, or give --database-url\n"
        )
