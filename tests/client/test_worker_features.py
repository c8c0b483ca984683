"""Middleware, resources, schedules in code, and what a worker logs."""

import asyncio
import contextvars
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import duly
from duly import AsyncClient, Context, TaskRegistry, Worker, inject, resource
from duly.client.logs import LINES_PER_S_MAX
from duly.client.outcomes import HandlerOutcome
from duly.domain.errors import ConfigurationError
from tests.client.conftest import at_work, true_within
from tests.client.proxy import Proxy
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0
MakeWorker = Callable[..., Worker]
trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")


def nothing(ctx: Context) -> None: ...


async def test_middleware_surrounds_every_attempt(make_worker: MakeWorker) -> None:
    """An error tracker that misses handlers in threads, or their exceptions, is none."""
    worker, seen = make_worker(), []

    @worker.before
    def first(ctx: Context) -> None:
        seen.append(("before", ctx.type))

    @worker.around
    def outer(ctx: Context) -> Iterator[None]:
        trace.set("outer")
        try:
            yield
        except ValueError as error:
            seen.append(("caught", str(error)))
            raise

    @worker.around
    def inner(ctx: Context) -> Iterator[None]:
        seen.append(("inner", trace.get()))
        yield

    @worker.after
    def last(ctx: Context, outcome: HandlerOutcome) -> None:
        seen.append(("after", outcome.outcome))
        raise RuntimeError("logged, and no more")

    @worker.task("in.loop")
    async def in_loop(ctx: Context) -> str:
        return trace.get()

    @worker.task("in.thread", retry={"max_attempts": 1})
    def in_thread(ctx: Context) -> None:
        raise ValueError(trace.get())

    async with at_work(worker):
        assert await (await in_loop.asubmit()).result(WAIT_S) == "outer"
        assert seen == [("before", "in.loop"), ("inner", "outer"), ("after", "completed")]
        seen.clear()
        with pytest.raises(duly.TaskFailed, match="ValueError: outer"):
            await (await in_thread.asubmit()).result(WAIT_S)
    assert seen == [
        ("before", "in.thread"),
        ("inner", "outer"),
        ("caught", "outer"),
        ("after", "rejected"),
    ]


async def test_middleware_may_refuse_and_may_be_async(make_worker: MakeWorker) -> None:
    """Who has no right to a task must not be run first."""
    worker = make_worker()

    @worker.before
    async def refuse(ctx: Context) -> None:
        await asyncio.sleep(0)
        raise duly.Reject("not for you")

    @worker.around
    async def opened(ctx: Context) -> AsyncIterator[None]:
        yield

    @worker.task("a.b")
    async def never(ctx: Context) -> None:
        raise AssertionError("it ran")

    async with at_work(worker):
        with pytest.raises(duly.TaskFailed, match="not for you"):
            await (await never.asubmit()).result(WAIT_S)
    worker.task("c.d")(nothing)
    with pytest.raises(
        ConfigurationError, match=r"refuse is async, and the handler of 'c\.d' is not"
    ):
        await worker.serve()


async def test_after_hears_of_time_limits(make_worker: MakeWorker) -> None:
    """What never returned is what a metric is wanted for."""
    worker = make_worker()
    heard: asyncio.Queue[HandlerOutcome] = asyncio.Queue()
    worker.after(lambda _, outcome: heard.put_nowait(outcome))

    @worker.task("slow", timeout_s=0.2, retry={"max_attempts": 1})
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(WAIT_S)

    async with at_work(worker):
        await slow.asubmit()
        async with asyncio.timeout(WAIT_S):
            assert (await heard.get()).kind == "TimedOut"


async def test_resources_are_started_once_and_injected(make_worker: MakeWorker) -> None:
    """A pool of connections that each handler makes for itself is no pool."""
    steps = []

    @resource
    async def database() -> AsyncIterator[str]:
        steps.append("open database")
        yield "a database"
        steps.append("close database")

    @resource
    def cache(database: str = inject(database)) -> Iterator[list[str]]:
        steps.append("open cache")
        yield [database]
        steps.append("close cache")

    @resource
    async def number() -> int:
        return 7

    worker = make_worker()

    @worker.task("in.loop")
    async def in_loop(ctx: Context, to: str, cache: list[str] = inject(cache)) -> list[str]:
        return [*cache, to]

    @worker.task("in.thread")
    def in_thread(
        ctx: Context, *, number: int = inject(number), name: str = inject(database)
    ) -> str:
        return f"{name} {number}"

    async with at_work(worker):
        first = await in_loop.asubmit("x")
        assert first.payload == {"to": "x"} or first.payload is None
        assert await first.result(WAIT_S) == ["a database", "x"]
        assert await (await in_thread.asubmit()).result(WAIT_S) == "a database 7"
        with pytest.raises(TypeError, match="unexpected keyword argument 'cache'"):
            in_loop.call("x", cache=["mine"])
    assert steps == ["open database", "open cache", "close cache", "close database"]
    assert in_thread(None, number=1, name="mine") == "mine 1"


