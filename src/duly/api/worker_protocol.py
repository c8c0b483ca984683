"""Worker protocol endpoints: lease with a long poll, heartbeat, settle; all in batches.

Also the settlement of an asynchronous webhook, which its receiver sends.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.admission import WorkSlicer
from duly.api.asgi import Endpoint, Kind
from duly.api.list_body import decode_list
from duly.api.problems import ApiProblem, Code, ProblemDetails, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.tasks import TAG, task_id_of
from duly.api.wire import NULL, PoolName, as_stored, node_fields
from duly.api.workflow_appends import AppendChecks
from duly.api.workflow_wire import AppendRequest, ParentView
from duly.domain import limits
from duly.domain.access import PRODUCERS, WORKERS
from duly.domain.limits import Problem
from duly.domain.states import Outcome, State
from duly.domain.task import BAND_NAMES, DEFAULT_POOL
from duly.domain.trace_context import trace_of_attempt
from duly.execution.worker_leases import LeaseCall, WorkerLeases, holder_of
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import ACCEPTED_ASYNC, Beat, HeartbeatStatus, Lease
from duly.store.read import ReadBatcher, Task
from duly.store.workflow_inputs import NodeInput, NodeInputs
from duly.store.workflows import Parent

LEASE_MAX = 500
POOLS_MAX = 32
SLOTS_MAX = 100_000
WAIT_S_MAX = 30.0
HEARTBEATS_MAX = 1000
SETTLE_MAX = 1000
SETTLE_BYTES_MAX = 16 * 1024 * 1024
WORKER_TAG = "Workers"
FENCE_MAX = 2**31 - 1

WorkerId = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
Band = Literal["high", "normal", "low"]
ALL_BANDS: tuple[Band, ...] = ("high", "normal", "low")
LeaseSeconds = Annotated[float, Meta(ge=limits.LEASE_S_MIN, le=limits.LEASE_S_MAX)]
Fence = Annotated[int, Meta(ge=0, le=FENCE_MAX)]
Software = Annotated[str, Meta(max_length=64, pattern=r"^[\x21-\x7e]*$")]
Settleable = Literal["completed", "failed", "rejected", "cancelled", "released", "snoozed"]


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`worker_id` is unique to one start of one process; `request_id` to one request and its
    retries. For the worker's history: `sdk` and its version, `version` of the program, and `slots`,
    how many attempts it runs at a time."""

    worker_id: WorkerId
    pools: Annotated[tuple[PoolName, ...], Meta(min_length=1, max_length=POOLS_MAX)] = (
        DEFAULT_POOL,
    )
    bands: Annotated[tuple[Band, ...], Meta(min_length=1, max_length=3)] = ALL_BANDS
    max: Annotated[int, Meta(ge=1, le=LEASE_MAX)] = 50
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_S_MAX)] = 20.0
    lease_s: LeaseSeconds = 15.0
    request_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    sdk: Software = ""
    version: Software = ""
    slots: Annotated[int, Meta(ge=0, le=SLOTS_MAX)] = 0


class LeasedTask(msgspec.Struct, frozen=True, kw_only=True):
    """`traceparent`: the W3C trace context to go on with, the caller's where it gave one.
    `again`: the lease was granted to this worker earlier, maybe long before this request; a
    heartbeat says until when it lasts. `node`: of a workflow node, its name. `parents`: how those
    it comes after ended; where they are many or their results long, they are read in pages at
    `parents_url`."""

    id: UUID
    fence: int
    attempt: int
    max_attempts: int
    type: str
    payload: msgspec.Raw | None
    scheduled_for: datetime
    started_at: datetime
    lease_until: datetime
    timeout_s: float
    execution_key: str
    progress: msgspec.Raw | None
    traceparent: str
    again: bool = False
    node: str | None = None
    parents: dict[str, ParentView] | None = None
    parents_url: str | None = None


class LeaseAnswer(msgspec.Struct, frozen=True):
    tasks: list[LeasedTask]


class HeartbeatItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: UUID
    fence: Fence
    progress: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)


class HeartbeatRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    worker_id: WorkerId
    leases: Annotated[list[HeartbeatItem], Meta(min_length=1, max_length=HEARTBEATS_MAX)]
    lease_s: LeaseSeconds = 15.0


