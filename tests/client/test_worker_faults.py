"""A worker whose server is slow, silent or gone, and whose own handlers misbehave."""

import asyncio
import threading
import time

from duly import AsyncClient, Context
from tests.client.conftest import WAIT_S, MakeWorker, at_work, true_within
from tests.client.proxy import Proxy
from tests.client.test_worker import FAST, outcomes


async def test_a_handler_is_stopped_before_its_lease_runs_out(
    client: AsyncClient, make_worker: MakeWorker, pool: str, proxy: Proxy
) -> None:
    """Cut off from the server, two workers would run the same task, each sure that it may."""
    worker = make_worker(proxy.url, lease_s=2.0)
    started = threading.Event()
    stopped: dict[str, float] = {}

    @worker.task("async.one")
    async def waits(ctx: Context) -> None:
        if ctx.attempt > 1 or "async" in stopped:
            return
        started.set()
        try:
            await asyncio.sleep(WAIT_S)
        finally:
            stopped["async"] = time.monotonic()

    @worker.task("thread.one")
    def loops(ctx: Context) -> None:
        if ctx.attempt > 1 or "thread" in stopped:
            return
        try:
            while True:
                time.sleep(0.001)
        finally:
            stopped["thread"] = time.monotonic()

    async with at_work(worker):
        tasks = [await client.submit(kind, pool=pool) for kind in ("async.one", "thread.one")]
        await asyncio.to_thread(started.wait, WAIT_S)
        assert worker.session is not None
        book = worker.session.book
        await true_within(lambda: len(book.held) == 2)
        proxy.fall_silent()
        fell_silent_at = time.monotonic()
        await true_within(lambda: len(stopped) == 2)
        # Of the lease that its last heartbeat brought, before its end and not long before.
        assert all(at - fell_silent_at < 2.0 for at in stopped.values())
        for task in tasks:
            held = await client.get(task.id)
            assert held.state == "RUNNING", "the server still believed in the lease"
        proxy.speak()
        for task in tasks:
            assert (await client.wait(task.id, WAIT_S)).state == "COMPLETED"
    for task in tasks:
        assert (await outcomes(client, task.id))[-1] == "completed"


async def test_heartbeats_go_on_while_a_handler_blocks_the_loop(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """One forgotten time.sleep, and every lease of the worker would be lost."""
    worker = make_worker(lease_s=1.0)

    @worker.task("blocks")
    async def blocks(ctx: Context) -> int:
        time.sleep(3.0)  # noqa: ASYNC251 (that is the point)
        return ctx.fence

    async with at_work(worker):
        task = await client.submit("blocks", pool=pool)
        assert (await client.wait(task.id, WAIT_S)).output == 1
    assert await outcomes(client, task.id) == ["completed"]


async def test_an_answer_that_gets_lost_brings_its_leases_again(
    client: AsyncClient, make_worker: MakeWorker, pool: str, proxy: Proxy
) -> None:
    """Else each lost answer costs an attempt of every task in it, and a lease's time."""
    worker = make_worker(proxy.url, lease_s=15.0)

    @worker.task("once")
    async def once(ctx: Context) -> int:
        return ctx.fence

    proxy.loses = b"/v1/worker/lease"
    tasks = await client.submit_many([{"type": "once", "pool": pool} for _ in range(5)])
    async with at_work(worker):
        for task in tasks:
            assert (await client.wait(task.id, 10)).output == 1
    assert proxy.lost == 1


async def test_a_settlement_whose_answer_gets_lost_is_told_again(
    client: AsyncClient, make_worker: MakeWorker, pool: str, proxy: Proxy
) -> None:
    """The second time it is a replay; the worker must not take that for somebody else's end."""
    worker = make_worker(proxy.url)
    runs: list[str] = []

    @worker.task("once")
    async def once(ctx: Context) -> None:
        runs.append(ctx.id)

    proxy.loses = b"/v1/worker/settle"
    async with at_work(worker):
        task = await client.submit("once", pool=pool)
        assert (await client.wait(task.id, WAIT_S)).state == "COMPLETED"
        assert worker.session is not None
        book = worker.session.book
        await true_within(lambda: proxy.lost == 1 and not book.held)
    assert runs == [task.id]


async def test_a_lease_that_comes_again_is_not_started_again(
    client: AsyncClient, make_worker: MakeWorker, pool: str, proxy: Proxy
) -> None:
    """A server that restarted hands out once more what it believes nobody saw."""
    worker = make_worker(proxy.url, lease_s=15.0)
    runs: list[str] = []
    is_enough = asyncio.Event()

    @worker.task("long")
    async def long(ctx: Context) -> None:
        runs.append(ctx.id)
        await is_enough.wait()

    async with at_work(worker):
        task = await client.submit("long", pool=pool)
        await true_within(lambda: runs)
        # The next poll is cut: its repetition asks for everything unconfirmed of this worker.
        proxy.cut()
        other = await client.submit("long", pool=pool)
        await true_within(lambda: len(runs) == 2)
        is_enough.set()
        for each in (task, other):
            assert (await client.wait(each.id, WAIT_S)).state == "COMPLETED"
    assert sorted(runs) == sorted([task.id, other.id])


async def test_a_handler_that_ignores_its_end_does_not_hold_its_task(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """It keeps its slot, for it still runs; but its attempt is over and said to be."""
    worker = make_worker(lease_s=5.0, concurrency=2)
    is_enough = asyncio.Event()

    @worker.task("stubborn", timeout_s=30)
    async def stubborn(ctx: Context) -> str:
        if ctx.attempt == 2:
            return "second"
        while not is_enough.is_set():
            try:
                await is_enough.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    async with at_work(worker):
        task = await client.submit("stubborn", pool=pool, timeout_s=1.0, retry=FAST)
        assert (await client.wait(task.id, WAIT_S)).output == "second"
        is_enough.set()
    assert await outcomes(client, task.id) == ["failed", "completed"]


async def test_a_task_that_comes_after_a_long_wait_has_all_of_its_time(
    client: AsyncClient, make_worker: MakeWorker, pool: str
) -> None:
    """Counted from when the poll was sent, its lease and its time would be over on arrival."""
    worker = make_worker(lease_s=1.0)

    @worker.task("short")
    async def short(ctx: Context) -> int:
        await asyncio.sleep(0.3)
        return ctx.fence

    async with at_work(worker):
        await true_within(lambda: worker.session is not None and worker.session.taking.request)
        # Longer than the lease and than the time limit: it is the waiting itself that is tested.
        await asyncio.sleep(1.2)
        task = await client.submit("short", pool=pool, timeout_s=0.8)
        assert (await client.wait(task.id, WAIT_S)).output == 1
    assert await outcomes(client, task.id) == ["completed"]


async def test_a_silent_server_does_not_hold_up_the_end(
    client: AsyncClient, make_worker: MakeWorker, pool: str, proxy: Proxy
) -> None:
    """The supervisor's patience ends with a kill -9, which is worse."""
    worker = make_worker(proxy.url, lease_s=10.0, drain_s=1.0)
    started: list[str] = []

    @worker.task("long")
    async def long(ctx: Context) -> None:
        started.append(ctx.id)
        await asyncio.sleep(WAIT_S)

    serving = asyncio.create_task(worker.serve())
    await client.submit("long", pool=pool)
    await true_within(lambda: started)
    proxy.fall_silent()
    stopped_at = time.monotonic()
    worker.stop()
    await serving
    assert time.monotonic() - stopped_at < 2.5
