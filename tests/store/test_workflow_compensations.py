"""Compensation in the tables: what completed is undone once, the last first, and what could not be
is told."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from duly.domain.ids import NODE_NUMBER_MAX, node_id_of, shard_of
from duly.domain.map_plan import ITEMS_MAX
from duly.domain.node_spec import CompensationSpec, MapSpec, NodeSpec
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Callback, Policy
from duly.domain.workflow import NODES_MAX, OnFailure, WaitRule, WorkflowStop
from duly.store import workflow_compensations
from duly.store.control import cancel_tasks
from duly.store.finish import Released
from duly.store.policies import encode_callback, encode_policy
from duly.store.purge import purge_tasks
from duly.store.verify import verify
from duly.store.workflow_appends import Append, AppendRefusal, RefusedAppend, WorkflowAppends
from duly.store.workflow_callbacks import WorkflowCallbacks
from duly.store.workflow_compensations import COMPENSATED_AT_ONCE, ITEM_NUMBERS_MAX
from duly.store.workflow_control import run_timer, stop_workflow
from duly.store.workflow_inputs import NodeInputs
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_timers import find_due_timers
from duly.store.workflows import Started, WorkflowStart, WorkflowStarter
from duly.verify.report import Verification
from tests.store.maps import Mapped
from tests.store.test_workflows import Edges, Flow, graph_of, run_timers
from tests.store.world import TENANT, World

COMPLETED, FAILED, CANCELLED = State.COMPLETED, State.FAILED, State.CANCELLED
READY, RUNNING, WAITING, SKIPPED = State.READY, State.RUNNING, State.WAITING, State.SKIPPED
ORDER: Edges = {"book": (), "charge": ("book",), "ship": ("charge",)}
TWICE = Policy(retry=RetryPolicy(max_attempts=2, jitter=False, initial_s=10.0))
ONCE = Policy(retry=RetryPolicy(max_attempts=1))


def undo(kind: str = "undo", policy: Policy = ONCE, **fields: Any) -> CompensationSpec:
    usual: dict[str, Any] = {"pool": "default", "priority": 5, "timeout_ms": 60_000}
    return CompensationSpec(type=kind, policy=encode_policy(policy), **(usual | fields))


async def begin(
    world: World,
    after: Edges = ORDER,
    *,
    undone: Sequence[str] | None = None,
    maps: dict[str, MapSpec] | None = None,
    ways: dict[str, CompensationSpec] | None = None,
    rules: dict[str, WaitRule] | None = None,
    **fields: Any,
) -> "Compensated":
    """Every node can be undone, or those that are named."""
    names = list(after) if undone is None else undone
    nodes = [
        replace(
            node,
            task=node.task._replace(payload=f'"{node.name}"'),
            spec=NodeSpec(
                map=(maps or {}).get(node.name),
                compensate=(ways or {}).get(node.name, undo()) if node.name in names else None,
            ),
        )
        for node in graph_of(after, rules)
    ]
    if maps:
        nodes = [
            replace(node, task=node.task._replace(payload="null")) if node.name in maps else node
            for node in nodes
        ]
    given = {"on_failure": OnFailure.COMPENSATE} | fields
    start = WorkflowStart(TENANT, "order", nodes, **given)
    (answer,) = await WorkflowStarter(world.database, world.submitter).start([start])
    assert isinstance(answer, Started)
    return Compensated(world, answer.id, list(after))


class Compensated(Mapped):
    """A workflow of which something is undone."""

    async def fail_last(self, *completed: str, last: str) -> None:
        for name in completed:
            await self.end(name)
            self.world.advance(1)
        await self.end(last, Outcome.FAILED)
        await self.step()

    async def made(self) -> dict[str, State]:
        """What undoes, in the order in which it was made."""
        rows = await self.world.database.fetch(
            "SELECT name FROM duly.workflow_nodes"
            " WHERE duly.workflow_of(id) = $1 AND compensates IS NOT NULL ORDER BY id",
            self.id,
        )
        states = await Flow.states(self)
        return {row["name"]: states[row["name"]] for row in rows}

    async def run_next(self, outcome: Outcome = Outcome.COMPLETED) -> list[str]:
        """All that is due now ends so; the names of its nodes."""
        leases = await self.world.lease_all()
        await self.settle(leases, outcome)
        await self.step()
        return [str(lease.given_execution_key).removeprefix(f"{self.id}:") for lease in leases]

    async def end_state(self) -> tuple[State, str | None, int, int]:
        rows = await self.world.database.fetch(
            "SELECT compensated, compensations_failed FROM duly.workflows WHERE id = $1", self.id
        )
        found = await self.read()
        reason = None if found.stop_reason is None else found.stop_reason.value
        return found.state, reason, rows[0]["compensated"], rows[0]["compensations_failed"]


async def test_what_completed_is_undone_in_reverse_order(world: World) -> None:
    """A charge that is refunded before its shipment is called back, or not at all, costs money."""
    flow = await begin(world)
    await flow.fail_last("book", "charge", last="ship")
    assert await flow.made() == {"charge:compensate": READY, "book:compensate": WAITING}
    assert (await flow.read()).state is RUNNING
    assert await flow.run_next() == ["charge:compensate"]
    assert await flow.run_next() == ["book:compensate"]
    assert await flow.end_state() == (FAILED, "failure", 2, 0)
    assert await flow.counts() == {"completed": 4, "failed": 1}
    assert await world.count("timers") == 0
    assert await world.count("workflow_timers") == 0


async def test_reverse_is_that_of_completion_and_not_of_the_graph(world: World) -> None:
    """Branches end in an order that no graph knows."""
    after: Edges = {"a": (), "b": (), "c": (), "last": ("a", "b", "c")}
    flow = await begin(world, after)
    await flow.fail_last("c", "a", "b", last="last")
    assert list(await flow.made()) == ["b:compensate", "a:compensate", "c:compensate"]


async def test_only_what_completed_and_has_a_compensation_is_undone(world: World) -> None:
    """Undoing what never was done is as wrong as not undoing what was."""
    after: Edges = {"read": (), "charge": ("read",), "fails": ("charge",), "never": ("fails",)}
    flow = await begin(world, after, undone=["charge", "fails", "never"])
    await flow.fail_last("read", "charge", last="fails")
    assert await flow.made() == {"charge:compensate": READY}
    await flow.run_next()
    assert await flow.end_state() == (FAILED, "failure", 1, 0)


async def test_nothing_is_undone_while_a_node_still_runs(world: World) -> None:
    """What completes after the failure is undone as well; it may complete at the last moment."""
    flow = await begin(world, {"slow": (), "fails": (), "after": ("slow",)})
    slow = await world.lease(flow.ids["slow"])
    await flow.end("fails", Outcome.FAILED)
    await flow.step()
    assert await flow.made() == {}
    await world.settle(slow, Outcome.COMPLETED)
    await flow.step()
    assert await flow.made() == {"slow:compensate": READY}
    assert (await flow.states())["after"] is CANCELLED


async def test_a_workflow_without_anything_to_undo_ends_at_once(world: World) -> None:
    """With nothing to wait for it would stay as it is for ever (I7)."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    await flow.fail_last(last="a")
    assert await flow.end_state() == (FAILED, "failure", 0, 0)
    assert await world.count("workflow_timers") == 0


