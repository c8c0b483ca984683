"""`duly bulk` and `duly tasks search` against a real front door."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from duly.cli import bulk_operations
from duly.maintenance import bulk_operations as maintenance
from duly.maintenance.bulk_operations import BulkOperationsRole
from tests.api.conftest import Front
from tests.api.letters import fail_many
from tests.cli.conftest import CommandLine

MAIL = ("--type", "mail.send")


@contextlib.asynccontextmanager
async def leader(front: Front) -> AsyncIterator[None]:
    """The maintenance leader's role, while the command follows."""
    role = BulkOperationsRole(front.database, front.environment, front.door.events, lambda: True)

    async def run() -> None:
        while True:  # noqa: ASYNC110 (a role is ticked by the clock)
            await asyncio.sleep(min(await role.tick(), 0.05))

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "LOOK_S", 0.05)
    # The server's log would stand on the standard output of the command.
    monkeypatch.setattr(maintenance, "log", Mock())


async def submit_many(duly: CommandLine, count: int) -> list[Any]:
    return [
        await duly.json("tasks", "submit", "mail.send", '{"n": 1}', "--delay", "1h")
        for _ in range(count)
    ]


async def test_a_bulk_cancel_is_previewed_followed_and_listed(
    duly: CommandLine, front: Front
) -> None:
    """The dashboard copies this command; it must exist and do the same."""
    (task, *_) = await submit_many(duly, 3)
    assert "3 tasks match" in await duly("bulk", "cancel", *MAIL, "--dry-run")
    await duly("bulk", "cancel", *MAIL, code=2)
    async with leader(front):
        ended = await duly.json("bulk", "cancel", *MAIL, "--yes")
    assert (ended["state"], ended["done"]) == ("DONE", 3)
    assert (await duly.json("tasks", "show", task["id"]))["state"] == "CANCELLED"
    (listed,) = (await duly.json("bulk", "list"))["items"]
    assert listed == ended
    assert "DONE" in await duly("bulk", "list")
    assert "cancel" in await duly("bulk", "show", ended["id"])


async def test_a_canary_pauses_and_continue_ends_it(duly: CommandLine, front: Front) -> None:
    """A person must be told how the rest is started."""
    await submit_many(duly, 3)
    async with leader(front):
        paused = await duly.json("bulk", "run-now", *MAIL, "--yes", "--canary", 1)
        assert (paused["state"], paused["done"]) == ("PAUSED_AFTER_CANARY", 1)
        await duly("bulk", "run-now", *MAIL, "--yes", "--canary", 1)
        assert "duly bulk continue" in duly.said_on_errors
        ended = await duly.json("bulk", "continue", paused["id"])
    assert (ended["state"], ended["done"]) == ("DONE", 3)


async def test_an_operation_is_stopped(duly: CommandLine) -> None:
    """What was started by mistake is stopped from the same terminal."""
    await submit_many(duly, 1)
    made = await duly.json("bulk", "reschedule", *MAIL, "--delay", "2h", "--yes", "--no-wait")
    assert made["state"] == "RUNNING"
    assert (await duly.json("bulk", "stop", made["id"]))["state"] == "STOPPED"
    assert "STOPPED" in await duly("bulk", "show", made["id"])


async def test_dead_letters_are_replayed_and_purged(duly: CommandLine, front: Front) -> None:
    """Each kind of thing has filters of its own."""
    await fail_many(front, 2)
    async with leader(front):
        replayed = await duly.json("bulk", "replay", *MAIL, "--yes", "--rate", 1000)
        assert (replayed["action"], replayed["done"]) == ("replay", 2)
        purged = await duly.json("bulk", "purge", "--replayed", "--yes")
    assert purged["done"] == 2


async def test_everything_needs_a_word_of_its_own(duly: CommandLine) -> None:
    """A filter that was forgotten is everything."""
    await duly("bulk", "cancel", "--yes", code=2)
    await duly("bulk", "cancel", *MAIL, "--all", "--yes", code=2)


async def test_tasks_are_searched(duly: CommandLine) -> None:
    """What a customer wrote is found without its id."""
    (task,) = await submit_many(duly, 1)
    page = await duly.json("tasks", "search", "mail", "--type", "mail.send")
    assert [item["id"] for item in page["items"]] == [task["id"]]
    assert task["id"] in await duly("tasks", "search", task["id"][:13])
    await duly("tasks", "search", "nothing-like-it")
    assert "no tasks" in duly.said_on_errors
    await duly("tasks", "search", code=2)


async def test_workflows_are_changed_by_filter(duly: CommandLine, front: Front) -> None:
    """After a wrong release, hundreds of runs are cancelled one by one."""
    for _ in range(2):
        body = {"name": "order.fulfil", "nodes": {"a": {"type": "x"}}}
        assert (await front.call("POST", "/v1/workflows", body)).status == 201
    named = ("--name", "order.fulfil")
    assert "2 workflows match" in await duly("bulk", "pause-workflows", *named, "--dry-run")
    async with leader(front):
        for verb in ("pause", "unpause", "cancel"):
            ended = await duly.json("bulk", f"{verb}-workflows", *named, "--yes")
            assert (ended["state"], ended["done"]) == ("DONE", 2)
        state = ("--state", "CANCELLED")
        ended = await duly.json("bulk", "resume-workflows", *state, "--yes")
        assert (ended["state"], ended["done"]) == ("DONE", 2)
    await duly("bulk", "cancel-workflows", code=2)
