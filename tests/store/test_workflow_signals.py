"""Signals and waits in the tables: who gets what, once, and under which races."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import asyncpg
import msgspec
import pytest

from duly.domain.access import Access
from duly.domain.node_spec import OnTimeout
from duly.domain.states import State
from duly.domain.workflow import WorkflowStop
from duly.store import workflow_signals
from duly.store.control import ControlAnswer, cancel_tasks
from duly.store.finish import Released
from duly.store.purge import purge_tasks
from duly.store.workflow_control import run_timer, stop_workflow
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_signals import (
    SIGNALS_MAX,
    SentSignal,
    Signal,
    SignalRefused,
    list_signals,
    send_signal,
)
from duly.store.workflow_timers import TimerKind, find_due_timers
from duly.store.workflows import delete_old_workflows, read_nodes, read_parents
from tests.store.test_verify_workflows import verified
from tests.store.test_workflow_steps import begin, waiting
from tests.store.test_workflows import Edges, Flow, run_timers
from tests.store.world import OTHER_TENANT, START, TENANT, World

COMPLETED, FAILED, SKIPPED = State.COMPLETED, State.FAILED, State.SKIPPED
WAITING, READY, CANCELLED = State.WAITING, State.READY, State.CANCELLED
APPROVED = Signal("approved", '{"note": "fine"}', "key boss", Access.OPERATOR)
ONE = {"ok": (), "pay": ("ok",)}
FILL = """
INSERT INTO duly.workflow_signals
       (shard, tenant, workflow, number, name, sender, access, received_at)