async def test_a_workflow_that_completes_is_not_undone(world: World) -> None:
    """The usual end."""
    flow = await begin(world, {"a": (), "b": ("a",)})
    await flow.end("a")
    await flow.end("b")
    assert await flow.end_state() == (COMPLETED, None, 0, 0)


async def test_a_compensation_is_handed_what_it_undoes(world: World) -> None:
    """Without the payload and the result, it cannot know which charge to refund."""
    own = undo("refund", payload='{"why":"\\u0000"}', priority=9)
    flow = await begin(world, ways={"charge": own})
    await flow.end("book")
    charge = await world.lease(flow.ids["charge"])
    await world.settle(charge, Outcome.COMPLETED, result='{"id": 7}')
    await flow.fail_last(last="ship")
    (lease,) = await world.lease_all()
    assert (lease.type, lease.payload, lease.priority) == ("refund", '{"why":"\\u0000"}', 9)
    assert lease.given_execution_key == f"{flow.id}:charge:compensate"
    (parent,) = (await NodeInputs(world.database).of([lease.id]))[lease.id].parents or []
    assert (parent.name, parent.state, parent.result) == ("charge", COMPLETED, '{"id": 7}')
    await world.settle(lease, Outcome.COMPLETED)
    (lease,) = await world.lease_all()
    assert (lease.type, lease.payload) == ("undo", '"book"'), "the payload of what it undoes"


