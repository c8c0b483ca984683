"""Explain endpoint: why a task has not run yet, the gates in order, the binding one, the remedy."""

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import Code, not_found
from duly.api.request import Answer, Call
from duly.api.tasks import TAG, task_id_of
from duly.api.workflow_reading import WorkflowReading
from duly.domain.access import PRODUCERS
from duly.domain.explain import ExplainEntry, Explanation, explain
from duly.domain.ids import is_node, node_number, workflow_of
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.domain.states import State
from duly.store.explain import LaneDepth, read_situation
from duly.store.workflows import read_workflow


class GateView(msgspec.Struct, frozen=True):
    """`until` is when it opens by itself, `unblock` what would open it now; null if nothing is."""

    gate: str
    open: bool
    reason: str | None = None
    until: datetime | None = None
    unblock: str | None = None


class ExplanationView(msgspec.Struct, frozen=True):
    """`binding` names the entry of `gates` to look at first; null if the task runs, has ended, or
    is on its way. `estimate_at` is the expected start without intervention."""

    state: State
    summary: str
    gates: list[GateView]
    binding: str | None
    estimate_at: datetime | None


@dataclass(frozen=True)
class ExplainRoutes:
    lane_depth: LaneDepth | None = None
    lane_depth_max: int = LANE_DEPTH_MAX

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/tasks/{id}/explain",
                summary="Explain why a task has not run yet, and what would unblock it",
                handler=self.explain,
                kind=Kind.READ,
                access=PRODUCERS,
                answers={200: ExplanationView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            )
        ]

    async def explain(self, call: Call) -> Answer:
        situation = await read_situation(
            call.session, call.tenant, task_id_of(call), self.lane_depth, self.lane_depth_max
        )
        if situation is None:
            raise not_found("task", task_id_of(call))
        if situation.state is State.WAITING and is_node(situation.id):
            situation = replace(situation, waits_for=await waiting_words(call, situation.id))
        return Answer(200, explanation_view(explain(situation)))


async def waiting_words(call: Call, node_id: UUID) -> str | None:
    """As its workflow explains it: parents, a signal, a time, items of a map, a pause."""
    workflow = await read_workflow(call.session, call.tenant, workflow_of(node_id))
    if workflow is None:
        return None
    return await WorkflowReading(call.session, workflow).waiting_words(node_number(node_id))


def explanation_view(explanation: Explanation) -> ExplanationView:
    return ExplanationView(
        explanation.state,
        explanation.summary,
        [gate_view(entry) for entry in explanation.entries],
        None if explanation.binding is None else explanation.binding.value,
        explanation.estimate_at,
    )


def gate_view(entry: ExplainEntry) -> GateView:
    return GateView(entry.gate.value, entry.is_open, entry.reason, entry.until, entry.unblock)
