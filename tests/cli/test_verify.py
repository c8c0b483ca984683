"""`duly verify` as an operator calls it: what it prints, and how it exits."""

import asyncio
from pathlib import Path

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner, Result

from duly.cli.main import group, run
from duly.store.database import Database
from tests.store.ledger_of_all import make_all


def call(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(group, ["verify", "--database-url", url, *arguments])


async def test_a_report_says_what_was_checked_and_what_is_wrong(
    database: Database, owner: asyncpg.Connection, engine_url: str
) -> None:
    """A report without its extent cannot be told from one that looked at nothing."""
    kinds = await make_all(database)
    # In a thread: the command runs a loop of its own.
    clean = await asyncio.to_thread(call, engine_url, "--json")
    report = msgspec.json.decode(clean.stdout)
    assert clean.exit_code == 0
    assert report["is_clean"]
    assert report["violations"] == []
    rows = {line["check"]: line["rows"] for line in report["checks"]}
    assert rows["I1"] > rows["I4"] > 0
    assert report["attempts_per_s"] > 0
    lost = [kinds.done, kinds.retried]
    await owner.execute("DELETE FROM duly.attempts WHERE id = ANY($1)", lost)
    broken = await asyncio.to_thread(call, engine_url, "--limit", "1")
    assert broken.exit_code == 1
    lines = [f"violation I1 {task}: is neither live nor ended" for task in lost]
    assert sum(line in broken.stdout for line in lines) == 1
    assert "1 more violations are not shown" in broken.stderr
    assert "warning slots -: 64 of 64 slots have no owner" in broken.stdout


def test_a_database_that_cannot_be_judged_exits_with_two(
    empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exit code of a violation for a missing schema would wake the wrong people."""
    assert run(["verify", "--database-url", empty_url]) == 2
    assert "duly" in capsys.readouterr().err
    assert run(["verify", "--database-url", "postgresql://nobody@127.0.0.1:1/none"]) == 2
    assert run(["verify", "--database-url", empty_url, "--since", "yesterday"]) == 2


@pytest.mark.parametrize("command", ["verify", "doctor"])
def test_looking_into_a_wrong_folder_makes_nothing_there(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing mistake would leave a new PostgreSQL behind, and look like a lost installation."""
    folder = tmp_path / "nothing"
    assert run([command, "--data-dir", str(folder)]) == 2
    assert "there is no duly in it" in capsys.readouterr().err
    assert not folder.exists()
    (tmp_path / "file").write_text("")
    assert run([command, "--data-dir", str(tmp_path / "file")]) == 2
    assert (tmp_path / "file").read_text() == ""
