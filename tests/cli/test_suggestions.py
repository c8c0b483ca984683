"""Completion of ids and names by the server, as a shell asks for it."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from duly.cli.main import run
from tests.api.conftest import Front
from tests.cli.conftest import CommandLine


async def complete(duly: CommandLine, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    duly.patch.setenv("_DULY_COMPLETE", "bash_complete")
    duly.patch.setenv("COMP_WORDS", " ".join(words))
    duly.patch.setenv("COMP_CWORD", str(len(words) - 1))
    duly.capsys.readouterr()
    await asyncio.to_thread(completed)
    out, err = duly.capsys.readouterr()
    duly.patch.delenv("_DULY_COMPLETE")
    assert err == ""
    return [line.partition(",")[2] for line in out.split()]


def completed() -> None:
    with contextlib.suppress(SystemExit):
        run([])


async def test_ids_and_names_are_completed_by_what_there_is(
    duly: CommandLine, front: Front
) -> None:
    """An id of 36 characters, typed from another terminal, is mistyped."""
    task = (await duly.json("tasks", "submit", "mail", "--delay", "1h"))["id"]
    gone = (await duly.json("tasks", "submit", "mail", "--delay", "1h"))["id"]
    await duly("tasks", "cancel", gone)
    await duly("types", "set", "mail.send")
    await duly("schedules", "create", "nightly", "x", "--cron", "0 2 * * *")
    await duly("pauses", "pause", "pool", "slow", "--reason", "x")
    await duly("pauses", "pause", "type", "mail", "--reason", "x")
    secret = (await duly.json("webhook-secrets", "create"))["id"]
    assert set(await complete(duly, "duly", "tasks", "show", "")) == {task, gone}
    assert await complete(duly, "duly", "tasks", "show", task[:-1]) == [task]
    assert await complete(duly, "duly", "tasks", "run-now", "") == [task]
    assert await complete(duly, "duly", "tasks", "list", "--type", "mail.") == ["mail.send"]
    assert await complete(duly, "duly", "schedules", "show", "ni") == ["nightly"]
    assert await complete(duly, "duly", "pauses", "resume", "pool", "") == ["slow"]
    assert await complete(duly, "duly", "pauses", "resume", "type", "") == ["mail"]
    assert await complete(duly, "duly", "tasks", "list", "--tenant", "ot") == ["other"]
    assert secret in await complete(duly, "duly", "webhook-secrets", "delete", "")
    assert await complete(duly, "duly", "dead-letters", "show", "") == []
    there = ("--url", front.url, "--api-key", front.producer)
    duly.patch.delenv("DULY_API_KEY")
    assert await complete(duly, "duly", "tasks", "show", *there, task[:9]) == [gone, task]


async def test_without_a_server_nothing_is_suggested_and_nothing_is_said(
    duly: CommandLine, tmp_path: Path
) -> None:
    """An error between two words ruins the line that is being typed."""
    duly.patch.setenv("DULY_URL", "http://127.0.0.1:9")
    assert await complete(duly, "duly", "tasks", "show", "") == []
    duly.use_key("wrong")
    assert await complete(duly, "duly", "tasks", "show", "") == []
    duly.patch.delenv("DULY_URL")
    duly.patch.setenv("DULY_DATA_DIR", str(tmp_path))
    assert await complete(duly, "duly", "tasks", "show", "") == []
    assert await complete(duly, "duly", "tasks", "sh") == ["show"]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J"])
async def test_a_name_that_a_shell_would_obey_is_left_out(duly: CommandLine, name: str) -> None:
    """A line break in a name would become a second suggestion, and an escape a command."""
    made = await duly.front.call(
        *("POST", "/v1/schedules"), {"name": name, "every_s": 60, "task": {"type": "x"}}
    )
    if made.status == 201:
        assert await complete(duly, "duly", "schedules", "show", "") == []
    else:
        assert made.code == "invalid"
