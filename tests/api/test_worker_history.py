"""What is kept of workers that are gone: who ran here, in which version, and what came of it."""

from typing import Any
from uuid import UUID

import pytest

from duly.domain.states import Outcome, State
from duly.events import TasksFinished
from duly.execution.worker_leases import SEEN_EVERY_S, SEEN_FOR_S, holder_of
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.worker_history import WorkerBook, delete_old_worker_history
from duly.testing.clock import MovableClock
from tests.api.conftest import Front
from tests.api.explaining import submit
from tests.api.test_worker_registry import deregister, poll

DAY_S = 86400.0


def book(front: Front) -> WorkerBook:
    assert front.door.workers is not None
    return front.door.workers.history


async def history(front: Front, query: str = "") -> list[dict[str, Any]]:
    await book(front).flush(front.database)
    reply = await front.call("GET", f"/v1/workers/history{query}", key=front.operator)
    assert reply.status == 200, reply.body
    items: list[dict[str, Any]] = reply.json["items"]
    return items


async def run_one(front: Front, clock: MovableClock, outcome: str, run_s: float = 2.0) -> None:
    await submit(front)
    await front.make_ready()
    (task,) = await poll(front, "w-1", sdk="duly-python/0.1", version="2026.11", slots=4)
    clock.advance(run_s)
    item = {"id": task["id"], "fence": task["fence"], "outcome": outcome}
    body = {"worker_id": "w-1", "settlements": [item]}
    reply = await front.call("POST", "/v1/worker/settle", body, key=front.worker)
    assert reply.json["items"][0]["status"] == "settled"


async def test_a_worker_that_is_gone_is_still_told_of(
    moving_front: tuple[Front, MovableClock],
) -> None:
    """After the incident the process is gone, and with it which version it was that failed."""
    front, clock = moving_front
    await run_one(front, clock, "completed")
    await run_one(front, clock, "failed")
    clock.advance(SEEN_EVERY_S)
    await deregister(front, "w-1")
    clock.advance(SEEN_FOR_S * 100)
    (worker,) = await history(front)
    assert worker["id"] == "w-1"
    assert (worker["sdk"], worker["version"], worker["slots"]) == ("duly-python/0.1", "2026.11", 4)
    assert (worker["completed"], worker["failed"], worker["other"]) == (1, 1, 0)
    assert worker["pools"] == ["default"]
    assert not worker["is_live"]
    assert worker["busy_s"] == pytest.approx(4.0, abs=0.1)
    assert worker["busy_share"] == pytest.approx(4.0 / (4 * 9.0), rel=0.05)


async def test_counts_of_several_flushes_add_up(moving_front: tuple[Front, MovableClock]) -> None:
    """Each process adds its part: setting the sum would forget the others'."""
    front, clock = moving_front
    for _ in range(2):
        await run_one(front, clock, "completed")
        (worker,) = await history(front)
    assert worker["completed"] == 2
    assert worker["is_live"]


async def test_a_lease_that_ran_out_counts_against_its_worker(front: Front) -> None:
    """A worker that dies says nothing: only the reaper knows, in another process."""
    await poll(front, "w-1")
    await history(front)
    holder = holder_of(front.tenant.id, "w-1")
    lost = Settlement(UUID(int=1), 1, holder, Outcome.LEASE_LOST)
    answer = SettleAnswer(SettleStatus.SETTLED, State.FAILED, tenant=front.tenant.id)
    book(front).on_ended(TasksFinished([lost], [answer], is_reaped=True))
    (worker,) = await history(front)
    assert worker["lost"] == 1


async def test_a_holder_that_is_no_worker_has_no_history(front: Front) -> None:
    """Executors hold leases, too."""
    holder = holder_of(front.tenant.id, "an executor")
    lost = Settlement(UUID(int=1), 1, holder, Outcome.LEASE_LOST)
    answer = SettleAnswer(SettleStatus.SETTLED, State.FAILED, tenant=front.tenant.id)
    book(front).on_ended(TasksFinished([lost], [answer], is_reaped=True))
    assert await history(front) == []


async def test_history_comes_in_pages_last_seen_first(
    moving_front: tuple[Front, MovableClock],
) -> None:
    """A tenant with short-lived workers has thousands."""
    front, clock = moving_front
    for number in range(3):
        await poll(front, f"w-{number}")
        clock.advance(1.0)
    assert [worker["id"] for worker in await history(front)] == ["w-2", "w-1", "w-0"]
    seen, path = [], "/v1/workers/history?limit=2"
    for _ in range(2):
        reply = await front.call("GET", path, key=front.operator)
        seen += [worker["id"] for worker in reply.json["items"]]
        path = f"/v1/workers/history?limit=2&cursor={reply.json['next_cursor']}"
    assert seen == ["w-2", "w-1", "w-0"]


async def test_another_tenant_sees_none_of_it(front: Front) -> None:
    """What a tenant runs is its own business (I9)."""
    await poll(front, "w-1")
    await history(front)
    reply = await front.call("GET", "/v1/workers/history", key=front.other_admin)
    assert reply.json["items"] == []
    assert (await front.call("GET", "/v1/workers/history", key=front.producer)).status == 403


async def test_history_ends_with_retention_and_at_its_bound(
    moving_front: tuple[Front, MovableClock],
) -> None:
    """A worker chooses its own id: without a bound the table grows as fast as one can ask."""
    front, clock = moving_front
    for number in range(4):
        await poll(front, f"w-{number}")
        clock.advance(1.0)
    await history(front)
    assert await delete_old_worker_history(front.database, 100, DAY_S, kept_max=4) == 0
    assert await delete_old_worker_history(front.database, 100, DAY_S, kept_max=3) == 1
    assert [worker["id"] for worker in await history(front)] == ["w-3", "w-2", "w-1"]
    clock.advance(DAY_S)
    assert await delete_old_worker_history(front.database, 2, DAY_S) == 2
    assert await delete_old_worker_history(front.database, 2, DAY_S) == 1
    assert await history(front) == []


@pytest.mark.parametrize("more", [{"sdk": "x" * 65}, {"version": "a b"}, {"slots": -1}])
async def test_what_a_worker_says_of_itself_is_bounded(front: Front, more: dict[str, Any]) -> None:
    """It is stored, and printed on terminals."""
    body = {"worker_id": "w-1", "wait_s": 0, **more}
    reply = await front.call("POST", "/v1/worker/lease", body, key=front.worker)
    assert reply.status == 422