class HeartbeatView(msgspec.Struct, frozen=True):
    id: UUID
    status: HeartbeatStatus
    lease_until: datetime | None = None


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    items: list[HeartbeatView]


class DeregisterRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    worker_id: WorkerId


class TaskSettlement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`error_kind` is what a retry policy's `non_retryable` names. `append`: of a completed node of
    a workflow, nodes that are added in the same commit."""

    fence: Fence
    outcome: Settleable
    result: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    error: str | None = None
    error_kind: Annotated[str, Meta(max_length=128)] = ""
    retry_in_s: Annotated[float, Meta(ge=0, le=limits.DELAY_S_MAX)] | None = None
    append: AppendRequest | None = None


class SettleItem(TaskSettlement, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same, of one task among many."""

    id: UUID


class SettleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    worker_id: WorkerId
    settlements: Annotated[list[SettleItem], Meta(min_length=1, max_length=SETTLE_MAX)]


class SettleView(msgspec.Struct, frozen=True, omit_defaults=True):
    """`refused`: the nodes to append were; nothing is stored, and the lease stays."""

    id: UUID
    status: SettleStatus
    state: State | None = None
    problem: ProblemDetails | None = None


class SettleResult(msgspec.Struct, frozen=True):
    items: list[SettleView]


@dataclass(frozen=True)
class WorkerRoutes:
    worker_leases: WorkerLeases
    reading: ReadBatcher
    inputs: NodeInputs
    appending: AppendChecks

    def endpoints(self) -> list[Endpoint]:
        route = partial(Endpoint, access=WORKERS, tag=WORKER_TAG)
        finishing = partial(route, is_for_suspended=True)
        return [
            route(
                "POST",
                "/v1/worker/lease",
                "Take tasks of some pools, waiting for the first",
                self.lease,
                Kind.HOT,
                body=LeaseRequest,
                answers={200: LeaseAnswer},
                refusals=(Code.TOO_MANY,),
                timeout_s=WAIT_S_MAX + 30.0,
            ),
            finishing(
                "POST",
                "/v1/worker/heartbeat",
                "Keep leases, and learn which are lost or cancelled",
                self.heartbeat,
                Kind.HOT,
                body=HeartbeatRequest,
                answers={200: HeartbeatAnswer},
                body_bytes_max=SETTLE_BYTES_MAX,
                decode=decode_heartbeats,
            ),
            finishing(
                "POST",
                "/v1/worker/settle",
                "Say how attempts ended",
                self.settle,
                Kind.HOT,
                body=SettleRequest,
                answers={200: SettleResult},
                body_bytes_max=SETTLE_BYTES_MAX,
                decode=decode_settlements,
            ),
            finishing(
                "POST",
                "/v1/worker/deregister",
                "Say that a worker has drained and takes no more tasks",
                self.deregister,
                Kind.HOT,
                body=DeregisterRequest,
                answers={204: None},
            ),
            Endpoint(
                "POST",
                "/v1/tasks/{id}/settle",
                "Settle a task that a webhook receiver took over",
                self.settle_task,
                Kind.HOT,
                access=PRODUCERS | WORKERS,
                body=TaskSettlement,
                answers={200: SettleView},
                refusals=(Code.NOT_FOUND, Code.STALE),
                is_for_suspended=True,
                tag=TAG,
            ),
        ]

    async def lease(self, call: Call, asked: LeaseRequest) -> Answer:
        """Ends when there is a task, the time is up, or the caller hangs up."""
        request = LeaseCall(
            call.tenant,
            asked.worker_id,
            tuple(dict.fromkeys(asked.pools)),
            tuple({BAND_NAMES[band] for band in asked.bands}),
            asked.max,
            asked.wait_s,
            asked.lease_s,
            asked.request_id,
            asked.sdk,
            asked.version,
            asked.slots,
        )
        leasing = asyncio.ensure_future(self.worker_leases.lease(request))
        gone = asyncio.ensure_future(call.gone())
        try:
            await asyncio.wait({leasing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not leasing.done():
                leasing.cancel()
            granted = await leasing
            has_hung_up = gone.done()
        except asyncio.CancelledError:
            if not gone.done():
                raise
            await self.worker_leases.doubt(call.tenant, asked.worker_id)
            return Answer(200, LeaseAnswer([]))
        finally:
            leasing.cancel()
            gone.cancel()
            await asyncio.gather(leasing, gone, return_exceptions=True)
        if granted.leases and has_hung_up and not granted.again:
            # Release the leases, so that another worker can run them; no
            # attempt is charged.
            await self.release_leases(call.tenant, asked.worker_id, granted.leases)
            await self.worker_leases.doubt(call.tenant, asked.worker_id)
            return Answer(200, LeaseAnswer([]))
        parents = await self.inputs.of([lease.id for lease in granted.leases])
        tasks = [
            leased_task(lease, granted.again, parents.get(lease.id)) for lease in granted.leases
        ]
        return Answer(200, LeaseAnswer(tasks))

    async def release_leases(self, tenant: int, worker_id: str, leases: list[Lease]) -> None:
        holder = holder_of(tenant, worker_id)
        await self.worker_leases.settle(
            [Settlement(lease.id, lease.fence, holder, Outcome.RELEASED) for lease in leases]
        )

    async def deregister(self, call: Call, asked: DeregisterRequest) -> Answer:
        await self.worker_leases.deregister(call.tenant, asked.worker_id)
        return Answer(204)

    async def heartbeat(self, call: Call, asked: HeartbeatRequest) -> Answer:
        problems = [
            Problem(f"/leases/{ordinal}/progress", reason)
            for ordinal, item in enumerate(asked.leases)
            if (reason := too_long(item.progress, limits.PROGRESS_BYTES_MAX))
        ]
        if problems:
            raise invalid(problems)
        beats = [Beat(item.id, item.fence, text_of(item.progress)) for item in asked.leases]
        answers = await self.worker_leases.heartbeat(
            call.tenant, asked.worker_id, beats, asked.lease_s
        )
        views = [
            HeartbeatView(beat.id, answer.status, answer.lease_until)
            for beat, answer in zip(beats, answers, strict=True)
        ]
        return Answer(200, HeartbeatAnswer(views))

    async def settle(self, call: Call, asked: SettleRequest) -> Answer:
        holder = holder_of(call.tenant, asked.worker_id)
        problems: list[Problem] = []
        for ordinal, item in enumerate(asked.settlements):
            problems += settlement_problems(item, f"/settlements/{ordinal}")
        if problems:
            raise invalid(problems)
        settlements = [settlement_of(item.id, item, holder) for item in asked.settlements]
        if any(item.append is not None for item in asked.settlements):
            return Answer(200, SettleResult(await self.settle_some(call, asked, settlements)))
        answers = await self.worker_leases.settle(settlements)
        views = [
            SettleView(item.id, answer.status, answer.state)
            for item, answer in zip(settlements, answers, strict=True)
        ]
        return Answer(200, SettleResult(views))

    async def settle_some(
        self, call: Call, asked: SettleRequest, settlements: list[Settlement]
    ) -> list[SettleView]:
        """Those without nodes to append together, and each of the others by itself after that."""
        appends = [item.append for item in asked.settlements]
        plain = [each for each, append in zip(settlements, appends, strict=True) if append is None]
        answers = iter(await self.worker_leases.settle(plain) if plain else ())
        views = []
        for ordinal, (settlement, append) in enumerate(zip(settlements, appends, strict=True)):
            if append is None:
                answer = next(answers)
                views.append(SettleView(settlement.id, answer.status, answer.state))
            else:
                at = f"/settlements/{ordinal}/append"
                views.append(await self.settle_appending(call, settlement, append, at))
        return views

    async def settle_appending(
        self, call: Call, settlement: Settlement, asked: AppendRequest, at: str
    ) -> SettleView:
        try:
            answer = await self.appending.settle(call, settlement, asked, at)
        except ApiProblem as refused:
            problem = refused.details()
            return SettleView(settlement.id, SettleStatus.REFUSED, problem=problem)
        self.worker_leases.note_settlement(settlement, answer)
        return SettleView(settlement.id, answer.status, answer.state)

    async def settle_task(self, call: Call, asked: TaskSettlement) -> Answer:
        task_id = task_id_of(call)
        task = await self.reading.read(call.tenant, task_id)
        if task is None:
            raise not_found("task", task_id)
        if problems := settlement_problems(asked, ""):
            raise invalid(problems)
        settlement = settlement_of(task_id, asked, ACCEPTED_ASYNC)
        answer = await self.settle_accepted_async(call, settlement, task, asked.append)
        if answer.status is SettleStatus.STALE and await self.worker_leases.accept_async(
            task_id, asked.fence
        ):
            # The receiver settled before the executor recorded that it accepted the task
            # asynchronously.
            answer = await self.settle_accepted_async(call, settlement, task, asked.append)
        if answer.status is SettleStatus.STALE:
            detail = (
                "the lease with this fence has ended, or the task was not accepted by a receiver"
            )
            raise ApiProblem(Code.STALE, detail)
        return Answer(200, SettleView(task_id, answer.status, answer.state))

    async def settle_accepted_async(
        self, call: Call, settlement: Settlement, task: Task, append: AppendRequest | None
    ) -> SettleAnswer:
        if task.url is not None:
            run_s = accepted_for_s(task, self.worker_leases.environment.clock.now())
            self.worker_leases.expect_end(task.id, settlement.fence, task.type, run_s)
        if append is None:
            (answer,) = await self.worker_leases.settle([settlement])
            return answer
        answer = await self.appending.settle(call, settlement, append, "/append")
        self.worker_leases.note_settlement(settlement, answer)
        return answer


async def decode_heartbeats(_call: Call, raw: bytes, pace: WorkSlicer) -> HeartbeatRequest:
    return await decode_list(raw, HeartbeatRequest, pace)


async def decode_settlements(_call: Call, raw: bytes, pace: WorkSlicer) -> SettleRequest:
    return await decode_list(raw, SettleRequest, pace)


def accepted_for_s(task: Task, now: datetime) -> float:
    """How long the attempt has run: a lease that was handed over lasts for its whole time limit."""
    if task.holder != ACCEPTED_ASYNC or task.lease_until is None:
        return 0.0
    return max(task.policy.timeout_s - (task.lease_until - now).total_seconds(), 0.0)


def leased_task(lease: Lease, again: bool, given: NodeInput | None = None) -> LeasedTask:
    policy = lease.policy
    parents = None if given is None or given.parents is None else parent_views(given.parents)
    return LeasedTask(
        id=lease.id,
        fence=lease.fence,
        attempt=lease.attempt,
        max_attempts=policy.retry.max_attempts,
        type=lease.type,
        payload=as_stored(lease.payload),
        scheduled_for=lease.scheduled_for,
        started_at=lease.started_at,
        lease_until=lease.lease_until,
        timeout_s=policy.timeout_s,
        execution_key=lease.execution_key,
        progress=as_stored(lease.progress),
        traceparent=trace_of_attempt(lease.id, lease.fence, lease.traceparent).header(),
        again=again,
        node=node_name(lease),
        parents=parents,
        parents_url=None if given is None else given.parents_url,
    )


def node_name(lease: Lease) -> str | None:
    """As the task itself says it."""
    name: str | None = node_fields(lease.id, lease.execution_key).get("node")
    return name


def parent_views(parents: Sequence[Parent]) -> dict[str, ParentView]:
    return {each.name: ParentView(each.state, as_stored(each.result)) for each in parents}


def settlement_of(task_id: UUID, item: TaskSettlement, holder: UUID) -> Settlement:
    return Settlement(
        task_id,
        item.fence,
        holder,
        Outcome(item.outcome),
        text_of(item.result),
        item.error,
        item.error_kind,
        item.retry_in_s,
    )


def settlement_problems(item: TaskSettlement, at: str) -> list[Problem]:
    """What is too long is refused as a whole: the lease stays, and a shorter one can follow."""
    found = []
    if reason := too_long(item.result, limits.RESULT_BYTES_MAX):
        found.append(Problem(f"{at}/result", reason))
    if item.error is not None and (
        reason := limits.bytes_reason(item.error, limits.ERROR_BYTES_MAX)
    ):
        found.append(Problem(f"{at}/error", reason))
    if item.append is not None and item.outcome != "completed":
        found.append(Problem(f"{at}/append", "belongs to the outcome completed"))
    return found


def too_long(value: msgspec.Raw, most: int) -> str | None:
    size = len(bytes(value))
    return f"is {size} bytes, and {most} is the most" if size > most else None


def text_of(value: msgspec.Raw) -> str | None:
    """JSON null is nothing."""
    text = bytes(value).decode()
    return None if text == "null" else text
