"""Workers over HTTP: one holder at a time, lost answers found again, late words without effect."""

import asyncio
from typing import Any

import pytest

from duly.domain.lanes import Lane, Ticket
from duly.domain.limits import RESULT_BYTES_MAX
from duly.domain.task import NORMAL, Submission
from duly.store.async_webhooks import accept_async
from duly.store.insert import IdleConsumer, InsertRow
from duly.store.lease import ACCEPTED_ASYNC, lease_tasks
from duly.store.stats import Ending
from duly.store.submit import Stored, Submitter
from tests.api.conftest import Front, Reply


async def ready_task(front: Front, key: str | None = None, **more: Any) -> str:
    body = {"type": "a.b", "payload": {"n": 1}, **more}
    reply = await front.call("POST", "/v1/tasks", body, key=key or front.producer)
    await front.make_ready()
    task_id: str = reply.json["id"]
    return task_id


async def lease(front: Front, worker_id: str = "w1", **more: Any) -> list[dict[str, Any]]:
    body = {"worker_id": worker_id, "wait_s": 0, **more}
    reply = await front.call("POST", "/v1/worker/lease", body, key=front.worker)
    assert reply.status == 200, reply.body
    tasks: list[dict[str, Any]] = reply.json["tasks"]
    return tasks


async def settle(
    front: Front, task: dict[str, Any], worker_id: str = "w1", key: str | None = None, **more: Any
) -> Reply:
    item = {"id": task["id"], "fence": task["fence"], "outcome": "completed", **more}
    body = {"worker_id": worker_id, "settlements": [item]}
    return await front.call("POST", "/v1/worker/settle", body, key=key or front.worker)


async def beat(front: Front, task: dict[str, Any], worker_id: str = "w1", **more: Any) -> Any:
    item = {"id": task["id"], "fence": task["fence"], **more}
    body = {"worker_id": worker_id, "leases": [item]}
    reply = await front.call("POST", "/v1/worker/heartbeat", body, key=front.worker)
    return reply.json["items"][0]


async def test_a_leased_task_carries_what_its_handler_needs(front: Front) -> None:
    """Without the execution key and the fence a receiver cannot act once."""
    task_id = await ready_task(front, idempotency_key="k", timeout_s=5, priority=9)
    (task,) = await lease(front)
    assert (task["id"], task["fence"], task["attempt"], task["max_attempts"]) == (task_id, 1, 1, 5)
    assert (task["payload"], task["type"], task["timeout_s"]) == ({"n": 1}, "a.b", 5.0)
    assert task["execution_key"] == "k"
    assert await lease(front, "w2") == []


