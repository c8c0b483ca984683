"""The fixtures for users: a real duly, a clock that moves at once, handlers run inline."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from duly import AsyncClient, Client, Context, Reject, Worker
from duly.client.inline_mode import NoHandler, Ran, TooManyRuns
from duly.client.worker import LEASE_S
from duly.scheduler.gatekeeper import BoundsReader
from duly.testing import inline
from duly.testing.clock import MovableClock
from duly.testing.inline import NotHandedOut
from duly.testing.server import DulyServer, TestTenant

pytestmark = pytest.mark.slow

RunInline = Callable[..., list[Ran]]
# A machine that is busy with other things, and still nothing like a week.
SOON_S = 30.0


def recorder(pools: list[str] | None = None) -> tuple[Worker, list[Any]]:
    worker, seen = Worker(pools=pools or ["default"]), []

    @worker.task("note")
    async def note(ctx: Context, what: str = "") -> str:
        seen.append(what)
        return what.upper()

    return worker, seen


def test_what_is_due_is_run_here_and_settled(duly_client: Client, run_inline: RunInline) -> None:
    """A test of a handler that needs a process, a pool and a sleep is a test nobody writes."""
    worker, seen = recorder()
    task = duly_client.submit("note", {"what": "a"})
    later = duly_client.submit("note", {"what": "b"}, delay_s=3600)
    (ran,) = run_inline(worker)
    assert seen == ["a"]
    assert (ran.id, ran.outcome, ran.result, ran.attempt) == (task.id, "completed", "A", 1)
    assert task.refresh().state == "COMPLETED"
    assert task.refresh().output == "A"
    assert later.refresh().state == "SCHEDULED"
    assert run_inline(worker) == []


def test_a_week_passes_in_moments(
    duly_client: Client, duly_clock: MovableClock, run_inline: RunInline
) -> None:
    """What is due in a week cannot be waited for; what the database and the process believe must
    move together, or it is due for one of them only."""
    worker, seen = recorder()
    before = duly_clock.now()
    task = duly_client.submit("note", {"what": "a"}, delay_s=7 * 86400 - 60)
    began = time.monotonic()
    for _ in range(3):
        duly_clock.advance(days=2)
        assert run_inline(worker) == []
    duly_clock.advance(days=1)
    assert len(run_inline(worker)) == 1
    assert time.monotonic() - began < SOON_S
    assert seen == ["a"]
    finished_at = task.refresh().finished_at
    assert finished_at is not None
    assert timedelta(days=7) <= finished_at - before < timedelta(days=7, minutes=5)


def test_retries_come_one_after_another_as_the_clock_is_moved_along(
    duly_client: Client, duly_clock: MovableClock, run_inline: RunInline
) -> None:
    """The third failure, an hour later, is where retry policies are wrong."""
    worker = Worker()
    times: list[datetime] = []

    @worker.task("flaky")
    def flaky(ctx: Context) -> None:
        times.append(duly_clock.now())
        assert ctx.last_progress == (None if ctx.attempt == 1 else ctx.attempt - 1)
        ctx.progress(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")

    policy = {"max_attempts": 5, "initial_s": 3600, "factor": 2, "jitter": False, "max_s": 86400}
    task = duly_client.submit("flaky", retry=policy)
    start = duly_clock.now()
    ran = run_inline(worker, until=timedelta(days=2))
    assert [each.outcome for each in ran] == ["failed", "failed", "completed"]
    assert "not yet" in (ran[0].error or "")
    hours = [round((at - start).total_seconds() / 3600, 1) for at in times]
    assert hours == [0.0, 1.0, 3.0]
    assert task.refresh().state == "COMPLETED"
    assert duly_clock.now() - start >= timedelta(days=2)


def test_what_handlers_submit_is_run_too(duly_client: Client, run_inline: RunInline) -> None:
    """`Client()` in the code under test finds the server of the test."""
    worker = Worker()
    seen = []

    @worker.task("parent")
    def parent(ctx: Context) -> None:
        with Client() as client:
            client.submit("child")

    @worker.task("child", run="process")
    def child(ctx: Context) -> None:
        seen.append(ctx.id)

    @worker.task("hopeless")
    def hopeless(ctx: Context) -> None:
        raise Reject("never")

    duly_client.submit("parent")
    lost = duly_client.submit("hopeless", priority=9)
    ran = run_inline(worker)
    assert {each.type: each.outcome for each in ran} == {
        "hopeless": "rejected",
        "parent": "completed",
        "child": "completed",
    }
    assert len(seen) == 1
    assert lost.refresh().state == "FAILED"


async def test_in_a_loop_it_is_awaited(
    duly_tenant: TestTenant, arun_inline: Callable[..., Awaitable[list[Ran]]]
) -> None:
    """A test that is a coroutine cannot start a loop."""
    worker, seen = recorder(["mail"])
    async with AsyncClient() as client:
        await client.submit("note", {"what": "a"}, pool="mail")
        await client.submit("note", {"what": "b"})
    (ran,) = await arun_inline(worker)
    assert (seen, ran.result) == (["a"], "A"), "the other pool is another worker's"


def test_a_handler_that_takes_too_long_is_stopped(
    duly_client: Client, run_inline: RunInline
) -> None:
    """It would hang the test instead of failing as it does in production."""
    worker = Worker()

    @worker.task("slow", timeout_s=0.1)
    async def slow(ctx: Context) -> None:
        await asyncio.Event().wait()

    duly_client.submit("slow", retry={"max_attempts": 1})
    (ran,) = run_inline(worker)
    assert (ran.outcome, ran.error) == ("failed", "timed out after 0.1 s")


def test_a_missing_handler_is_said(duly_client: Client, run_inline: RunInline) -> None:
    """In production another worker may know it; in a test it is a typing error."""
    worker, _ = recorder()
    task = duly_client.submit("not", {"what": "a"})
    with pytest.raises(NoHandler, match="'not'"):
        run_inline(worker)
    assert task.refresh().attempt == 0, "it was given back uncharged"


def wait_for_pause(server: DulyServer) -> None:
    """The scheduler looks every few seconds, or when it is woken."""
    (keeper,) = [
        loop.role for loop in server.ready.result().loops if isinstance(loop.role, BoundsReader)
    ]
    patient_until = time.monotonic() + SOON_S
    while not keeper.gatekeeper.bounds.pauses:
        assert time.monotonic() < patient_until
        server.wake()
        time.sleep(0.02)


def test_what_a_gate_holds_back_is_left_alone(
    duly_server: DulyServer, duly_client: Client, run_inline: RunInline
) -> None:
    """A test of a pause must end, and not by a timeout."""
    worker, seen = recorder()
    pause = {"kind": "type", "name": "note", "reason": "a test"}
    duly_client.run(duly_client.asynchronous.call("POST", "/v1/pauses", pause))
    wait_for_pause(duly_server)
    task = duly_client.submit("note", {"what": "a"})
    assert run_inline(worker) == []
    assert task.refresh().state == "READY"
    assert seen == []


def test_what_is_not_handed_out_is_not_silently_skipped(
    duly_client: Client, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty list would be read as: nothing was due."""
    worker, _ = recorder()
    duly_client.submit("note", {"what": "a"})
    monkeypatch.setattr(inline, "PATIENCE_S", 0.2)

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(inline.Shift, "lease", nothing)
    with pytest.raises(NotHandedOut):
        run_inline(worker)


