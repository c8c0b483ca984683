"""Which workers count as live: those that ask or hold, and none that said goodbye or hung up."""

import asyncio
from typing import Any

from duly.execution.worker_leases import HUNG_UP_FOR_S, SEEN_FOR_S
from duly.testing.clock import MovableClock
from tests.api.conftest import Front
from tests.api.explaining import bound, explained, own_slots, submit

HANG_UP_S = 10.0


async def poll(front: Front, worker_id: str, **more: Any) -> list[dict[str, Any]]:
    body = {"worker_id": worker_id, "wait_s": 0, **more}
    reply = await front.call("POST", "/v1/worker/lease", body, key=front.worker)
    assert reply.status == 200, reply.body
    tasks: list[dict[str, Any]] = reply.json["tasks"]
    return tasks


async def deregister(front: Front, worker_id: str, key: str | None = None) -> int:
    body = {"worker_id": worker_id}
    reply = await front.call("POST", "/v1/worker/deregister", body, key=key or front.worker)
    return reply.status


async def live_workers(front: Front) -> list[str]:
    reply = await front.call("GET", "/v1/workers", key=front.operator)
    return [worker["id"] for worker in reply.json["items"]]


async def test_a_drained_worker_is_not_live_any_more(front: Front) -> None:
    """For a minute after the last deployment of a pool, its tasks seemed to be on their way."""
    await own_slots(front)
    await poll(front, "w-1")
    task_id = await submit(front)
    assert await live_workers(front) == ["w-1"]
    assert (await explained(front, task_id))["binding"] is None
    assert await deregister(front, "w-1") == 204
    assert await live_workers(front) == []
    answer = await explained(front, task_id)
    assert answer["binding"] == "no_live_worker"
    assert "no worker serves the pool default since 20" in bound(answer)["reason"]


async def test_a_worker_may_deregister_twice_and_come_back(front: Front) -> None:
    """An answer that got lost is asked for again; an id may be used for a second start."""
    assert await deregister(front, "w-1") == 204
    await poll(front, "w-1")
    assert [await deregister(front, "w-1") for _ in range(2)] == [204, 204]
    await poll(front, "w-1")
    assert await live_workers(front) == ["w-1"]


async def test_no_worker_deregisters_one_of_another_tenant(front: Front) -> None:
    """The same id in two tenants is two workers (I9)."""
    await poll(front, "w-1")
    assert await deregister(front, "w-1", key=front.other_admin) in (204, 403)
    theirs = await front.make_key(front.other, "worker")
    assert await deregister(front, "w-1", key=theirs) == 204
    assert await live_workers(front) == ["w-1"]
    assert await deregister(front, "w-1", key=front.producer) == 403


async def test_a_worker_that_only_sends_heartbeats_stays_live(
    moving_front: tuple[Front, MovableClock],
) -> None:
    """With all handlers busy it asks for nothing, and would be missed while it works."""
    front, clock = moving_front
    await submit(front, timeout_s=600)
    await front.make_ready()
    (task,) = await poll(front, "w-1", lease_s=60)
    beat = {"id": task["id"], "fence": task["fence"]}
    body = {"worker_id": "w-1", "leases": [beat], "lease_s": 60}
    for _ in range(3):
        clock.advance(SEEN_FOR_S * 2 / 3)
        await front.call("POST", "/v1/worker/heartbeat", body, key=front.worker)
    assert await live_workers(front) == ["w-1"]
    await deregister(front, "w-1")
    clock.advance(SEEN_FOR_S / 2)
    await front.call("POST", "/v1/worker/heartbeat", body, key=front.worker)
    assert await live_workers(front) == []


async def test_a_silent_worker_is_missed(moving_front: tuple[Front, MovableClock]) -> None:
    """A process that was killed says nothing more."""
    front, clock = moving_front
    await poll(front, "w-1")
    clock.advance(SEEN_FOR_S + 1)
    assert await live_workers(front) == []


async def test_a_worker_that_hangs_up_is_missed_soon(
    moving_front: tuple[Front, MovableClock],
) -> None:
    """A killed process closes its connection; one that lost it comes again at once."""
    front, clock = moving_front
    polling = asyncio.ensure_future(poll(front, "w-1", wait_s=20))
    async with asyncio.timeout(HANG_UP_S):
        while not front.queue.waiting():  # noqa: ASYNC110 (until the poll waits)
            await asyncio.sleep(0.005)
        polling.cancel()
        while front.queue.waiting():  # noqa: ASYNC110 (until the hang-up has arrived)
            await asyncio.sleep(0.005)
    assert await live_workers(front) == ["w-1"]
    clock.advance(HUNG_UP_FOR_S + 1)
    async with asyncio.timeout(HANG_UP_S):
        while await live_workers(front):  # noqa: ASYNC110 (until its time is over)
            await asyncio.sleep(0.005)
    await poll(front, "w-1")
    assert await live_workers(front) == ["w-1"]