SELECT shard, tenant, id, number, 'other', 'key', 'producer', now()
  FROM duly.workflows, generate_series(1, $1) AS number"""


async def approval(world: World, after: Edges | None = None, **wait: object) -> Flow:
    """One node that waits for the signal, and one behind it."""
    spec = waiting(**({"signal": "approved", "role": Access.OPERATOR} | wait))
    flow = await begin(world, after or ONE, {"ok": spec})
    await run_timers(world)
    return flow


async def send(
    flow: Flow, signal: Signal = APPROVED, released: Released | None = None, tenant: int = TENANT
) -> SentSignal | SignalRefused:
    async with flow.world.database.transaction() as session:
        return await send_signal(session, tenant, flow.id, signal, released or Released())


async def taken(flow: Flow, signal: Signal = APPROVED) -> str | None:
    """Which node got it."""
    answer = await send(flow, signal)
    assert isinstance(answer, SentSignal)
    return answer.node


async def result_of(flow: Flow, name: str) -> dict[str, object]:
    """What a child reads as the result of this node."""
    child = next(node for node in flow.ids if node != name)
    found = await read_parents(flow.world.database, [flow.ids[child]], limit=9, is_paged=True)
    (parent,) = [each for each in found[flow.ids[child]] if each.name == name]
    assert parent.result is not None
    result: dict[str, object] = msgspec.json.decode(parent.result)
    return result


async def test_a_signal_ends_the_node_that_waits_for_it_and_releases_its_children(
    world: World,
) -> None:
    """A release that a later tick does costs every approval that tick."""
    flow = await approval(world)
    (node,) = [n for n in await read_nodes(world.database, TENANT, flow.id, 0, 9) if n.name == "ok"]
    assert (node.state, node.has_begun, node.until) == (WAITING, True, None)
    world.advance(5)
    released = Released()
    answer = await send(flow, released=released)
    assert isinstance(answer, SentSignal)
    assert (answer.number, answer.node) == (1, "ok")
    assert [timer.id for timer in released.timers] == [flow.ids["pay"]]
    assert [node for node, _ in released.ended] == [flow.ids["ok"]]
    assert await flow.states() == {"ok": COMPLETED, "pay": READY}
    result = await result_of(flow, "ok")
    assert (result["payload"], result["sender"]) == ({"note": "fine"}, "key boss")
    assert (result["role"], result["timed_out"]) == ("operator", False)
    await flow.end("pay")
    assert (await flow.read()).state is COMPLETED


async def test_a_signal_that_comes_before_its_node_waits_is_kept_for_it(world: World) -> None:
    """An approval given early is given: its sender is not asked again."""
    flow = await approval(world, {"first": (), "ok": ("first",), "pay": ("ok",)})
    assert await taken(flow) is None
    await flow.end("first")
    await run_timers(world)
    assert await flow.states() == {"first": COMPLETED, "ok": COMPLETED, "pay": READY}
    (kept,) = await list_signals(world.database, TENANT, flow.id, 0, 9)
    assert (kept.node, kept.payload, kept.consumed_at) == ("ok", APPROVED.payload, world.now())


async def test_each_signal_goes_to_one_node_in_the_order_of_both(world: World) -> None:
    """One approval that lets two payments through is one too many."""
    spec = waiting(signal="approved")
    flow = await begin(world, {"a": (), "b": (), "c": ()}, {"a": spec, "b": spec})
    signals = [replace(APPROVED, payload=f"{number}") for number in range(3)]
    assert await taken(flow, signals[0]) is None
    await run_timers(world)
    assert (await flow.states())["a"] is COMPLETED
    assert await taken(flow, replace(APPROVED, name="other")) is None
    assert await taken(flow, signals[1]) == "b"
    assert await taken(flow, signals[2]) is None
    found = await list_signals(world.database, TENANT, flow.id, 0, 9)
    given = [(each.payload, each.node) for each in found if each.name == "approved"]
    assert given == [("0", "a"), ("1", "b"), ("2", None)]
    (third,) = await list_signals(world.database, TENANT, flow.id, 2, 1)
    assert (third.number, third.payload) == (3, "1")


async def test_a_lower_role_approves_nothing_now_or_later(world: World) -> None:
    """A kept signal of a lower role would be the approval once the node waits."""
    flow = await approval(world, {"first": (), "ok": ("first",), "pay": ("ok",)})
    mere = replace(APPROVED, access=Access.PRODUCER)
    assert await send(flow, mere) is SignalRefused.FORBIDDEN
    await flow.end("first")
    await run_timers(world)
    assert await send(flow, mere) is SignalRefused.FORBIDDEN
    assert (await flow.states())["ok"] is WAITING
    assert await list_signals(world.database, TENANT, flow.id, 0, 9) == []
    # Of a name that no node has, it may be meant for one that comes later.
    assert await taken(flow, replace(mere, name="other")) is None
    assert await taken(flow, replace(APPROVED, access=Access.ADMIN)) == "ok"


async def test_a_kept_signal_goes_only_to_a_node_that_wants_its_role(world: World) -> None:
    """Two nodes may want one name from different roles."""
    low = waiting(signal="approved")
    high = waiting(signal="approved", role=Access.ADMIN)
    flow = await begin(world, {"high": (), "low": ()}, {"high": high, "low": low})
    assert await taken(flow) is None
    await run_timers(world)
    assert await flow.states() == {"high": WAITING, "low": COMPLETED}


@pytest.mark.parametrize(
    ("on_timeout", "state", "child"),
    [
        (OnTimeout.FAIL, FAILED, SKIPPED),
        (OnTimeout.SKIP, SKIPPED, SKIPPED),
        (OnTimeout.CONTINUE, COMPLETED, READY),
    ],
)
async def test_a_timeout_does_what_was_asked_for(
    world: World, on_timeout: OnTimeout, state: State, child: State
) -> None:
    """An approval that never comes must not hold its workflow for ever, nor approve by itself."""
    flow = await approval(world, timeout_s=60.0, on_timeout=on_timeout)
    world.advance(59)
    assert await run_timers(world) == 0
    world.advance(1)
    assert await run_timers(world) == 1
    assert await flow.states() == {"ok": state, "pay": child}
    if state is COMPLETED:
        assert await result_of(flow, "ok") == {"timed_out": True, "payload": None}
    else:
        assert (await flow.read()).state is state if state is FAILED else COMPLETED
        assert await send(flow) is SignalRefused.ENDED
    assert await world.count("dead_letters") == (state is FAILED)


async def test_a_signal_before_the_timeout_wins_for_good(world: World) -> None:
    """A timeout that was found a moment before the signal would end the node a second time."""
    flow = await approval(world, timeout_s=60.0)
    world.advance(60)
    (due,) = await find_due_timers(world.database, range(1024))
    assert due.kind == TimerKind.WAIT
    assert await taken(flow) == "ok"
    released, _ = await run_timer(world.database, due, None)  # type: ignore[arg-type]
    assert released == Released()
    assert (await flow.states())["ok"] is COMPLETED


async def test_a_signal_after_the_timeout_is_kept_and_changes_nothing(world: World) -> None:
    """An end is an end: the late approval may only wait for another node."""
    flow = await approval(
        world, {"ok": (), "pay": ("ok",), "x": ()}, timeout_s=60.0, on_timeout=OnTimeout.SKIP
    )
    world.advance(60)
    assert await run_timers(world) == 1
    assert await taken(flow) is None
    assert await flow.states() == {"ok": SKIPPED, "pay": SKIPPED, "x": READY}


async def test_a_signal_and_its_timeout_at_once_end_the_node_once(world: World) -> None:
    """Both in flight: the lock of the workflow lets one of them find the timer."""
    flow = await approval(world, timeout_s=60.0)
    world.advance(60)
    (due,) = await find_due_timers(world.database, range(1024))
    await asyncio.gather(send(flow), run_timer(world.database, due, None))  # type: ignore[arg-type]
    ends = [each for each in await world.attempts(flow.ids["ok"]) if each.state is not None]
    assert len(ends) == 1
    counts = await flow.counts()
    assert sum(counts.values()) == 2


async def test_a_waiting_node_that_was_cancelled_gets_nothing(world: World) -> None:
    """Its timer stays behind: a signal that ends there is lost for the node that still waits."""
    spec = waiting(signal="approved")
    flow = await begin(world, {"a": (), "b": ()}, {"a": spec, "b": spec})
    await run_timers(world)
    answers = await cancel_tasks(world.database, TENANT, [flow.ids["a"]])
    assert answers == {flow.ids["a"]: ControlAnswer.CANCELLED}
    assert await taken(flow) == "b"
    assert await flow.states() == {"a": CANCELLED, "b": COMPLETED}


async def test_a_cancelled_workflow_takes_no_signal(world: World) -> None:
    """What comes after the cancel must release nothing."""
    flow = await approval(world)
    async with world.database.transaction() as session:
        await stop_workflow(session, TENANT, flow.id, WorkflowStop.CANCELLED, Released())
    assert await flow.states() == {"ok": CANCELLED, "pay": CANCELLED}
    assert await send(flow) is SignalRefused.ENDED
    assert await world.count("workflow_timers") == 0


async def test_time_goes_on_in_a_pause_and_what_ends_releases_nothing(world: World) -> None:
    """A pause that stops the clock of an approval, or lets its end start a task, is none."""
    flow = await approval(world, timeout_s=60.0, on_timeout=OnTimeout.CONTINUE)
    assert await pause_workflow(world.database, TENANT, flow.id, "key")
    world.advance(60)
    assert await run_timers(world) == 1
    assert await flow.states() == {"ok": COMPLETED, "pay": WAITING}
    assert await world.due() == []
    released = Released()
    assert await unpause_workflow(world.database, TENANT, flow.id, released)
    assert [timer.id for timer in released.timers] == [flow.ids["pay"]]


async def test_a_repeated_signal_is_taken_once(world: World) -> None:
    """An approval that is sent again after a lost answer must not approve the next step too."""
    spec = waiting(signal="approved")
    flow = await begin(world, {"a": (), "b": ()}, {"a": spec, "b": spec})
    await run_timers(world)
    keyed = replace(APPROVED, idempotency_key="k", asked=b"1")
    first = await send(flow, keyed)
    assert isinstance(first, SentSignal)
    assert await send(flow, keyed) == first._replace(is_replay=True)
    assert await send(flow, replace(keyed, asked=b"2")) is SignalRefused.MISMATCH
    assert await flow.states() == {"a": COMPLETED, "b": WAITING}
    assert await taken(flow) == "b"
    # What was taken once is never refused.
    assert await send(flow, keyed) == first._replace(is_replay=True)
    assert await send(flow, replace(keyed, idempotency_key="l")) is SignalRefused.ENDED


async def test_a_workflow_takes_so_many_signals_and_no_more(
    world: World, owner: asyncpg.Connection
) -> None:
    """A sender in a loop fills the table of everybody."""
    flow = await approval(world, {"first": (), "ok": ("first",)})
    await owner.execute(FILL, SIGNALS_MAX - 1)
    answer = await send(flow)
    assert isinstance(answer, SentSignal)
    assert answer.number == SIGNALS_MAX == 10_000
    assert await send(flow) is SignalRefused.TOO_MANY


async def test_signals_of_other_tenants_find_nothing(world: World) -> None:
    """I9: an id that was guessed is no way into another tenant's workflow."""
    flow = await approval(world)
    assert await send(flow, tenant=OTHER_TENANT) is SignalRefused.UNKNOWN
    assert await list_signals(world.database, OTHER_TENANT, flow.id, 0, 9) == []
    assert (await flow.states())["ok"] is WAITING