async def test_an_erased_payload_is_none(world: World) -> None:
    """What undoes must say itself that it cannot, instead of never being made (I7)."""
    flow = await begin(world, {"book": (), "ship": ("book",)})
    await flow.end("book")
    assert await purge_tasks(world.database, TENANT, [flow.ids["book"]], "officer")
    await flow.fail_last(last="ship")
    (lease,) = await world.lease_all()
    assert lease.payload == "null"


async def test_a_compensation_is_retried_by_its_own_policy(world: World) -> None:
    """A refund that is tried once and forgotten, or as often as the charge."""
    flow = await begin(world, ways={"charge": undo(policy=TWICE)})
    await flow.fail_last("book", "charge", last="ship")
    assert await flow.run_next(Outcome.FAILED) == ["charge:compensate"]
    assert (await flow.made())["book:compensate"] is WAITING
    world.advance(10)
    assert await flow.run_next() == ["charge:compensate"]
    assert await flow.run_next() == ["book:compensate"]
    assert await flow.end_state() == (FAILED, "failure", 2, 0)


async def test_one_that_fails_for_good_is_told_and_the_others_are_undone(world: World) -> None:
    """The first refund that fails must not keep a hundred others from their money."""
    flow = await begin(world)
    await flow.fail_last("book", "charge", last="ship")
    await flow.run_next(Outcome.FAILED)
    assert await flow.run_next() == ["book:compensate"]
    assert await flow.end_state() == (FAILED, "failure", 1, 1)
    assert await flow.made() == {"charge:compensate": FAILED, "book:compensate": COMPLETED}
    assert await world.count("dead_letters") == 2


async def test_a_deadline_undoes_and_is_none_for_what_undoes(world: World) -> None:
    """A refund that is cancelled by the deadline of the order that it undoes."""
    flow = await begin(world, deadline_s=60.0)
    await flow.end("book")
    world.advance(60)
    await flow.step()
    assert await flow.made() == {"book:compensate": READY}
    world.advance(600)
    await flow.step()
    assert await flow.run_next() == ["book:compensate"]
    assert await flow.end_state() == (FAILED, "deadline", 1, 0)


async def test_all_that_completed_after_the_deadline_is_kept(world: World) -> None:
    """Everything was done: a workflow that ends as COMPLETED has nothing to undo."""
    flow = await begin(world, {"a": ()}, deadline_s=60.0)
    lease = await world.lease(flow.ids["a"], lease_s=300)
    world.advance(60)
    await flow.step()
    await world.settle(lease, Outcome.COMPLETED)
    await flow.step()
    assert await flow.end_state() == (COMPLETED, "deadline", 0, 0)


@pytest.mark.parametrize("is_first_failed", [False, True])
async def test_a_cancel_before_anything_is_undone_keeps_what_completed(
    world: World, is_first_failed: bool
) -> None:
    """Also after the failure, as long as the last node runs: else it would be a race."""
    flow = await begin(world, {"done": (), "slow": (), "fails": ()})
    slow = await world.lease(flow.ids["slow"])
    await flow.end("done")
    if is_first_failed:
        await flow.end("fails", Outcome.FAILED)
    await flow.cancel()
    await world.settle(slow, Outcome.COMPLETED)
    await flow.step()
    assert await flow.end_state() == (CANCELLED, "cancelled", 0, 0)
    assert await flow.made() == {}


async def test_a_cancel_stops_what_undoes(world: World) -> None:
    """Refunds that go wrong must be stoppable."""
    flow = await begin(world)
    await flow.fail_last("book", "charge", last="ship")
    (lease,) = await world.lease_all()
    await flow.cancel()
    assert await flow.made() == {"charge:compensate": RUNNING, "book:compensate": CANCELLED}
    await world.settle(lease, Outcome.COMPLETED)
    await flow.step()
    assert await flow.end_state() == (CANCELLED, "cancelled", 1, 1)
    assert await world.count("workflow_timers") == 0


