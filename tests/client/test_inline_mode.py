"""Inline mode: handlers of a program run where it submits, without a server."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import duly
from duly import AsyncClient, Client, Context, TaskRegistry, Worker, inject, resource
from duly.client.inline_mode import DEPTH_MAX, NoHandler, NoServer

worker = Worker(pools=["inline"])
threads: list[int] = []


@resource
async def database() -> AsyncIterator[list[str]]:
    rows = ["opened"]
    yield rows
    rows.append("closed")


@resource
def clerk() -> Iterator[str]:
    yield "Ann"


@worker.task("order.confirm", retry={"max_attempts": 3})
def confirm(ctx: Context, number: int, name: str = inject(clerk)) -> str:
    threads.append(threading.get_ident())
    if ctx.attempt < number:
        ctx.progress({"tried": ctx.attempt})
        raise ConnectionError(f"attempt {ctx.attempt}")
    return f"{name} confirmed {number} after {ctx.last_progress}"


@worker.task("order.read")
async def read(ctx: Context, number: int, rows: list[str] = inject(database)) -> list[str]:
    await asyncio.sleep(0)
    return [*rows, str(number)]


@worker.task("order.wait")
async def wait(ctx: Context, open_at: int) -> str:
    if len(opened) < open_at:
        opened.append(ctx.attempt)
        ctx.snooze(1800)
    return "open"


@worker.task("order.all")
def every(ctx: Context, count: int) -> list[str]:
    return [confirm.submit(1).result() for _ in range(count)]


@worker.task("order.again")
def again(ctx: Context) -> None:
    again.after(3600).submit()


@worker.task("order.slow", timeout_s=0.1)
async def slow(ctx: Context) -> None:
    await asyncio.Event().wait()


opened: list[int] = []


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    """Of any duly: a client that asks for one fails."""
    opened.clear()
    threads.clear()


def test_a_submit_runs_its_handler_at_once_in_the_thread_that_submits() -> None:
    """A unit test that has to start a server is not written, and one whose handler runs in another
    thread does not see the test's own transaction."""
    with worker.inline() as inline:
        task = confirm.submit(1)
        assert (task.state, task.output) == ("COMPLETED", "Ann confirmed 1 after None")
        assert task.result() == "Ann confirmed 1 after None"
        assert task.refresh().wait(5).is_terminal
    assert threads == [threading.get_ident()]
    assert [(each.type, each.outcome) for each in inline.ran] == [("order.confirm", "completed")]


def test_attempts_follow_the_retry_policy_without_its_pauses() -> None:
    """A retry that is wrong is found in production, an hour after the first attempt."""
    with worker.inline() as inline:
        started_at = datetime.now(UTC)
        assert confirm.submit(3).result() == "Ann confirmed 3 after {'tried': 2}"
        failed = confirm.submit(9)
        assert (failed.state, failed.attempt) == ("FAILED", 3)
        with pytest.raises(duly.TaskFailed, match="ConnectionError: attempt 3"):
            failed.result()
        narrow = confirm.options(retry={"max_attempts": 1}).submit(3)
        assert (narrow.state, narrow.attempt) == ("FAILED", 1)
    assert datetime.now(UTC) - started_at < timedelta(seconds=60)
    attempts = [each.attempt for each in inline.ran]
    assert attempts == [1, 2, 3, 1, 2, 3, 1]


async def test_async_programs_and_handlers_run_inline_too() -> None:
    """Half of the programs are asynchronous, and a resource of theirs lives in their loop."""
    with worker.inline():
        task = await read.asubmit(7)
        assert await task.result() == ["opened", "7"]
        async with AsyncClient() as client:
            first, second = await client.submit_many([read.call(1), confirm.call(1)])
            assert (await client.get(first.id)).output == ["opened", "1"]
            assert second.output == "Ann confirmed 1 after None"
            assert (await client.submit("order.read", {"number": 3})).output == ["opened", "3"]
        # As a handler does that was not awaited.
        assert read.submit(8).result() == ["opened", "8"]
    # In a thread, as in a worker, where it may block.
    assert threading.get_ident() not in threads


