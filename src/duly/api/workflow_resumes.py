"""Resume over HTTP: a new workflow that runs again what did not finish in one that has ended."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.rate_limit import Throttle
from duly.api.request import Answer, Call
from duly.api.task_rules import TaskRules, permit_type
from duly.api.wire import TaskDefaults, TaskRequest
from duly.api.workflow_nodes import NodeName
from duly.api.workflow_wire import WorkflowView
from duly.api.workflows import TAG, kept_without_tags, workflow_id_of
from duly.domain.access import PRODUCERS
from duly.domain.ids import placement_time_of
from duly.domain.limits import PAYLOAD_BYTES_MAX, Problem, bytes_reason
from duly.domain.states import TERMINAL
from duly.domain.workflow import pointer_name
from duly.domain.workflow_resume import RATE_MAX, RATE_MIN, ResumePlan, plan_resume
from duly.environment import Environment
from duly.events import TaskEvents, TasksStored
from duly.store.control import publish_released
from duly.store.database import Database
from duly.store.finish import Released
from duly.store.load import hints_of
from duly.store.partitions import placement_range
from duly.store.workflow_resumes import (
    AlreadyResumed,
    EarlierRun,
    NotResumable,
    Resume,
    ResumeAnswer,
    Resumed,
    find_living,
    read_earlier,
    resume_workflow,
)
from duly.store.workflows import Workflow, read_workflow

BODY_BYTES_MAX = 1024 * 1024
# Nodes that are named, and payloads that are given, in one call.
NAMED_MAX = 1000
SHOWN_MAX = 100


class ResumeWorkflow(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    rename={"begin_at": "from"},
):
    """`from`: what failed or was cancelled, or named nodes; with all that comes after them. What
    runs first begins at `rate_per_s`. `payloads`: new ones, by node."""

    begin_at: (
        Literal["failed"] | Annotated[list[NodeName], Meta(min_length=1, max_length=NAMED_MAX)]
    ) = "failed"
    payloads: Annotated[dict[NodeName, msgspec.Raw], Meta(max_length=NAMED_MAX)] = {}
    rate_per_s: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)] | None = None
    dry_run: bool = False


class ResumePreview(msgspec.Struct, frozen=True):
    """How many nodes would run again, the first of them, and how many would be reused."""

    again: int
    reused: int
    nodes: list[str]
    dry_run: bool = True


class PreparedResume(NamedTuple):
    """What was read of the ended workflow, which does not change any more."""

    earlier: EarlierRun
    plan: ResumePlan
    payloads: dict[int, str]


@dataclass(frozen=True)
class WorkflowResumeRoutes:
    database: Database
    environment: Environment
    rules: TaskRules
    throttle: Throttle
    events: TaskEvents

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/v1/workflows/{id}/resume",
                "Resume a workflow that has ended: a new one, which reuses what finished",
                self.resume,
                Kind.CONTROL,
                access=PRODUCERS,
                body=ResumeWorkflow,
                is_body_optional=True,
                body_bytes_max=BODY_BYTES_MAX,
                checks_types=True,
                answers={201: WorkflowView, 200: ResumePreview},
                refusals=(
                    *(Code.NOT_FOUND, Code.GONE, Code.RUNNING, Code.CONFLICT),
                    *(Code.MALFORMED_BODY, Code.INVALID, Code.RATE_LIMITED, Code.QUOTA_EXCEEDED),
                ),
                tag=TAG,
                prepare=self.prepare,
            )
        ]

    async def prepare(self, call: Call, asked: ResumeWorkflow) -> None:
        """What has ended is read, and payloads are checked, before the call holds a connection."""
        workflow_id = workflow_id_of(call)
        workflow = await read_workflow(self.database, call.tenant, workflow_id)
        if workflow is None or workflow.ended_at is None:
            return
        earlier = await read_earlier(self.database, call.tenant, workflow_id)
        if earlier is None:
            return
        names = None if isinstance(asked.begin_at, str) else asked.begin_at
        plan = plan_resume(earlier.nodes, names)
        if not isinstance(plan, ResumePlan):
            raise invalid(plan)
        types = {earlier.types[number] for number in plan.again if number in earlier.types}
        for task_type in sorted(types):
            permit_type(call.credential, task_type)
        payloads = await self.payloads_of(call, asked, earlier, plan)
        if not asked.dry_run:
            await self.throttle.admit(call.tenant, len(plan.again))
        call.prepared = PreparedResume(earlier, plan, payloads)

    async def payloads_of(
        self, call: Call, asked: ResumeWorkflow, earlier: EarlierRun, plan: ResumePlan
    ) -> dict[int, str]:
        again = {
            earlier.nodes[number].name: number for number in plan.again if number in earlier.types
        }
        unknown = [name for name in asked.payloads if name not in again]
        if unknown:
            reason = "is no task that runs again"
            raise invalid([Problem(pointer_to(name), reason) for name in unknown])
        texts = {name: bytes(raw).decode() for name, raw in asked.payloads.items()}
        requests = [
            TaskRequest(type=earlier.types[again[name]], payload=raw)
            for name, raw in asked.payloads.items()
        ]
        answers = await self.rules.check_all(call.credential, call.tenant, requests)
        problems = [
            Problem(pointer_to(name) + answer.pointer.removeprefix("/payload"), answer.reason)
            for name, answer in zip(texts, answers, strict=True)
            if not isinstance(answer, TaskDefaults)
        ]
        lengths = {name: bytes_reason(text, PAYLOAD_BYTES_MAX) for name, text in texts.items()}
        problems += [Problem(pointer_to(name), each) for name, each in lengths.items() if each]
        if problems:
            raise invalid(problems)
        return {again[name]: text for name, text in texts.items()}

    async def resume(self, call: Call, asked: ResumeWorkflow) -> Answer:
        workflow_id = workflow_id_of(call)
        workflow = await read_workflow(call.session, call.tenant, workflow_id)
        if workflow is None:
            raise await missing(call, workflow_id)
        prepared = call.prepared
        if workflow.state not in TERMINAL or not isinstance(prepared, PreparedResume):
            raise refusal(NotResumable.LIVES)
        if not prepared.plan.again:
            detail = "nothing of the workflow failed or was cancelled; name nodes in `from`"
            raise ApiProblem(Code.CONFLICT, detail)
        if asked.dry_run:
            return Answer(200, await self.preview(call, workflow, prepared))
        answer = await resume_workflow(
            call.session,
            self.environment,
            call.tenant,
            Resume(workflow_id, prepared.plan, prepared.payloads, asked.rate_per_s),
            prepared.earlier,
        )
        if not isinstance(answer, Resumed):
            raise refusal(answer)
        facts = {"from": str(workflow_id), "again": len(prepared.plan.again)}
        call.note("workflow.resume", str(answer.id), **facts)
        call.after.append(partial(self.after_resume, call.tenant, answer.released))
        made = await read_workflow(call.session, call.tenant, answer.id)
        assert made is not None, "it was stored in this transaction"
        return kept_without_tags(made, 201)

    async def preview(
        self, call: Call, workflow: Workflow, prepared: PreparedResume
    ) -> ResumePreview:
        if prepared.earlier.is_erased:
            raise refusal(NotResumable.GONE)
        living = await find_living(call.session, call.tenant, workflow.id)
        if living is not None:
            raise refusal(AlreadyResumed(living))
        plan, nodes = prepared.plan, prepared.earlier.nodes
        names = [nodes[number].name for number in plan.again[:SHOWN_MAX]]
        return ResumePreview(len(plan.again), len(plan.reused), names)

    def after_resume(self, tenant: int, released: Released) -> None:
        self.events.publish(TasksStored(hints=hints_of(released.timers)))
        publish_released(self.events, tenant, Released(workflows=released.workflows))


async def missing(call: Call, workflow_id: UUID) -> ApiProblem:
    """What began this month is never deleted: such a workflow was never there."""
    kept = await placement_range(call.session)
    if placement_time_of(workflow_id) < kept.first:
        return refusal(NotResumable.GONE)
    return not_found("workflow", workflow_id)


def refusal(answer: ResumeAnswer) -> ApiProblem:
    match answer:
        case AlreadyResumed(living):
            detail = f"it is resumed already: workflow {living} has not ended"
            return ApiProblem(Code.CONFLICT, detail)
        case NotResumable.LIVES:
            return ApiProblem(Code.RUNNING, "the workflow has not ended")
        case NotResumable.COMPENSATED:
            detail = "what completed of the workflow was undone; start it anew"
            return ApiProblem(Code.CONFLICT, detail)
        case _:
            detail = "the workflow or its payloads are kept no more; start it anew"
            return ApiProblem(Code.GONE, detail)


def pointer_to(name: str) -> str:
    return f"/payloads/{pointer_name(name)}"
