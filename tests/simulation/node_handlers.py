"""What the handlers of workflow nodes do, as their payloads say: answer, hand over items to a map,
add nodes in their settlement."""

import json
from typing import TYPE_CHECKING, Any

from duly.domain.errors import DulyError
from duly.domain.ids import is_node
from duly.domain.states import Outcome
from duly.domain.task import Submission
from duly.execution.attempt import AttemptResult
from duly.store.control import publish_released
from duly.store.finish import Released, SettleAnswer, Settlement
from duly.store.lease import Lease
from duly.store.workflow_appends import AppendRefusal, WorkflowAppends
from duly.store.workflow_handovers import HandOver, ItemPage, hand_over_page
from duly.verify.history import CallPhase, Operation
from tests.simulation.step_clients import append_of
from tests.simulation.witness import told

if TYPE_CHECKING:
    from tests.simulation.fleet import FleetNode

FAILED = AttemptResult(Outcome.FAILED, error="boom")


def orders_of(lease: Lease) -> dict[str, Any]:
    is_ordered = is_node(lease.id) and lease.payload is not None and lease.payload[:1] == "{"
    return json.loads(lease.payload or "{}") if is_ordered else {}


def result_of(orders: dict[str, Any]) -> str:
    return json.dumps(orders["says"]) if "says" in orders else '"done"'


async def do_more(
    node: "FleetNode", lease: Lease, orders: dict[str, Any], verdict: AttemptResult
) -> AttemptResult:
    """Before it completes."""
    if verdict.outcome is not Outcome.COMPLETED:
        return verdict
    try:
        if "hands" in orders and not await hand_over(node, lease, orders):
            return FAILED
        if "adds" in orders:
            await complete_and_add(node, lease, orders)
    except DulyError:
        return FAILED
    return verdict


async def hand_over(node: "FleetNode", lease: Lease, orders: dict[str, Any]) -> bool:
    """All of its items, from the first on in every attempt. False: its lease is lost."""
    items = [json.dumps(item) for item in orders["says"]["items"]]
    first = 0
    while first < len(items):
        page = items[first : first + node.random.randint(1, 3)]
        released = Released()
        asked = ItemPage(lease.tenant, lease.id, lease.fence, orders["hands"], first, page)
        answer = (await hand_over_page(node.database, asked, released)).answer
        publish_released(node.events, lease.tenant, released)
        assert answer not in (HandOver.GAP, HandOver.UNKNOWN), f"{asked}: {answer}"
        if answer is not HandOver.TAKEN:
            return answer is HandOver.OVER
        first += len(page)
    return True


async def complete_and_add(node: "FleetNode", lease: Lease, orders: dict[str, Any]) -> None:
    """In one commit; the executor then settles the same once more. In a resume its nodes may be
    there already."""
    task = Submission(tenant=lease.tenant, type="node", pool="default")
    append = append_of(lease.tenant, orders["adds"], task)
    appends = WorkflowAppends(node.submitter, node.plain_settler)
    await appends.prepare(append)
    end = Settlement(lease.id, lease.fence, node.holder, Outcome.COMPLETED, result_of(orders))
    recorder = node.fleet.recorder
    asked = recorder.ask(
        Operation.SETTLE,
        0,
        task=end.id,
        fence=end.fence,
        holder=end.holder,
        outcome=str(end.outcome),
    )
    answer = await told([asked], appends.settle(end, append), CallPhase.UNKNOWN)
    if isinstance(answer, SettleAnswer):
        recorder.answer(asked, answer=str(answer.status), state=answer.state, due_at=answer.due_at)
    else:
        assert answer.why is AppendRefusal.INVALID, answer
        recorder.answer(asked, CallPhase.FAIL)