async def test_a_resource_that_does_not_start_stops_the_worker(make_worker: MakeWorker) -> None:
    """A worker that leases tasks without its database fails them all."""
    worker = make_worker()

    @resource
    async def database() -> None:
        raise OSError("no database")

    @worker.task("a.b")
    async def handler(ctx: Context, db: None = inject(database)) -> None: ...

    with pytest.raises(OSError, match="no database"):
        await worker.serve()

    with pytest.raises(ConfigurationError, match="a process has no resources"):

        @worker.task("c.d", run="process")
        def other(ctx: Context, db: None = inject(database)) -> None: ...


def scheduled(tasks: TaskRegistry, name: str, rule: str) -> None:
    @tasks.cron(rule, name=name, timezone="Europe/Berlin", arguments={"kind": "daily"})
    @tasks.task(f"report.{len(tasks.schedules)}")
    async def report(ctx: Context, kind: str, copies: int = 1) -> None: ...


async def has_rule(client: AsyncClient, name: str, rule: str) -> bool:
    found = await client.schedules.find(name)
    return found is not None and found.cron == rule


async def test_schedules_in_code_are_upserted_by_name_at_the_start(
    make_worker: MakeWorker, client: AsyncClient, pool: str
) -> None:
    """A rule that is kept in two places is changed in one of them."""
    name = f"report of {pool}"
    for rule, action in (("0 9 * * *", "create"), ("0 10 * * *", "change")):
        worker = make_worker()
        scheduled(worker, name, rule)
        planned = await asyncio.to_thread(worker.plan_schedules)
        assert [step.action for step in planned] == [action]
        async with at_work(worker):
            await true_within(functools.partial(has_rule, client, name, rule))
            assert [each.action for each in await asyncio.to_thread(worker.plan_schedules)] == [
                "unchanged"
            ]
    found = await client.schedules.find(name)
    assert found is not None
    assert (found.cron, found.timezone) == ("0 10 * * *", "Europe/Berlin")
    assert found.task["payload"] == {"kind": "daily"}
    assert found.task["target"]["pool"] == pool
    await client.schedules.delete(found.id)


async def test_a_key_that_may_not_write_schedules_stops_the_worker(
    duly: RunningDuly, client: AsyncClient, pool: str
) -> None:
    """A schedule that silently is not there is missed in the night it was for."""
    key = await client.keys.create(f"worker of {pool}", "worker")
    worker = Worker(duly.url, key.key, pools=[pool])
    scheduled(worker, f"report of {pool}", "0 9 * * *")
    with pytest.raises(ConfigurationError, match=r"cannot be written: .*apply_schedules=False"):
        await worker.serve()


def test_schedules_of_a_worker_have_names_of_their_own_and_fitting_arguments() -> None:
    """Two rules under one name would take turns, at each start of a worker."""
    worker = Worker()
    scheduled(worker, "a report", "0 9 * * *")
    with pytest.raises(ConfigurationError, match="two schedules named 'a report'"):
        scheduled(worker, "a report", "0 9 * * *")
    other = TaskRegistry()
    scheduled(other, "a report", "0 9 * * *")
    other.handlers.clear()
    with pytest.raises(ConfigurationError, match="two schedules named 'a report'"):
        worker.include(other)
    with pytest.raises(ConfigurationError, match="above task"):
        worker.every(5)(nothing)
    with pytest.raises(TypeError, match="missing a required argument: 'kind'"):

        @worker.every(60)
        @worker.task("a.b")
        def handler(ctx: Context, kind: str) -> None: ...


async def test_success_is_logged_and_a_flood_of_it_is_summed_up(
    make_worker: MakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that says nothing looks like one that does nothing."""
    caplog.set_level(logging.INFO, "duly.worker")
    worker = make_worker()

    @worker.task("a.b")
    async def handler(ctx: Context, number: int) -> None: ...

    many = 3 * LINES_PER_S_MAX
    async with at_work(worker):
        for task in await handler.asubmit_many(handler.call(n) for n in range(many)):
            await task.result(WAIT_S)
    lines = [each.getMessage() for each in caplog.records]
    single = [line for line in lines if "'attempt completed'" in line]
    summed = [int(line.partition("count=")[2]) for line in lines if "more attempts" in line]
    assert LINES_PER_S_MAX <= len(single) <= many
    assert len(single) + sum(summed) == many
    assert "type='a.b'" in single[0]


async def test_a_server_that_is_back_is_logged(
    make_worker: MakeWorker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """After the warning of an outage, its end is what an operator waits for."""
    caplog.set_level(logging.INFO, "duly.worker")
    worker = make_worker(proxy.url)
    worker.task("a.b")(nothing)

    def lines(text: str) -> bool:
        return any(text in each.getMessage() for each in caplog.records)

    async with at_work(worker):
        await true_within(lambda: lines("worker started"))
        proxy.cut()
        await true_within(lambda: lines("failed"))
        await true_within(lambda: lines("server reachable again"))
