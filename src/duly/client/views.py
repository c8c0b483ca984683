"""What the server answers about everything but tasks, as typed objects. Fields that a newer server
adds are ignored."""

from datetime import date, datetime
from typing import Any, Literal

import msgspec

from duly.domain.states import TERMINAL, State


class View(msgspec.Struct, frozen=True):
    """Facts of one answer."""


class GateView(View, frozen=True):
    """`until` is when it opens by itself, `unblock` what would open it now."""

    gate: str
    open: bool
    reason: str | None = None
    until: datetime | None = None
    unblock: str | None = None


class Explanation(View, frozen=True):
    """Why a task has not run yet: `summary` in a sentence, `binding` the gate to look at first."""

    state: State
    summary: str
    gates: list[GateView] = []
    binding: str | None = None
    estimate_at: datetime | None = None


class SchedulePause(View, frozen=True):
    at: datetime
    by: str
    reason: str


class Cadence(View, frozen=True):
    """Of the newest occurrences: how many were to fire, and how many fired on time."""

    expected: int
    fired: int
    flag: str | None = None


class Schedule(View, frozen=True):
    """Makes a task at each of its times, or starts a `workflow`. Lists leave out payloads and
    graphs."""

    id: str
    name: str
    state: Literal["ACTIVE", "PAUSED", "ENDED"]
    created_at: datetime
    updated_at: datetime
    task: Any = None
    workflow: Any = None
    cron: str | None = None
    every_s: int | None = None
    timezone: str = "UTC"
    misfire: str = "coalesce"
    misfire_window_s: float = 3600.0
    overlap: str = "allow"
    max_running: int | None = None
    dst_gap: str = "shift"
    dst_repeat: str = "first"
    jitter_s: float = 0.0
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_fires: int | None = None
    exclude_dates: list[date] = []
    paused: SchedulePause | None = None
    next_at: datetime | None = None
    next_due_at: datetime | None = None
    jitter_offset_s: float = 0.0
    fires: int = 0
    running: int | None = None
    cadence: Cadence | None = None


class Occurrence(View, frozen=True):
    nominal_at: datetime
    decided_at: datetime
    late_s: float
    verdict: str
    task_id: str | None = None
    workflow_id: str | None = None


class Fire(View, frozen=True):
    """`wall` is the local time that was asked for; with a `verdict` it will not fire."""

    at: datetime
    wall: datetime
    due_by: datetime
    verdict: str | None = None


class ClockChange(View, frozen=True):
    at: datetime
    kind: str
    wall_before: datetime
    wall_after: datetime
    effect: str
    touched: list[Fire] = []


class Preview(View, frozen=True):
    fires: list[Fire]
    clock_changes: list[ClockChange] = []
    closest_s: int = 0


class Backfill(View, frozen=True):
    dry_run: bool
    matched: int
    made: int
    known: int
    pending: int
    last_at: datetime | None = None


class DeadLetter(View, frozen=True):
    id: str
    type: str
    reason: str
    fingerprint: str
    attempts: int
    max_attempts: int
    priority: int
    target: dict[str, Any]
    created_at: datetime
    run_at: datetime
    failed_at: datetime
    execution_key: str
    error: str | None = None
    replayed_as: str | None = None
    tags: dict[str, str] | None = None
    payload: Any = None


class DeadLetterGroup(View, frozen=True):
    """Dead letters with the same kind of failure."""

    fingerprint: str
    type: str
    reason: str
    count: int
    first_at: datetime
    last_at: datetime
    example: str | None = None


class ManyDone(View, frozen=True):
    """`has_more`: more match; call again."""

    dry_run: bool
    matched: int
    done: int
    has_more: bool
    last_at: datetime | None = None


class Tenant(View, frozen=True):
    name: str
    weight: float = 1.0
    in_flight_max: int | None = None
    dispatch_rate: float | None = None
    dispatch_burst: float | None = None
    submit_rate: float | None = None
    submit_burst: float | None = None
    stored_max: int | None = None
    schedule_s_min: int = 1
    suspended: bool = False


class ApiKey(View, frozen=True):
    """`key` is the secret itself; it is shown once, where the key is made."""

    id: str
    name: str
    role: str
    reach: str
    created_at: datetime
    created_by: str
    types: list[str] | None = None
    signing: bool = False
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    rotated_from: str | None = None
    request_rate: float | None = None
    key: str | None = None


class TaskType(View, frozen=True):
    """`schema` is what payloads must fit, `defaults` what a submit need not say, `keys` who may
    submit it."""

    name: str
    schema: Any
    created_at: datetime
    updated_at: datetime
    defaults: dict[str, Any] | None = None
    keys: list[str] | None = None


class Pause(View, frozen=True):
    kind: str
    actor: str
    reason: str
    paused_at: datetime
    name: str | None = None