async def test_a_cancel_between_two_batches_ends_the_workflow(world: World) -> None:
    """No node is live then whose end would end it (I7)."""
    flow = await begin(world)
    await flow.end("book")
    await flow.end("charge")
    await flow.end("ship", Outcome.FAILED)
    assert (await flow.read()).state is RUNNING
    await flow.cancel()
    assert await flow.end_state() == (CANCELLED, "cancelled", 0, 0)
    assert await flow.step() == 0


async def test_one_that_is_cancelled_alone_lets_the_next_run(world: World) -> None:
    """An operator gives up one refund, and not those behind it (I7)."""
    flow = await begin(world)
    await flow.fail_last("book", "charge", last="ship")
    async with world.database.tenant(TENANT) as session:
        await cancel_tasks(session, TENANT, [node_id_of(flow.id, NODES_MAX + 1)], Released())
    assert await flow.made() == {"charge:compensate": CANCELLED, "book:compensate": READY}
    await flow.run_next()
    assert await flow.end_state() == (FAILED, "failure", 1, 1)


async def test_a_pause_holds_what_undoes(world: World) -> None:
    """What is paused because refunds go wrong must not refund."""
    flow = await begin(world)
    await flow.end("book")
    await flow.end("charge")
    await flow.end("ship", Outcome.FAILED)
    async with world.database.tenant(TENANT) as session:
        assert await pause_workflow(session, TENANT, flow.id, "ann")
    await flow.step()
    assert await flow.made() == {}
    await unpaused(world, flow.id)
    await flow.step()
    (lease,) = await world.lease_all()
    async with world.database.tenant(TENANT) as session:
        assert await pause_workflow(session, TENANT, flow.id, "ann")
    await world.settle(lease, Outcome.COMPLETED)
    assert await world.lease_all() == []
    await unpaused(world, flow.id)
    assert await flow.run_next() == ["book:compensate"]
    assert await flow.end_state() == (FAILED, "failure", 2, 0)


async def unpaused(world: World, workflow_id: UUID) -> None:
    async with world.database.tenant(TENANT) as session:
        assert await unpause_workflow(session, TENANT, workflow_id, Released())


async def test_nothing_is_added_to_what_is_being_undone(world: World) -> None:
    """It would run beside what undoes it, and be undone by nothing."""
    flow = await begin(world)
    await flow.fail_last("book", "charge", last="ship")
    appends = WorkflowAppends(world.submitter, world.settler)
    append = Append(TENANT, graph_of({"more": ()}), [()])
    async with world.database.transaction() as session:
        refused = await appends.append(session, flow.id, append)
    assert isinstance(refused, RefusedAppend)
    assert refused.why is AppendRefusal.STOPPED