def test_a_resource_can_be_replaced() -> None:
    """A unit test has no database."""
    with worker.inline(resources={database: ["stub"], clerk: "Bob"}):
        assert read.submit(1).result() == ["stub", "1"]
        assert confirm.submit(1).result() == "Bob confirmed 1 after None"


def test_a_snoozed_task_waits_until_the_test_wakes_it() -> None:
    """A handler that waits for what the test does next would run for ever."""
    with worker.inline() as inline:
        task = wait.submit(2)
        assert (task.state, task.attempt) == ("SCHEDULED", 0)
        with pytest.raises(duly.WaitTimedOut):
            task.result()
        inline.run_snoozed()
        assert task.refresh().state == "SCHEDULED"
        inline.run_snoozed()
        assert task.result() == "open"
    # None of them was charged.
    assert opened == [1, 1]


def test_handlers_submit_tasks_and_an_endless_chain_is_ended() -> None:
    """A task that submits itself for ever would hang the test."""
    with worker.inline() as inline:
        assert every.submit(2).result() == ["Ann confirmed 1 after None"] * 2
        assert again.submit().state == "COMPLETED"
        innermost = [each for each in inline.ran if each.type == "order.again"]
        # The innermost was refused to submit in each of its five attempts.
        assert len(innermost) == DEPTH_MAX + 4
        assert all("TooManyRuns" in (each.error or "") for each in innermost[:5])


def test_payloads_times_and_keys_are_checked_as_by_a_server() -> None:
    """What inline mode lets through fails in production."""
    with worker.inline() as inline, Client() as client:
        rejected = client.submit("order.confirm", {"number": "seven"})
        assert (rejected.state, rejected.reason) == ("FAILED", "rejected")
        assert "payload/number" in (rejected.error or "")
        with pytest.raises(duly.InvalidPayload):
            confirm.submit("seven")  # type: ignore[arg-type]
        with pytest.raises(duly.Invalid, match="is the most"):
            client.submit("order.confirm", {"number": 1, "name": "x" * 70_000})
        with pytest.raises(NoHandler):
            client.submit("order.unknown")
        first = client.submit(confirm.call(1), idempotency_key="once")
        assert client.submit(confirm.call(1), idempotency_key="once").id == first.id
        with pytest.raises(duly.IdempotencyMismatch):
            client.submit(confirm.call(2), idempotency_key="once")
        later = confirm.after(3600).submit(1)
        assert later.run_at - later.created_at == timedelta(hours=1)
        hook = client.submit("order.told", {"number": 1}, url="https://example.com/hook")
        assert hook.state == "SCHEDULED"
        with pytest.raises(NoServer, match="/v1/nodes"):
            list(client.nodes.list())
        assert [each.outcome for each in inline.ran] == ["rejected", "completed", "completed"]


def test_time_limits_middleware_and_included_registries_work_as_in_a_worker() -> None:
    """A handler that is surrounded in production and not in its test behaves otherwise."""
    seen: list[str] = []
    program, tasks = Worker(pools=["inline"]), TaskRegistry()

    @tasks.task("note")
    def note(ctx: Context, text: str) -> None:
        seen.append(text)

    @program.around
    def surround(ctx: Context) -> Iterator[None]:
        seen.append("before")
        yield
        seen.append("after")

    @program.after
    def ended(ctx: Context, outcome: object) -> None:
        seen.append(ctx.type)

    program.include(tasks)
    with program.inline():
        note.submit("now")
    assert seen == ["before", "now", "after", "note"]
    with tasks.inline():
        note.submit("alone")
    assert seen[-1] == "alone"
    with worker.inline() as inline:
        slow.options(retry={"max_attempts": 1}).submit()
        assert inline.ran[-1].error == "timed out after 0.1 s"


def test_after_the_block_submits_go_to_a_server_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mode that outlives its test runs the handlers of the next one."""
    monkeypatch.setenv("DULY_DATA_DIR", str(tmp_path))
    with worker.inline():
        confirm.submit(1)
        with pytest.raises(duly.ConfigurationError, match="already"), worker.inline():
            pass
    with pytest.raises(duly.ServerNotFound):
        confirm.submit(1)