class Breaker(View, frozen=True):
    kind: str
    name: str
    phase: str
    reason: str = ""
    open_until: datetime | None = None
    ramp_at: datetime | None = None


class WebhookSecret(View, frozen=True):
    """`secret` is shown once, where it is made."""

    id: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    secret: str | None = None


class NotificationRecipient(View, frozen=True):
    """One of them: a webhook, mail addresses, or the command of the server's configuration."""

    url: str | None = None
    headers: dict[str, str] = {}
    mail: list[str] | None = None
    command: bool = False


class Notification(View, frozen=True):
    """`lag_since`, `failing_since`: since when a bound is broken."""

    name: str
    to: NotificationRecipient
    dead_letters: bool
    missed_schedules: bool
    per_minute: int
    created_at: datetime
    updated_at: datetime
    created_by: str
    lag_s: float | None = None
    failures_per_minute: float | None = None
    lag_since: datetime | None = None
    failing_since: datetime | None = None


class NotificationTest(View, frozen=True):
    name: str
    task: str


class AuditRecord(View, frozen=True):
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: Any = None


class NodeCarrier(View, frozen=True):
    """The carrier of the ready queue as one process sees it. `problem`: why it takes no tickets."""

    kind: str
    address: str = ""
    problem: str | None = None
    falls_back: bool = True


class Node(View, frozen=True):
    """`failing`: roles that fail at every tick, and why."""

    id: str
    name: str
    version: str
    roles: list[str]
    started_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_live: bool
    slots: int = 0
    failing: dict[str, str] = {}
    carrier: NodeCarrier | None = None


class WorkerView(View, frozen=True):
    id: str
    holder: str
    pools: list[str]
    started_at: datetime
    seen_at: datetime
    expires_at: datetime


class WorkerHistory(View, frozen=True):
    """What one start of a worker did. `failed` are attempts that failed, tried again or not; `lost`
    leases that ran out; `busy_share` is of its slots and its time."""

    id: str
    holder: str
    sdk: str
    version: str
    pools: list[str]
    slots: int | None
    first_seen_at: datetime
    last_seen_at: datetime
    is_live: bool
    completed: int
    failed: int
    lost: int
    other: int
    busy_s: float
    busy_share: float | None


class CompensationProgress(View, frozen=True):
    """`completed`: what is undone; `failed`: what could not be; `not_undone`: names of nodes and
    items that stay done, the first 20, of a workflow that has ended and is not of a list."""

    state: State
    started_at: datetime
    completed: int
    failed: int
    not_undone: list[str] | None = None


class WorkflowAround(View, frozen=True):
    """The node that stands for a workflow, and the workflow that it is in."""

    workflow: str
    node: str


class InnerWorkflow(View, frozen=True):
    """The workflow that a node started, and with which it ends."""

    id: str
    name: str
    state: State


class WorkflowData(msgspec.Struct, kw_only=True):
    """`counts`: how many nodes are in each state. `stop_reason`: why the rest was cancelled.
    `compensation`: of one that failed, how far what completed is undone.
    `parent`: of one within another."""

    id: str
    name: str
    state: State
    node_count: int = msgspec.field(name="nodes")
    edge_count: int = msgspec.field(name="edges")
    counts: dict[str, int]
    created_at: datetime
    on_failure: str = "finish_branches"
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    stop_reason: str | None = None
    type: str | None = None
    resumed_from: str | None = None
    parent: WorkflowAround | None = None
    paused_at: datetime | None = None
    paused_by: str | None = None
    tags: dict[str, str] | None = None
    compensation: CompensationProgress | None = None
    critical_path: list[str] | None = None
    estimate_at: datetime | None = None

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


class MapProgress(View, frozen=True):
    """How far a map is. `items`: how many it has, once that is known; `made`: those that have a
    task; `open`: those of them that have not ended; `tolerated`: how many may fail."""

    made: int
    open: int
    completed: int
    failed: int
    cancelled: int
    items: int | None = None
    tolerated: int | None = None


class WorkflowNode(View, frozen=True):
    """A node of a workflow as it stands; its task has the same id. `parents_pending`: how many of
    its parents have not ended. `source`: of one that is reused, the task that ran for it. `index`:
    of an item, its place in its map. `compensates`: the node or item that it undoes.
    `workflow`: the one that it started."""

    id: str
    name: str
    state: State
    when: str
    kind: str = "task"
    type: str | None = None
    parents: int = 0
    parents_pending: int | None = None
    delay_s: float = 0.0
    next_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str | None = None
    source: str | None = None
    map: MapProgress | None = None
    index: int | None = None
    compensates: str | None = None
    workflow: InnerWorkflow | None = None


class ResumePreview(View, frozen=True):
    """How many nodes would run again, the first of them, and how many would be reused."""

    again: int
    reused: int
    nodes: list[str]