@pytest.mark.parametrize(("max_parallel", "at_once"), [(None, 1000), (2, 1000), (None, 2), (3, 2)])
async def test_each_item_of_a_map_that_completed_is_undone_at_the_turn_of_the_map(
    world: World, max_parallel: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One item fails, and with it the map: the others were charged all the same."""
    monkeypatch.setattr(workflow_compensations, "COMPENSATED_AT_ONCE", at_once)
    spec = MapSpec(count=5, max_items=ITEMS_MAX, max_parallel=max_parallel, tolerated=0)
    after: Edges = {"book": (), "charge": ("book",), "ship": ("charge",)}
    flow = await begin(world, after, maps={"charge": spec})
    await flow.end("book")
    await flow.step()
    done = 0
    while leases := await world.lease_all():
        for lease in leases:
            done += 1
            await world.settle(lease, Outcome.FAILED if done == 4 else Outcome.COMPLETED)
        if done >= 4:
            break
        await flow.step()
    await flow.step()
    expected = [n for n, item in enumerate(await flow.items()) if n != 3]
    undone: list[list[str]] = []
    while names := await flow.run_next():
        undone.append(names)
    assert undone[-1] == ["book:compensate"]
    flat = [name for names in undone[:-1] for name in names]
    assert sorted(flat) == [f"charge:{n}:compensate" for n in expected]
    assert max(map(len, undone)) == (
        len(expected) if (max_parallel, at_once) == (None, 1000) else 2
    )
    assert (await flow.read()).state is FAILED
    rows = await world.database.fetch(
        "SELECT tasks.payload FROM duly.tasks WHERE execution_key = $1",
        f"{flow.id}:charge:0:compensate",
    )
    assert rows[0]["payload"] == "0", "the item is its payload"


@pytest.mark.parametrize("excess", [0, 1])
async def test_batches_end_at_any_number_of_nodes(
    world: World, excess: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the edge of a commit, one is undone twice or not at all."""
    monkeypatch.setattr(workflow_compensations, "COMPENSATED_AT_ONCE", 3)
    names = [f"n{n}" for n in range(6 + excess)]
    after: Edges = dict.fromkeys(names, ()) | {"last": names}
    flow = await begin(world, after)
    await flow.fail_last(*names, last="last")
    order = []
    while done := await flow.run_next():
        order += done
    assert order == [f"{name}:compensate" for name in reversed(names)]
    assert await flow.end_state() == (FAILED, "failure", 6 + excess, 0)
    assert COMPENSATED_AT_ONCE == 1000


async def test_ends_at_one_instant_are_undone_from_the_last_number(world: World) -> None:
    """A batch of settlements has one instant, and a batch of undoing may end within it."""
    names = [f"n{n}" for n in range(4)]
    flow = await begin(world, dict.fromkeys(names, ()) | {"last": names})
    await flow.settle(await world.lease_all())
    await flow.fail_last(last="last")
    assert list(await flow.made()) == [f"{name}:compensate" for name in reversed(names)]


def test_items_leave_numbers_for_what_undoes_them() -> None:
    """Without a number, an item would be left done, and nothing would say so."""
    assert NODES_MAX + 2 * ITEM_NUMBERS_MAX + NODES_MAX <= NODE_NUMBER_MAX


async def test_two_processes_undo_once(world: World) -> None:
    """Both find the timer; a refund that is made twice is money lost."""
    flow = await begin(world)
    await flow.end("book")
    await flow.end("charge")
    await flow.end("ship", Outcome.FAILED)
    (timer,) = await find_due_timers(world.database, [shard_of(flow.id)])
    await asyncio.gather(*(run_timer(world.database, timer, no_callback) for _ in range(4)))
    assert len(await flow.made()) == 2


async def no_callback(*_: object) -> Any:
    raise AssertionError("no callback was asked for")


async def test_a_callback_tells_what_stays_done(world: World) -> None:
    """Told only that it failed, its owner does not know what to clean up."""
    callback = encode_callback(Callback("ended", pool="told"))
    flow = await begin(world, callback=callback)
    for name in ("book", "charge"):
        await flow.end(name)
    await flow.end("ship", Outcome.FAILED)
    callbacks = WorkflowCallbacks(world.submitter)
    for outcome in (Outcome.FAILED, Outcome.COMPLETED, None):
        for timer in await find_due_timers(world.database, [shard_of(flow.id)]):
            await run_timer(world.database, timer, callbacks.store)
        for timer in await find_due_timers(world.database, [shard_of(flow.id)]):
            await run_timer(world.database, timer, callbacks.store)
        leases = await world.lease_all()
        if outcome is not None:
            await flow.settle(leases, outcome)
    (told,) = leases
    payload = json.loads(told.payload or "")
    assert (payload["state"], payload["counts"]["failed"]) == ("FAILED", 2)
    assert payload["compensation"] == {
        "state": "FAILED",
        "completed": 1,
        "failed": 1,
        "not_undone": ["charge"],
    }


async def test_a_stop_for_another_reason_keeps_the_first(world: World) -> None:
    """A deadline after the failure changes nothing of what is undone."""
    flow = await begin(world, {"slow": (), "fails": ()}, deadline_s=60.0)
    await flow.end("fails", Outcome.FAILED)
    released = Released()
    async with world.database.transaction() as session:
        await stop_workflow(session, TENANT, flow.id, WorkflowStop.DEADLINE, released)
    assert (await flow.end_state())[1] == "failure"


async def test_the_checker_agrees_at_every_step(world: World, engine_url: str) -> None:
    """A checker that cries wolf while a workflow is undone is switched off."""
    flow = await begin(world)
    await flow.fail_last("book", "charge", last="ship")
    for _ in range(3):
        verification = Verification(10)
        await verify(engine_url, verification)
        assert verification.violations == []
        await flow.run_next()
    assert await run_timers(world) == 0