async def test_a_timer_waits_until_an_instant_and_one_that_is_over_does_not(world: World) -> None:
    """A wait until yesterday that never ends holds its workflow for ever."""
    until = world.now() + timedelta(seconds=10)
    flow = await begin(
        world,
        {"past": (), "later": (), "end": ("past", "later")},
        {"past": waiting(until=world.now() - timedelta(days=1)), "later": waiting(until=until)},
    )
    await run_timers(world)
    assert await flow.states() == {"past": COMPLETED, "later": WAITING, "end": WAITING}
    nodes = {n.name: n for n in await read_nodes(world.database, TENANT, flow.id, 0, 9)}
    assert (nodes["later"].until, nodes["past"].until) == (until, None)
    world.advance(10)
    await run_timers(world)
    assert (await flow.states())["end"] is READY


async def test_signals_go_with_their_workflow_and_their_payloads_with_a_purge(
    world: World, owner: asyncpg.Connection
) -> None:
    """A payload that outlives its workflow is personal data that nothing deletes."""
    flow = await approval(world, {"ok": ()})
    assert await taken(flow, replace(APPROVED, name="other", idempotency_key="jane")) is None
    assert await taken(flow) == "ok"
    assert await purge_tasks(world.database, TENANT, [flow.ids["ok"]], "officer")
    rows = await owner.fetch("SELECT payload, idempotency_key FROM duly.workflow_signals")
    assert [tuple(row) for row in rows] == [(None, None)] * 2
    world.advance(100 * 86400)
    assert await delete_old_workflows(world.database, 100) == 1
    assert await world.count("workflow_signals") == 0


async def test_what_waits_and_what_was_skipped_is_clean_and_what_is_stranded_is_found(
    world: World, engine_url: str, owner: asyncpg.Connection
) -> None:
    """A checker that knows no steps calls every skip a fault, or misses a node that hangs."""
    flow = await approval(world, timeout_s=60.0, on_timeout=OnTimeout.SKIP)
    other = await approval(world, timeout_s=6.0, on_timeout=OnTimeout.SKIP)
    world.advance(7)
    await run_timers(world)
    assert (await other.states())["ok"] is SKIPPED
    assert (await verified(engine_url)).counts["I7"] == 0
    await owner.execute("DELETE FROM duly.workflow_timers")
    found = (await verified(engine_url)).violations
    assert any(each.task == flow.ids["ok"] and "will decide" in each.problem for each in found)


def test_a_payload_fits_into_a_result() -> None:
    """The result of a node is bounded as that of a task: a signal must fit into it."""
    payload = f'"{"x" * (workflow_signals.PAYLOAD_BYTES_MAX - 2)}"'
    result = workflow_signals.result_of(payload, "key " + "x" * 100, Access.PRODUCER, START)
    assert len(result) < 64 * 1024