class WorkflowType(View, frozen=True):
    """A version of a workflow type, which never changes. Lists leave out its `definition`."""

    name: str
    version: int
    nodes: int
    created_at: datetime
    definition: dict[str, Any] | None = None


class GraphNode(View, frozen=True):
    name: str
    state: State
    after: list[str] = []
    when: str = "all_completed"
    kind: str = "task"
    map: MapProgress | None = None
    compensation: State | None = None
    workflow: InnerWorkflow | None = None


class WorkflowGraph(View, frozen=True):
    """All nodes in the order in which they were given."""

    id: str
    name: str
    state: State
    nodes: list[GraphNode]


class BindingParent(View, frozen=True):
    name: str
    state: State
    next_at: datetime | None = None


class WaitingFor(View, frozen=True):
    """A signal, who may send it, and until when; or only until when."""

    signal: str | None = None
    role: str | None = None
    until: datetime | None = None


class NodeExplanation(View, frozen=True):
    """Why a node stands where it does: `detail` in a sentence, the parents that bind it, the nodes
    at the beginning of all chains to it which could move now, what a wait waits for, and the
    workflow that it started."""

    id: str
    name: str
    state: State
    when: str
    detail: str
    parents: list[BindingParent] = []
    blocked_by: list[BindingParent] = []
    waits_for: WaitingFor | None = None
    workflow: InnerWorkflow | None = None


class WorkflowExplanation(View, frozen=True):
    """Of one node, or of the first nodes that have not ended."""

    id: str
    state: State
    nodes: list[NodeExplanation]


class WorkflowSignal(View, frozen=True):
    """A signal as it stands. `node`: which one got it; without it, it is kept for one that will
    wait. The answer to the one who sent it has no payload."""

    number: int
    name: str
    sender: str
    role: str
    received_at: datetime
    node: str | None = None
    consumed_at: datetime | None = None
    idempotency_key: str | None = None
    payload: Any = None


class BulkItem(View, frozen=True):
    id: str
    type: str


class BulkPreview(View, frozen=True):
    """`has_more`: more match, or may match, than were counted. `sample`: the first of them."""

    matched: int
    has_more: bool
    sample: list[BulkItem] = []


class BulkOperation(View, frozen=True):
    """`done` were changed, `refused` were not: they had ended, ran, or waited for other tasks."""

    id: str
    action: str
    state: Literal["RUNNING", "PAUSED_AFTER_CANARY", "DONE", "STOPPED", "FAILED"]
    filter: dict[str, Any]
    rate_per_s: float
    matched: int
    has_more: bool
    done: int
    refused: int
    actor: str
    created_at: datetime
    updated_at: datetime
    delay_s: float | None = None
    canary: int | None = None
    sample: list[BulkItem] = []
    ended_at: datetime | None = None
    error: str | None = None


class Erasure(View, frozen=True):
    """`matched`: ended tasks that still had their data. `unfinished`: matching tasks that have not
    ended and keep theirs; cancel them first."""

    dry_run: bool
    matched: int
    erased: int
    unfinished: int


class ErasureBatch(Erasure, frozen=True):
    next_cursor: str | None = None


class LogLine(View, frozen=True):
    """A line that a handler logged; `fence` tells the attempts apart."""

    fence: int
    at: datetime
    level: str
    text: str


class LogPage(View, frozen=True):
    items: list[LogLine]
    is_over: bool
    after: str | None = None


class StatsPoint(View, frozen=True):
    """`lag`: from the fire time to the start. `run`: how long attempts took. None: nothing ran."""

    at: datetime
    submitted: int
    started: int
    completed: int
    failed: int
    retried: int
    lag_p50_s: float | None = None
    lag_p99_s: float | None = None
    run_p50_s: float | None = None
    run_p99_s: float | None = None


class StatsOverTime(View, frozen=True):
    """A step in which nothing happened has no point. `total` is the whole range in one."""

    to: datetime
    step_s: int
    total: StatsPoint
    items: list[StatsPoint]
    since: datetime = msgspec.field(name="from")


class BandStats(View, frozen=True):
    band: str
    ready: int
    scheduled: int
    oldest_ready_s: float | None = None


class PoolStats(View, frozen=True):
    """A pool with due tasks, and how many live workers take from it."""

    name: str
    oldest_ready_s: float
    workers: int


class StatsNow(View, frozen=True):
    """A count that has reached `count_max` means that many or more. `drain_s`: how long the ready
    work lasts at the pace of the last minutes."""

    at: datetime
    count_max: int
    bands: list[BandStats]
    in_flight: int
    dead_letters: int
    pools: list[PoolStats]
    started_per_s: float
    lag_p50_s: float | None = None
    lag_p99_s: float | None = None
    drain_s: float | None = None


class TenantStats(View, frozen=True):
    tenant: str
    submitted: int
    started: int
    completed: int
    failed: int
    retried: int
    lag_p50_s: float | None = None
    lag_p99_s: float | None = None
