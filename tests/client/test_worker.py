"""A worker at work, before a real duly: how handlers end, and what becomes of their tasks."""

import asyncio
import logging
import sys
import threading
import time
from typing import Any

import msgspec
import pytest

import duly as duly_package
from duly import AsyncClient, Context, Worker
from duly.client import leased_tasks, worker_api
from duly.client.attempt_logs import PrintedOutput
from duly.client.errors import Unauthenticated
from duly.domain.errors import ConfigurationError
from tests.client import computing
from tests.client.conftest import WAIT_S, MakeWorker, at_work, true_within
from tests.story.duly_up import RunningDuly

FAST = {"backoff": "fixed", "initial_s": 0.0, "jitter": False}


class Invoice(msgspec.Struct):
    number: str
    cents: int


async def outcomes(client: AsyncClient, task_id: str) -> list[str]:
    return [each.outcome for each in sorted(await client.attempts(task_id), key=lambda a: a.fence)]


async def test_what_a_handler_returns_is_the_result(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """The one promise that everything else serves."""
    worker = make_worker()
    seen: list[Context] = []

    @worker.task("invoice.charge")
    async def charge(ctx: Context, invoice: Invoice) -> dict[str, Any]:
        seen.append(ctx)
        return {"charged": invoice.cents, "number": invoice.number}

    @worker.task("sum")
    def add(ctx: Context, a: int, b: int = 2) -> int:
        return a + b

    async with at_work(worker):
        charged = await client.submit(
            "invoice.charge", {"number": "n1", "cents": 5}, pool=pool, idempotency_key=pool
        )
        added = await client.submit("sum", {"a": 1}, pool=pool)
        ended = await client.wait(charged.id, WAIT_S)
        assert ended.output == {"charged": 5, "number": "n1"}
        assert (await client.wait(added.id, WAIT_S)).output == 3
    (ctx,) = seen
    assert (ctx.id, ctx.type, ctx.attempt, ctx.fence) == (charged.id, "invoice.charge", 1, 1)
    assert ctx.execution_key == pool
    assert abs((ctx.scheduled_for - charged.run_at).total_seconds()) < 1
    assert (ctx.last_progress, bool(ctx.cancelled)) == (None, False)


async def test_a_failure_is_tried_again_and_a_rejection_is_not(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """What can never succeed must not be hammered; what can must not be given up."""
    worker = make_worker()
    tries: list[int] = []

    @worker.task("flaky")
    async def flaky(ctx: Context) -> str:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return "at last"

    @worker.task("hopeless")
    async def hopeless(ctx: Context) -> None:
        raise duly_package.Reject("no such customer")

    @worker.task("typed")
    async def typed(ctx: Context, to: str) -> None: ...

    async with at_work(worker):
        first = await client.submit("flaky", pool=pool, retry=FAST)
        second = await client.submit("hopeless", pool=pool)
        third = await client.submit("typed", {"to": 3}, pool=pool)
        assert (await client.wait(first.id, WAIT_S)).output == "at last"
        rejected = await client.wait(second.id, WAIT_S)
        mistyped = await client.wait(third.id, WAIT_S)
    assert tries == [1, 2, 3]
    assert await outcomes(client, first.id) == ["failed", "failed", "completed"]
    assert (rejected.state, rejected.error) == ("FAILED", "no such customer")
    assert (mistyped.state, mistyped.attempt) == ("FAILED", 1)
    assert mistyped.error is not None
    assert mistyped.error.startswith("payload/to: expected `str`")


async def test_a_handlers_policy_and_retry_delay_are_kept(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """A delay that is ignored turns a rate limit into a ban."""
    worker = make_worker()

    @worker.task("limited")
    async def limited(ctx: Context) -> None:
        raise duly_package.Retry("busy", in_s=3600)

    @worker.task("twice", retry={**FAST, "max_attempts": 2})
    async def twice(ctx: Context) -> None:
        raise ValueError("always")

    async with at_work(worker):
        put_off = await client.submit("limited", pool=pool)
        ended = await client.submit("twice", pool=pool)
        assert (await client.wait(ended.id, WAIT_S)).state == "FAILED"
        assert await outcomes(client, ended.id) == ["failed", "rejected"]
        waiting = await until_attempts(client, put_off.id, 1)
        assert waiting.next_at is not None
        assert 3500 < (waiting.next_at - waiting.run_at).total_seconds() < 3700


async def until_attempts(client: AsyncClient, task_id: str, count: int) -> Any:
    async def is_there() -> bool:
        return sum(each.ended_at is not None for each in await client.attempts(task_id)) >= count

    await true_within(is_there)
    return await client.get(task_id)


async def test_a_snooze_is_not_charged_and_progress_is_there_in_the_next_attempt(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """A checkpoint that is lost makes a long task start over each time, for ever."""
    worker = make_worker()
    seen: list[tuple[int, Any]] = []

    @worker.task("stepwise")
    async def stepwise(ctx: Context) -> Any:
        seen.append((ctx.attempt, ctx.last_progress))
        if ctx.last_progress is None:
            ctx.progress({"page": 7})
            ctx.snooze(0)
        if ctx.attempt == 1:
            ctx.progress({"page": 8})
            raise RuntimeError("half way")
        return ctx.last_progress

    async with at_work(worker):
        task = await client.submit("stepwise", pool=pool, retry=FAST)
        assert (await client.wait(task.id, WAIT_S)).output == {"page": 8}
    assert seen == [(1, None), (1, {"page": 7}), (2, {"page": 8})]
    assert await outcomes(client, task.id) == ["snoozed", "failed", "completed"]


async def test_progress_is_seen_while_the_handler_runs(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """A user watches progress, and decides whether to cancel."""
    worker = make_worker()
    is_enough = asyncio.Event()

    @worker.task("long")
    async def long(ctx: Context) -> None:
        ctx.progress(40)
        with pytest.raises(ValueError, match="4096"):
            ctx.progress("x" * 5000)
        with pytest.raises(ValueError, match=r"U\+0000"):
            # Sent, it would be refused together with the heartbeats of all the others.
            ctx.progress("\x00")
        await is_enough.wait()

    async with at_work(worker):
        task = await client.submit("long", pool=pool)

        async def is_seen() -> bool:
            return bool((await client.get(task.id)).progress == 40)

        await true_within(is_seen)
        is_enough.set()
        assert (await client.wait(task.id, WAIT_S)).state == "COMPLETED"


async def test_a_type_without_a_handler_is_put_off_and_not_failed(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """In the middle of a deployment the old workers must not dead-letter what the new ones know."""
    worker = make_worker()

    @worker.task("known")
    async def known(ctx: Context) -> None: ...

    async with at_work(worker):
        task = await client.submit("unknown", pool=pool)
        waiting = await until_attempts(client, task.id, 1)
        assert waiting.state == "SCHEDULED"
        assert (waiting.next_at - waiting.run_at).total_seconds() > 10
    assert await outcomes(client, task.id) == ["snoozed"]


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_cancelled_task_stops_its_handler(
    client: AsyncClient, make_worker: MakeWorker, pool: str, mode: str
) -> None:
    """Cancelled on the screen and still charging cards is worse than no button at all."""
    worker = make_worker()
    started, seen = threading.Event(), []

    async def waits(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            seen.append(bool(ctx.cancelled))
            raise

    def loops(ctx: Context) -> None:
        started.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            seen.append(bool(ctx.cancelled))

    worker.task("endless")(waits if mode == "async" else loops)
    async with at_work(worker):
        task = await client.submit("endless", pool=pool)
        await asyncio.to_thread(started.wait, WAIT_S)
        assert (await client.cancel(task.id)).cancel_requested
        assert (await client.wait(task.id, WAIT_S)).state == "CANCELLED"
    assert seen == [True]
    assert await outcomes(client, task.id) == ["cancelled"]


@pytest.mark.parametrize("mode", ["async", "thread"])
@pytest.mark.parametrize("whose", ["task", "handler"])
async def test_an_attempt_over_its_time_is_a_failure_that_says_so(
    client: AsyncClient, make_worker: MakeWorker, pool: str, mode: str, whose: str
) -> None:
    """Found out by the lease alone it would say nothing, and come seconds later."""
    worker = make_worker(lease_s=10.0)

    async def waits(ctx: Context) -> None:
        await asyncio.sleep(WAIT_S)

    def loops(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.001)

    register = worker.task("slow", timeout_s=0.4 if whose == "handler" else None)
    register(waits if mode == "async" else loops)
    allowed_s = 0.4 if whose == "task" else 60.0
    async with at_work(worker):
        task = await client.submit(
            "slow", pool=pool, retry={"max_attempts": 1}, timeout_s=allowed_s
        )
        ended = await client.wait(task.id, WAIT_S)
    assert (ended.state, ended.error) == ("FAILED", "timed out after 0.4 s")
    assert await outcomes(client, task.id) == ["failed"]


async def test_no_more_handlers_run_at_once_than_allowed_and_few_tasks_wait_here(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """What one busy worker hoards, an idle one cannot do."""
    worker = make_worker(concurrency=3, prefetch=2)
    running, most, held = 0, 0, 0

    @worker.task("short")
    async def short(ctx: Context) -> None:
        nonlocal running, most, held
        running += 1
        most = max(most, running)
        assert worker.session is not None
        runner = worker.session.runner
        held = max(held, len(runner.running) + len(runner.queue))
        await asyncio.sleep(0.002)
        running -= 1

    async with at_work(worker):
        tasks = await client.submit_many([{"type": "short", "pool": pool} for _ in range(60)])
        for task in tasks:
            assert (await client.wait(task.id, WAIT_S)).state == "COMPLETED"
    assert most == 3
    assert held <= 5


async def test_an_exit_inside_a_handler_ends_only_the_handler(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """A library that calls sys.exit must not take a hundred other attempts with it."""
    worker = make_worker()

    @worker.task("exits")
    async def exits(ctx: Context) -> None:
        raise SystemExit(3)

    @worker.task("plain.exits")
    def plain_exits(ctx: Context) -> None:
        raise KeyboardInterrupt

    @worker.task("fine")
    async def fine(ctx: Context) -> None: ...

    async with at_work(worker):
        for kind in ("exits", "plain.exits"):
            task = await client.submit(kind, pool=pool, retry={"max_attempts": 1})
            assert (await client.wait(task.id, WAIT_S)).state == "FAILED"
        after = await client.submit("fine", pool=pool)
        assert (await client.wait(after.id, WAIT_S)).state == "COMPLETED"


async def test_a_cancelled_service_releases_what_it_holds(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """Inside somebody's web server the worker ends by cancellation, and must leave nothing."""
    worker = make_worker(drain_s=0.4, concurrency=2)
    started: list[str] = []
    stopped: list[bool] = []

    @worker.task("long")
    async def long(ctx: Context) -> None:
        started.append(ctx.id)
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            stopped.append(bool(ctx.cancelled))

    serving = asyncio.create_task(worker.serve())
    tasks = await client.submit_many([{"type": "long", "pool": pool} for _ in range(2)])
    await true_within(lambda: len(started) == 2)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert stopped == [True, True]
    for task in tasks:
        assert await outcomes(client, task.id) == ["released"]
        assert (await client.get(task.id)).attempt == 0


@pytest.mark.parametrize("path", [leased_tasks.DEREGISTER, "/v1/worker/of-a-later-server"])
async def test_a_drained_worker_is_gone_from_the_list(
    client: AsyncClient,
    make_worker: MakeWorker,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    """Its pool would seem to be served; an older server, without the call, is no reason to fail."""
    monkeypatch.setattr(worker_api, "DEREGISTER", path)
    worker = make_worker()
    worker.task("a.b")(lambda _ctx: None)

    async def is_live() -> bool:
        items = (await client.call("GET", "/v1/workers"))["items"]
        return any(item["pools"] == [pool] for item in items)

    async with at_work(worker):
        await true_within(is_live)
    assert await is_live() == (path != leased_tasks.DEREGISTER)


async def test_a_worker_takes_only_the_bands_it_names(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """Workers kept free for what is urgent were filled with what is not."""
    started: list[int] = []
    urgent, other = make_worker(bands=["high"]), make_worker(bands=["normal", "low"])
    for worker in (urgent, other):
        worker.task("a.b")(lambda _ctx, number: started.append(number))
    target = {"pool": pool}
    async with at_work(urgent):
        low = await client.submit("a.b", {"number": 1}, priority=2, target=target)
        await client.submit("a.b", {"number": 2}, priority=7, target=target)
        await true_within(lambda: started)
        assert started == [2]
    async with at_work(other):
        await true_within(lambda: len(started) == 2)
    assert (await client.get(low.id)).state == "COMPLETED"


async def test_a_wrong_key_is_said_at_once(duly: RunningDuly) -> None:
    """A worker that tries for ever with a key that was revoked looks healthy, and does nothing."""
    worker = duly_package.Worker(duly.url, "duly_aaaaaaaaaaaa_" + "b" * 43)
    worker.task("any")(computing.add)
    with pytest.raises(Unauthenticated):
        await worker.serve()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"lease_s": 0.1}, "lease_s"),
        ({"pools": ["No Such"]}, "pool"),
        ({"pools": []}, "pools"),
        ({"bands": []}, "bands"),
        ({"bands": ["urgent"]}, "high, normal, low"),
    ],
)
async def test_a_worker_that_could_not_work_does_not_start(
    make_worker: MakeWorker, options: dict[str, Any], problem: str
) -> None:
    """Said in one line, before anything is leased."""
    worker = make_worker(**options)
    worker.task("any")(computing.add)
    with pytest.raises(ConfigurationError, match=problem):
        await worker.serve()


def test_what_is_wrong_with_a_handler_is_said_where_it_is_written() -> None:
    """Not by the first task of that type, in the night."""
    worker = duly_package.Worker()
    worker.task("a")(computing.add)
    with pytest.raises(ConfigurationError, match="two handlers"):
        worker.task("a")(computing.add)
    wrong: list[dict[str, Any]] = [
        {"run": "fork"},
        {"run": "async"},
        {"timeout_s": 0},
        {"retry": {"tries": 1}},
        {"retry": {"max_attempts": 0}},
    ]
    for options in wrong:
        with pytest.raises(ConfigurationError, match="'b'"):
            worker.task("b", **options)(computing.add)
    with pytest.raises(ConfigurationError, match="does not match"):
        worker.task("No Type")(computing.add)


async def test_what_a_handler_logs_is_kept_with_its_attempt(
    client: AsyncClient, make_worker: MakeWorker, pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The one line that explains a failure was in the log of a process that is gone."""
    caplog.set_level("INFO")
    worker = make_worker()

    @worker.task("talkative")
    async def talkative(ctx: Context) -> None:
        ctx.log.info("began", customer=7)
        logging.getLogger("of.the.program").warning("odd: %s", "value")
        await asyncio.to_thread(logging.getLogger("in.a.thread").info, "also here")

    @worker.task("plain")
    def plain(ctx: Context) -> None:
        logging.getLogger("of.the.program").error("from a thread")

    async with at_work(worker):
        first = await client.submit("talkative", pool=pool)
        second = await client.submit("plain", pool=pool)
        await client.wait(first.id, WAIT_S)
        await client.wait(second.id, WAIT_S)
    page = await client.call("GET", f"/v1/tasks/{first.id}/logs")
    assert [(line["level"], line["text"]) for line in page["items"]] == [
        ("info", "began customer=7"),
        ("warning", "odd: value"),
        ("info", "also here"),
    ]
    page = await client.call("GET", f"/v1/tasks/{second.id}/logs")
    assert [(line["level"], line["text"]) for line in page["items"]] == [("error", "from a thread")]


async def kept_lines(client: AsyncClient, task_id: str) -> list[tuple[str, str]]:
    page = await client.call("GET", f"/v1/tasks/{task_id}/logs")
    return [(line["level"], line["text"]) for line in page["items"]]


async def test_what_a_handler_prints_is_kept_with_its_attempt(
    client: AsyncClient, make_worker: MakeWorker, pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most programs print: their output was with a container that is gone."""
    worker = make_worker(redact=[r"\b\d{13,19}\b"])

    @worker.task("printing")
    async def printing(ctx: Context) -> None:
        print("two\nlines, and", end=" ")
        print("an end")
        await asyncio.sleep(0)
        print("card 4111111111111111, unfinished", end="")
        ctx.log.info("paid", card_token="4111", amount=7)

    @worker.task("plainly.printing")
    def plainly(ctx: Context) -> None:
        print("from a thread")

    worker.task("computing.printing", run="process")(computing.talk)
    ids = {}
    async with at_work(worker):
        print("not of any attempt")
        for name in ("printing", "plainly.printing", "computing.printing"):
            ids[name] = (await client.submit(name, pool=pool)).id
        for task_id in ids.values():
            await client.wait(task_id, WAIT_S)
    assert await kept_lines(client, ids["printing"]) == [
        ("stdout", "two"),
        ("stdout", "lines, and an end"),
        ("info", "paid card_token=[redacted] amount=7"),
        ("stdout", "card [redacted], unfinished"),
    ]
    assert await kept_lines(client, ids["plainly.printing"]) == [("stdout", "from a thread")]
    assert await kept_lines(client, ids["computing.printing"]) == [
        ("stdout", "printed in a process"),
        ("warning", "logged in a process"),
        ("info", "by its context"),
    ]
    assert "card 4111111111111111" in capsys.readouterr().out, "the program's own output stays"
    assert not isinstance(sys.stdout, PrintedOutput), "no worker is left that captures"


def test_an_expression_that_is_none_is_refused_at_the_start() -> None:
    """A rule that silently matches nothing leaks what it was written for."""
    worker = Worker(redact=["(unclosed"])
    worker.task("a")(computing.add)
    with pytest.raises(ConfigurationError, match="redact"):
        worker.plan()


@pytest.mark.parametrize("way", ["async", "thread"])
async def test_the_error_of_an_attempt_begins_in_the_handler(
    client: AsyncClient, make_worker: MakeWorker, pool: str, way: str
) -> None:
    """Frames of the worker, the same for every failure, stand before the one line that matters."""
    worker = make_worker()

    def boom() -> None:
        raise RuntimeError("boom")

    if way == "async":

        @worker.task("boom", retry={"max_attempts": 1})
        async def awaited(ctx: Context) -> None:
            boom()

    else:

        @worker.task("boom", retry={"max_attempts": 1})
        def plain(ctx: Context) -> None:
            boom()

    async with at_work(worker):
        task = await client.submit("boom", pool=pool)
        ended = await client.wait(task.id, WAIT_S)
    assert ended.error is not None
    frames = [line for line in ended.error.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2, ended.error
    assert all("test_worker.py" in frame for frame in frames)
