"""Nodes that are added to a workflow that lives: with a settlement, or from outside."""

from dataclasses import dataclass
from functools import partial

from duly.api.admission import Admission
from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.rate_limit import Throttle
from duly.api.request import Answer, Call
from duly.api.tasks import SUBMIT_REFUSALS
from duly.api.workflow_body import WorkflowChecks, decode_append, within
from duly.api.workflow_wire import AppendAnswer, AppendedNode, AppendRequest
from duly.api.workflows import BODY_BYTES_MAX, TAG, ended, workflow_id_of
from duly.domain.access import PRODUCERS
from duly.domain.limits import Problem
from duly.store.finish import SettleAnswer, Settlement
from duly.store.workflow_appends import Append, AppendRefusal, RefusedAppend, WorkflowAppends


@dataclass(frozen=True)
class AppendChecks:
    """What is asked for is checked and admitted before a transaction begins."""

    checks: WorkflowChecks
    admission: Admission
    throttle: Throttle
    appends: WorkflowAppends

    async def append_of(self, call: Call, asked: AppendRequest) -> Append:
        async with self.admission.pace() as pace:
            append = await self.checks.append_of(call, asked, pace)
        await self.throttle.admit(call.tenant, len(append.nodes))
        await self.appends.prepare(append)
        return append

    async def settle(
        self, call: Call, settlement: Settlement, asked: AppendRequest, at: str
    ) -> SettleAnswer:
        """ApiProblem: nothing is stored, and the lease stays. `at` points at the append."""
        try:
            append = await self.append_of(call, asked)
            answer = await self.appends.settle(settlement, append)
            if isinstance(answer, RefusedAppend):
                raise refusal(answer, "workflow", settlement.id)
        except ApiProblem as refused:
            raise within(refused, at) from None
        return answer


@dataclass(frozen=True)
class WorkflowAppendRoutes:
    appending: AppendChecks

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/v1/workflows/{id}/nodes",
                "Add up to 1,000 nodes to a workflow that lives",
                self.append,
                Kind.CONTROL,
                access=PRODUCERS,
                body=AppendRequest,
                answers={201: AppendAnswer},
                refusals=(
                    *SUBMIT_REFUSALS,
                    Code.NOT_FOUND,
                    Code.ALREADY_TERMINAL,
                    Code.CONFLICT,
                ),
                tag=TAG,
                body_bytes_max=BODY_BYTES_MAX,
                decode=decode_append,
                prepare=self.prepare,
                is_batch=True,
            )
        ]

    async def prepare(self, call: Call, asked: AppendRequest) -> None:
        workflow_id_of(call)
        call.prepared = await self.appending.append_of(call, asked)

    async def append(self, call: Call, _asked: AppendRequest) -> Answer:
        workflow_id = workflow_id_of(call)
        append = call.prepared
        assert isinstance(append, Append)
        appends = self.appending.appends
        added = await appends.append(call.session, workflow_id, append)
        if isinstance(added, RefusedAppend):
            raise refusal(added, "workflow", workflow_id)
        call.note("workflow.append", str(workflow_id), nodes=len(append.nodes))
        call.after.append(partial(appends.publish, call.tenant, added))
        views = [
            AppendedNode(row.id, node.name)
            for row, node in zip(added.rows, append.nodes, strict=True)
        ]
        return Answer(201, AppendAnswer(views))


def refusal(refused: RefusedAppend, kind: str, subject: object) -> ApiProblem:
    match refused.why:
        case AppendRefusal.INVALID:
            return invalid(refused.problems)
        case AppendRefusal.ENDED:
            return ended()
        case AppendRefusal.STOPPED:
            detail = "the workflow is being stopped: nothing of it starts any more"
            return ApiProblem(Code.CONFLICT, detail)
        case AppendRefusal.PLAIN:
            return invalid([Problem("", "belongs to a node of a workflow")])
        case AppendRefusal.UNKNOWN:
            return not_found(kind, subject)