async def test_a_completed_task_keeps_its_result(front: Front) -> None:
    """The one thing its submitter waits for."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    reply = await settle(front, task, result={"sum": 3})
    assert reply.json["items"] == [{"id": task_id, "status": "settled", "state": "COMPLETED"}]
    read = await front.call("GET", f"/v1/tasks/{task_id}", key=front.producer)
    assert (read.json["state"], read.json["result"]) == ("COMPLETED", {"sum": 3})


async def test_the_same_settlement_again_is_a_replay(front: Front) -> None:
    """The answer to a settlement can be lost like any other."""
    await ready_task(front)
    (task,) = await lease(front)
    await settle(front, task, result=1)
    assert (await settle(front, task, result=1)).json["items"][0]["status"] == "replay"
    assert (await settle(front, task, outcome="failed")).json["items"][0]["status"] == "stale"


async def test_a_lost_answer_is_handed_out_again_to_the_same_request(front: Front) -> None:
    """Otherwise the task waits for its lease to run out, and an attempt is charged for nothing."""
    await ready_task(front)
    first = await lease(front, request_id="r1")
    again = await lease(front, request_id="r1")
    assert [(t["id"], t["fence"]) for t in again] == [(t["id"], t["fence"]) for t in first]
    assert await lease(front, request_id="r2") == []
    assert await lease(front, "w2", request_id="r1") == []


async def test_a_lease_that_is_handed_out_again_says_so(front: Front) -> None:
    """A worker that takes an old lease for a fresh one runs on when it is over."""
    await ready_task(front)
    (fresh,) = await lease(front, request_id="r1")
    (repeated,) = await lease(front, request_id="r1")
    assert front.door.workers is not None
    front.door.workers.requests.clear()
    (elsewhere,) = await lease(front, request_id="r2")
    assert [task["again"] for task in (fresh, repeated, elsewhere)] == [False, True, True]


async def test_another_process_finds_the_lost_leases_too(front: Front) -> None:
    """The retry may reach another server than the request did."""
    await ready_task(front)
    first = await lease(front, request_id="r1")
    assert front.door.workers is not None
    front.door.workers.requests.clear()
    assert [t["id"] for t in await lease(front, request_id="r1")] == [t["id"] for t in first]


async def test_a_confirmed_lease_is_not_handed_out_again(front: Front) -> None:
    """A worker that runs it already would run it twice."""
    await ready_task(front)
    (task,) = await lease(front, request_id="r1")
    await beat(front, task)
    assert await lease(front, request_id="r1") == []


async def test_a_poll_waits_for_the_first_task(front: Front) -> None:
    """A worker that polls in a loop is slow or a load."""
    body = {"worker_id": "w1", "wait_s": 30}
    polling = asyncio.create_task(front.call("POST", "/v1/worker/lease", body, key=front.worker))
    while not front.queue.waiting():  # noqa: ASYNC110 (until the call has arrived)
        await asyncio.sleep(0.005)
    task_id = await ready_task(front)
    assert [task["id"] for task in (await polling).json["tasks"]] == [task_id]


async def test_a_task_stored_in_a_workers_hands_is_an_ordinary_lease(front: Front) -> None:
    """It never was a ticket; whoever gets it must be able to keep, settle and ask for it again."""
    # Its place is known from then on.
    await ready_task(front)
    (first,) = await lease(front)
    await settle(front, first)

    def straight(entries: list[InsertRow]) -> IdleConsumer | None:
        (entry,) = entries
        return front.queue.reserve(Lane(entry.task.tenant, entry.pool, NORMAL), 1)

    front.door.group_commit.submitter.find_consumer = straight
    body = {"worker_id": "w1", "wait_s": 30, "lease_s": 10, "request_id": "r"}
    polling = asyncio.create_task(front.call("POST", "/v1/worker/lease", body, key=front.worker))
    while not front.queue.waiting():  # noqa: ASYNC110 (until the call has arrived)
        await asyncio.sleep(0.005)
    asked = {"type": "mail.send", "payload": {"to": "a"}, "idempotency_key": "k"}
    reply = await front.call("POST", "/v1/tasks", asked, key=front.producer)
    (task,) = (await polling).json["tasks"]
    assert (task["id"], task["fence"], task["attempt"]) == (reply.json["id"], 1, 1)
    assert (task["payload"], task["execution_key"]) == ({"to": "a"}, "k")
    # As after an answer that got lost on its way to the worker.
    assert [again["id"] for again in await lease(front, request_id="r")] == [task["id"]]
    assert (await beat(front, task))["status"] == "held"
    assert (await settle(front, task)).json["items"][0]["status"] == "settled"


async def test_a_worker_that_hangs_up_takes_nothing(front: Front) -> None:
    """Its lease would run out with nobody to run the task."""
    body = {"worker_id": "w1", "wait_s": 30}
    polling = asyncio.create_task(front.call("POST", "/v1/worker/lease", body, key=front.worker))
    while not front.queue.waiting():  # noqa: ASYNC110 (until the call has arrived)
        await asyncio.sleep(0.005)
    polling.cancel()
    while front.queue.waiting():  # noqa: ASYNC110 (until the hang-up has arrived)
        await asyncio.sleep(0.005)
    task_id = await ready_task(front)
    assert [task["id"] for task in await lease(front, "w2")] == [task_id]


async def test_a_heartbeat_keeps_the_lease_and_the_progress(front: Front) -> None:
    """What was done so far is what the next attempt starts from."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    answer = await beat(front, task, progress={"rows": 7})
    assert answer["status"] == "held"
    assert answer["lease_until"] >= task["lease_until"]
    read = await front.call("GET", f"/v1/tasks/{task_id}", key=front.producer)
    assert (read.json["state"], read.json["progress"]) == ("RUNNING", {"rows": 7})


async def test_a_running_task_that_is_cancelled_learns_it_from_its_heartbeat(front: Front) -> None:
    """Cancel of something that runs is a request, not a fact."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    reply = await front.call("POST", f"/v1/tasks/{task_id}/cancel", key=front.producer)
    assert (reply.status, reply.json["cancel_requested"]) == (202, True)
    assert (await beat(front, task))["status"] == "cancel"
    moved = await front.call("POST", f"/v1/tasks/{task_id}/run-now", key=front.producer)
    assert (moved.status, moved.code) == (409, "running")
    await settle(front, task, outcome="failed", error="stopped")
    read = await front.call("GET", f"/v1/tasks/{task_id}", key=front.producer)
    assert read.json["state"] == "CANCELLED"


async def test_a_worker_that_lost_its_lease_is_told_and_changes_nothing(front: Front) -> None:
    """It was paused, and somebody else runs the task now."""
    await ready_task(front)
    (old,) = await lease(front)
    await settle(front, old, outcome="released")
    await front.make_ready()
    (new,) = await lease(front, "w2")
    assert new["fence"] > old["fence"]
    assert (await beat(front, old))["status"] == "stale"
    assert (await settle(front, old)).json["items"][0]["status"] == "stale"
    assert (await beat(front, new, "w2"))["status"] == "held"


async def test_another_tenants_worker_sees_and_settles_nothing(front: Front) -> None:
    """I9, with the same worker id and the right fence."""
    await ready_task(front)
    (task,) = await lease(front)
    foreign = await front.make_key(front.other, "worker")
    reply = await settle(front, task, key=foreign)
    assert reply.json["items"][0]["status"] == "stale"
    body = {"worker_id": "w1", "wait_s": 0, "request_id": "r"}
    reply = await front.call("POST", "/v1/worker/lease", body, key=foreign)
    assert reply.json["tasks"] == []


async def test_a_worker_takes_only_the_pools_and_bands_it_asked_for(front: Front) -> None:
    """A worker for thumbnails must not be handed invoices."""
    await ready_task(front, target={"pool": "billing"}, priority=9)
    assert await lease(front) == []
    assert await lease(front, pools=["billing"], bands=["low"]) == []
    assert len(await lease(front, pools=["default", "billing"], bands=["high"])) == 1


async def test_a_failed_attempt_is_tried_again_when_the_worker_says(front: Front) -> None:
    """The worker knows when its upstream will be back."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    await settle(front, task, outcome="failed", error="try later", retry_in_s=120)
    read = (await front.call("GET", f"/v1/tasks/{task_id}", key=front.producer)).json
    assert (read["state"], read["attempt"], read["error"]) == ("SCHEDULED", 1, "try later")


