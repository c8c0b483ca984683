"""Why has this task not run yet, over HTTP: what is no gate, what was before, and who may ask."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.domain.explain import explain
from duly.domain.gates import Gate
from duly.domain.ids import shard_of, slot_of
from duly.domain.states import Outcome
from duly.store.explain import AHEAD_MAX, read_situation
from duly.store.tenants import PauseKind, set_pause
from tests.api.conftest import NEXT_YEAR, Front
from tests.api.explaining import (
    KEY,
    URL,
    add_node,
    add_worker,
    bound,
    explained,
    instant,
    lease,
    limit,
    make_live,
    own_slots,
    settle,
    submit,
)

ABANDON_SLOT = (
    "UPDATE duly.ownership SET expires_at = duly.now() WHERE kind = 'slot' AND number = $1"
)
WAIT_FOR_PARENTS = "UPDATE duly.timers SET due_at = NULL WHERE id = $1"
END_LEASE = "UPDATE duly.timers SET lease_until = duly.now() WHERE id = $1"


@pytest.fixture
async def live(front: Front) -> Front:
    return await make_live(front)


@pytest.mark.parametrize(("pools", "lives_s"), [((), 0.0), (("mail",), 60.0)])
async def test_a_pool_without_a_live_worker_is_named(
    front: Front, pools: tuple[str, ...], lives_s: float
) -> None:
    """A worker that died, or takes from another pool, helps nobody."""
    await own_slots(front)
    await add_worker(front, *pools, lives_s=lives_s)
    answer = await explained(front, await submit(front))
    assert answer["binding"] == "no_live_worker"
    reason = bound(answer)["reason"]
    assert reason.startswith("no worker serves the pool default")
    # Known only of a pool that had a worker.
    assert ("since" in reason) == (not pools)
    assert 'pools=["default"]' in bound(answer)["unblock"]
    assert answer["estimate_at"] is None


async def test_a_webhook_needs_no_worker_but_an_executor(front: Front) -> None:
    """duly itself makes the call: with roles apart, it may wait for a process nobody started."""
    await own_slots(front)
    await add_node(front, "api", "scheduler")
    task_id = await submit(front, **URL)
    lacking = bound(await explained(front, task_id))
    assert lacking["gate"] == "no_executor"
    assert lacking["unblock"] == "duly serve"
    await add_node(front, "executor")
    assert (await explained(front, task_id))["binding"] is None


async def test_a_slot_without_an_owner_is_named(live: Front) -> None:
    """Every gate is open, and nobody is there to open them."""
    task_id = await submit(live)
    slot = slot_of(shard_of(UUID(task_id)))
    await live.database.fetch(ABANDON_SLOT, slot)
    answer = await explained(live, task_id)
    assert answer["binding"] == "slot_without_owner"
    assert bound(answer)["reason"] == f"no scheduler owns its slot, number {slot}"
    assert bound(answer)["unblock"] == "duly serve"


async def test_a_task_of_the_future_is_not_due(live: Front) -> None:
    """The most common reason of all."""
    task_id = await submit(live, run_at=f"{NEXT_YEAR}-01-02T03:04:05+01:00")
    answer = await explained(live, task_id)
    assert (answer["state"], answer["binding"]) == ("SCHEDULED", "not_due")
    assert answer["summary"] == f"it is not due before {NEXT_YEAR}-01-02T02:04:05Z"
    assert answer["estimate_at"] == bound(answer)["until"] == f"{NEXT_YEAR}-01-02T02:04:05Z"
    assert bound(answer)["unblock"] == f"duly tasks run-now {task_id}"


async def test_a_task_that_is_tried_again_tells_its_last_error(live: Front) -> None:
    """It looks late, and it has failed twice."""
    task_id = await submit(live)
    held = await lease(live, task_id)
    await settle(live, held, Outcome.FAILED, error="no route to host\nmore", retry_in_s=3600.0)
    answer = await explained(live, task_id)
    assert (answer["state"], answer["binding"]) == ("SCHEDULED", "not_due")
    assert answer["summary"].startswith("attempt 1 of 5 failed at 20")
    assert "(no route to host); the next attempt is not due before 20" in answer["summary"]
    assert instant(answer["estimate_at"]) > datetime.now(UTC) + timedelta(minutes=50)


async def test_a_running_task_says_who_has_it_and_until_when(live: Front) -> None:
    """It has started: the question is now for its worker."""
    task_id = await submit(live)
    await settle(live, await lease(live, task_id), Outcome.FAILED, retry_in_s=0.0)
    await lease(live, task_id, fence=2)
    answer = await explained(live, task_id)
    assert (answer["state"], answer["binding"], answer["gates"]) == ("RUNNING", None, [])
    assert answer["summary"].startswith("attempt 2 of 5 runs since 20")
    assert ", held by w-1, lease until 20" in answer["summary"]
    await live.call("DELETE", f"/v1/tasks/{task_id}", key=live.producer)
    assert "a cancel was requested" in (await explained(live, task_id))["summary"]
    await live.database.fetch(END_LEASE, UUID(task_id))
    assert "sent no heartbeat, and the lease ended" in (await explained(live, task_id))["summary"]


@pytest.mark.parametrize(
    ("outcome", "state", "words"),
    [
        (Outcome.COMPLETED, "COMPLETED", "it has ended: attempt 1 completed at 20"),
        (
            Outcome.REJECTED,
            "FAILED",
            "after 1 attempt, rejected (boom); to run it again: duly dead",
        ),
        (Outcome.CANCELLED, "CANCELLED", "it has ended: cancelled at 20"),
    ],
)
async def test_a_task_that_has_ended_says_how(
    live: Front, outcome: Outcome, state: str, words: str
) -> None:
    """A caller must not wait for what will not happen again."""
    task_id = await submit(live)
    words_of_end = {"error": "boom"} if outcome is Outcome.REJECTED else {}
    await settle(live, await lease(live, task_id), outcome, **words_of_end)
    answer = await explained(live, task_id)
    assert (answer["state"], answer["binding"], answer["gates"]) == (state, None, [])
    assert words in answer["summary"]
    assert answer["estimate_at"] is None


async def test_a_task_that_was_cancelled_before_it_ran_has_ended(live: Front) -> None:
    """There is no attempt to tell of but the one that says so."""
    task_id = await submit(live, delay_s=60)
    await live.call("DELETE", f"/v1/tasks/{task_id}", key=live.producer)
    assert "it has ended: cancelled" in (await explained(live, task_id))["summary"]


async def test_a_task_with_unfinished_parents_waits_for_them(live: Front) -> None:
    """It has no instant yet, and no command gives it one."""
    task_id = await submit(live)
    await live.database.fetch(WAIT_FOR_PARENTS, UUID(task_id))
    answer = await explained(live, task_id)
    assert (answer["state"], answer["binding"]) == ("WAITING", "waiting_parents")
    assert answer["estimate_at"] is None


async def test_a_foreign_task_is_as_missing_as_one_that_never_was(live: Front) -> None:
    """An id that answers differently tells that it exists (I9)."""
    task_id = await submit(live)
    path = "/v1/tasks/{}/explain"
    replies = [
        await live.call("GET", path.format(task_id), key=live.other_producer),
        await live.call("GET", path.format(UUID(int=1)), key=live.producer),
        await live.call("GET", path.format("nonsense"), key=live.producer),
    ]
    assert {(reply.status, reply.unnamed) for reply in replies} == {(404, replies[0].unnamed)}
    assert (await live.call("GET", path.format(task_id), key=live.worker)).status == 403


async def test_another_tenants_crowd_is_not_counted(live: Front) -> None:
    """A neighbour's leases, keys, workers and pauses are none of this tenant's business (I9)."""
    body = {"type": "mail.send"} | KEY
    theirs = (await live.call("POST", "/v1/tasks", body, key=live.other_producer)).json["id"]
    await set_pause(live.database, live.other.id, PauseKind.TENANT, "", "eve", "theirs")
    await lease(live, theirs)
    await limit(live, in_flight_max=1)
    assert (await explained(live, await submit(live, **KEY)))["binding"] is None
    waiting = (await live.call("POST", "/v1/tasks", body, key=live.other_producer)).json["id"]
    path = f"/v1/tasks/{waiting}/explain"
    answer = (await live.call("GET", path, key=live.other_producer)).json
    closed = [entry["gate"] for entry in answer["gates"] if not entry["open"]]
    assert closed == ["paused", "concurrency_key", "no_live_worker"]
    assert "w-1" not in str(answer)


async def test_counts_stop_at_their_bound(live: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of millions must not make its explanation slow."""
    assert AHEAD_MAX <= 1000
    monkeypatch.setattr("duly.store.explain.AHEAD_MAX", 3)
    ids = [await submit(live) for _ in range(6)]
    summary = (await explained(live, ids[-1]))["summary"]
    assert "at least 3 tasks of its lane are ahead of it" in summary
    assert "; 2 tasks of its lane are ahead of it" in (await explained(live, ids[2]))["summary"]


async def test_no_explanation_takes_more_than_three_statements(live: Front) -> None:
    """It is asked most when the database has least to spare."""
    holder, task_id = await submit(live, **KEY), await submit(live, **KEY)
    await lease(live, holder)
    statements: list[str] = []

    class Counting:
        async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
            statements.append(statement)
            return await session.fetch(statement, *arguments)

    async with live.database.tenant(live.tenant.id) as session:
        situation = await read_situation(Counting(), live.tenant.id, UUID(task_id))
    assert situation is not None
    assert explain(situation).binding is Gate.CONCURRENCY_KEY
    assert len(statements) == 3
