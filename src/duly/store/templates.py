"""Templates, kept to be started later: a task of a schedule, a workflow of a type or of a schedule.

Defaults of task types were filled in when it was kept.
"""

import msgspec

from duly.domain.node_spec import NodeKind
from duly.domain.task import Submission
from duly.domain.workflow import OnFailure, WaitRule
from duly.domain.workflow_types import TypeReference
from duly.store.policies import decode_policy, encode_policy
from duly.store.workflow_nodes import decode_spec, encode_spec
from duly.store.workflows import NodeStart, WorkflowStart

NO_PAYLOAD = "null"
NULL = msgspec.Raw(b"null")


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that is submitted later."""

    type: str
    payload: str
    url: str | None = None
    pool: str = "default"
    priority: int = 5
    policy: str | None = None
    tags: dict[str, str] | None = None


class NodeTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a workflow that is started later; nodes are numbered from 1 in their order."""

    name: str
    task: Template
    parents: list[int] = []
    children: list[int] = []
    rule: int = 0
    delay_s: float = 0.0
    # As it is stored with the node.
    spec: str | None = None


class WorkflowTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workflow that is started later."""

    name: str
    nodes: list[NodeTemplate]
    on_failure: OnFailure = OnFailure.FINISH_BRANCHES
    deadline_s: float | None = None
    callback: str | None = None
    tags: dict[str, str] | None = None


class InnerStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node needs that starts a workflow: kept as the payload of the task that stands for it.
    A graph of its own; a type is named by the spec of the node."""

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    template: WorkflowTemplate | None = None

    @property
    def payload_text(self) -> str | None:
        """None: the nodes inside have their own."""
        return None if self.payload == NULL else bytes(self.payload).decode()


class ScheduledWorkflow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workflow that each occurrence of a schedule starts: a graph of its own, or that of a
    type, in one version or the latest of its time."""

    name: str
    template: WorkflowTemplate | None = None
    version: int | None = None
    payload: str | None = None
    # Of a type: those of its runs.
    deadline_s: float | None = None
    callback: str | None = None
    tags: dict[str, str] | None = None

    @property
    def tasks(self) -> list[Template]:
        """Of a graph of its own."""
        return [] if self.template is None else [node.task for node in self.template.nodes]

    @property
    def reference(self) -> TypeReference:
        assert self.template is None
        return TypeReference(self.name, self.version)


class WrappedWorkflow(msgspec.Struct, frozen=True):
    """How it is told from a task in the row of a schedule."""

    workflow: ScheduledWorkflow


WRAPPED_PREFIX = '{"workflow":'
TASK = msgspec.json.Decoder(Template)
INNER = msgspec.json.Decoder(InnerStart)
WRAPPED = msgspec.json.Decoder(WrappedWorkflow)


def encode_scheduled(scheduled: Template | ScheduledWorkflow) -> str:
    if isinstance(scheduled, ScheduledWorkflow):
        return msgspec.json.encode(WrappedWorkflow(scheduled)).decode()
    return msgspec.json.encode(scheduled).decode()


def decode_scheduled(text: str) -> Template | ScheduledWorkflow:
    if text.startswith(WRAPPED_PREFIX):
        return WRAPPED.decode(text).workflow
    return TASK.decode(text)


def template_of(task: Submission) -> Template:
    return Template(
        type=task.type,
        payload=task.payload,
        url=task.url,
        pool=task.pool,
        priority=task.priority,
        policy=encode_policy(task.policy),
        tags=task.tags,
    )


def task_from(template: Template, tenant: int, delay_s: float = 0.0) -> Submission:
    return Submission(
        tenant=tenant,
        type=template.type,
        payload=template.payload,
        delay_s=delay_s,
        url=template.url,
        pool=template.pool,
        priority=template.priority,
        policy=decode_policy(template.policy),
        tags=template.tags,
    )


def workflow_template_of(start: WorkflowStart) -> WorkflowTemplate:
    nodes = [
        NodeTemplate(
            node.name,
            template_of(node.task),
            list(node.parents),
            list(node.children),
            int(node.rule),
            node.task.delay_s,
            encode_spec(node.spec),
        )
        for node in start.nodes
    ]
    return WorkflowTemplate(
        start.name, nodes, start.on_failure, start.deadline_s, start.callback, start.tags
    )


def start_from(
    template: WorkflowTemplate, tenant: int, payload: str | None = None
) -> WorkflowStart:
    """A node without a payload of its own gets that of the workflow."""
    nodes = [node_from(node, tenant, payload) for node in template.nodes]
    return WorkflowStart(
        tenant=tenant,
        name=template.name,
        nodes=nodes,
        on_failure=template.on_failure,
        deadline_s=template.deadline_s,
        callback=template.callback,
        tags=template.tags,
    )


def node_from(node: NodeTemplate, tenant: int, payload: str | None) -> NodeStart:
    task, spec = task_from(node.task, tenant, node.delay_s), decode_spec(node.spec)
    if spec.kind is NodeKind.TASK:
        task = with_payload(task, payload)
    elif spec.kind is NodeKind.WORKFLOW and payload is not None:
        task = with_inner_payload(task, payload)
    return NodeStart(node.name, task, node.parents, node.children, WaitRule(node.rule), spec)


def with_payload(task: Submission, payload: str | None) -> Submission:
    if payload is None or task.payload != NO_PAYLOAD:
        return task
    return task._replace(payload=payload)


def with_inner_payload(task: Submission, payload: str) -> Submission:
    inner = INNER.decode(task.payload)
    if inner.payload != NULL:
        return task
    given = msgspec.structs.replace(inner, payload=msgspec.Raw(payload.encode()))
    return task._replace(payload=msgspec.json.encode(given).decode())