async def test_a_result_that_is_too_large_leaves_the_lease(front: Front) -> None:
    """A shorter one can follow, and the work was not in vain."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    reply = await settle(front, task, result="x" * RESULT_BYTES_MAX)
    assert (reply.status, reply.code) == (422, "invalid")
    assert reply.json["errors"][0]["pointer"] == "/settlements/0/result"
    assert (await settle(front, task, result="short")).json["items"][0]["status"] == "settled"
    read = await front.call("GET", f"/v1/tasks/{task_id}", key=front.producer)
    assert read.json["result"] == "short"


@pytest.mark.parametrize("fence", [-1, 2**31, 2**63, "1", None, 1.5])
async def test_an_absurd_fence_is_refused(front: Front, fence: Any) -> None:
    """It must not reach the database as a number that means something else."""
    await ready_task(front)
    (task,) = await lease(front)
    reply = await settle(front, {"id": task["id"], "fence": fence})
    assert (reply.status, reply.code) == (422, "invalid")


async def test_a_live_worker_is_listed(front: Front) -> None:
    """An operator who asks why nothing runs looks here first."""
    await lease(front, "w1", pools=["a", "b"])
    (row,) = await front.database.fetch("SELECT * FROM duly.workers")
    assert (row["id"], row["pools"], row["tenant"]) == ("w1", ["a", "b"], front.tenant.id)
    assert row["expires_at"] > row["seen_at"]


async def test_a_task_that_a_receiver_took_over_is_settled_by_its_fence(front: Front) -> None:
    """Its worker is nobody of ours; the fence is all that proves it."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    body = {"fence": task["fence"], "outcome": "completed", "result": 1}
    path = f"/v1/tasks/{task_id}/settle"
    early = await front.call("POST", path, body, key=front.producer)
    assert (early.status, early.code) == (409, "stale")
    await front.database.fetch("UPDATE duly.timers SET holder = $1", ACCEPTED_ASYNC)
    foreign = await front.call("POST", path, body, key=front.other_producer)
    missing = await front.call(
        "POST", f"/v1/tasks/{ACCEPTED_ASYNC}/settle", body, key=front.producer
    )
    assert (foreign.status, foreign.unnamed) == (404, missing.unnamed)
    wrong = await front.call("POST", path, body | {"fence": 7}, key=front.producer)
    assert (wrong.status, wrong.code) == (409, "stale")
    done = await front.call("POST", path, body, key=front.producer)
    assert (done.status, done.json["state"]) == (200, "COMPLETED")
    again = await front.call("POST", path, body, key=front.producer)
    assert again.json["status"] == "replay"


async def test_the_end_of_what_a_receiver_took_over_is_counted(front: Front) -> None:
    """It was counted as started: without its end, everything handed over looks unfinished."""
    wish = Submission(tenant=front.tenant.id, type="a.b", url="https://example.com/hook")
    (stored,) = await Submitter(front.database, front.environment).submit([wish])
    assert isinstance(stored, Stored)
    tickets = [Ticket(stored.id, 0)]
    (held,) = await lease_tasks(front.database, front.environment, ACCEPTED_ASYNC, tickets, 15.0)
    assert await accept_async(front.database, [(held.id, held.fence)])
    body = {"fence": held.fence, "outcome": "completed"}
    for status in ("settled", "replay"):
        path = f"/v1/tasks/{held.id}/settle"
        reply = await front.call("POST", path, body, key=front.producer)
        assert reply.json["status"] == status
    assert front.door.workers is not None
    minutes = front.door.workers.stats.minutes.values()
    counted = [
        cell for each in minutes for key, cell in each.items() if key == (wish.tenant, "a.b")
    ]
    assert sum(cell.endings[Ending.COMPLETED] for cell in counted) == 1
    assert sum(sum(cell.run_time) for cell in counted) == 1