def test_a_handler_that_goes_on_for_ever_is_noticed(
    duly_client: Client, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each snooze makes the next; with a clock that jumps, it never ends."""
    monkeypatch.setattr(inline, "RUNS_MAX", 5)
    worker = Worker()

    @worker.task("again")
    def again(ctx: Context) -> None:
        ctx.snooze(60)

    duly_client.submit("again")
    with pytest.raises(TooManyRuns):
        run_inline(worker, until=timedelta(days=1))


def test_each_test_has_a_tenant_of_its_own(
    duly_server: DulyServer, duly_client: Client, run_inline: RunInline
) -> None:
    """What an earlier test left behind must not run in a later one."""
    stranger = duly_server.make_tenant()
    with Client(stranger.url, stranger.api_key) as other:
        other.submit("note", {"what": "theirs"})
    worker, seen = recorder()
    assert run_inline(worker) == []
    assert seen == []
    assert list(duly_client.tasks()) == []


async def test_a_worker_process_sees_the_moved_clock_as_well(
    duly_tenant: TestTenant, duly_clock: MovableClock
) -> None:
    """A real worker, with its own clock and heartbeats, while time jumps under it."""
    worker, seen = recorder()
    async with AsyncClient() as client:
        task = await client.submit("note", {"what": "a"}, delay_s=86400)
        serving = asyncio.create_task(worker.serve())
        try:
            duly_clock.advance(days=1, minutes=1)
            done = await client.wait(task.id, timeout_s=SOON_S)
        finally:
            worker.stop()
            await serving
    assert done.state == "COMPLETED"
    assert seen == ["a"]


async def test_a_lease_held_while_the_clock_moves_is_lost(
    duly_tenant: TestTenant, duly_clock: MovableClock
) -> None:
    """After a week without a word somebody else has the task, in tests as well."""
    async with AsyncClient() as client:
        task = await client.submit("note", {"what": "a"})
        lease = {"worker_id": "w", "wait_s": 20}
        (leased,) = (await client.call("POST", "/v1/worker/lease", lease))["tasks"]
        duly_clock.advance(days=1)
        async with asyncio.timeout(SOON_S):
            while (await client.get(task.id)).state == "RUNNING":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (attempt,) = await client.attempts(task.id)
        assert attempt.outcome == "lease_lost"
        settle = {"id": leased["id"], "fence": leased["fence"], "outcome": "completed"}
        answer = await client.call(
            "POST", "/v1/worker/settle", {"worker_id": "w", "settlements": [settle]}
        )
        assert answer["items"][0]["status"] == "stale"


def test_the_clock_never_runs_backwards(duly_clock: MovableClock) -> None:
    """Leases and ids rest on it."""
    before = duly_clock.now()
    with pytest.raises(AssertionError):
        duly_clock.advance(-1)
    assert duly_clock.advance_to(before - timedelta(days=1)) >= before
    assert duly_clock.now() - before < timedelta(seconds=LEASE_S)
