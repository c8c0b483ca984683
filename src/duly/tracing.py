"""Spans of tasks for OpenTelemetry: submit, wait, run. Off, only the caller's context is kept.

Sampling is decided once, at submit: by the caller's flag, or by chance where the caller has no
trace, and stored with the task. The span of an attempt has an id that follows from task and fence,
so that workers and receivers can nest theirs under it.

| event | what happens |
|---|---|
| collector away, or slow | spans are dropped, never waited for |
| killed | spans that were not exported yet are missing |
| an attempt is settled at another process than the one that leased it | its run has no span |
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from duly import __version__
from duly.domain.errors import ConfigurationError
from duly.domain.ids import is_node, node_number, workflow_of
from duly.domain.states import Outcome
from duly.domain.trace_context import (
    TraceContext,
    attempt_span_id,
    new_span_id,
    new_trace,
    read_traceparent,
)
from duly.environment import Environment
from duly.events import TaskEvents, TasksFinished, TasksLeased, TasksRescheduled, TasksStored
from duly.store.lease import Lease
from duly.store.workflows import Parent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

SPANS_PATH = "/v1/traces"
HTTP = "http"
# Of what was begun here and has not ended.
OPEN_SUBMITS_MAX = 10_000
OPEN_ATTEMPTS_MAX = 100_000
FLUSH_S = 5.0


class Tracing:
    """Off: nothing is exported."""

    def begin_submit(self, header: str | None) -> str | None:
        """The `traceparent` to store with a task that came with this one."""
        known = read_traceparent(header)
        return None if known is None else known.header()

    def begin_occurrence(self, _schedule: UUID) -> str | None:
        """The `traceparent` to store with what a schedule makes."""
        return None

    def subscribe(self, events: TaskEvents) -> None:
        """Nothing is followed."""

    def on_inputs(self, found: Mapping[UUID, Sequence[Parent]]) -> None:
        """Of nodes that are about to run, the parents."""

    async def close(self) -> None:
        """Nothing to flush."""


OFF = Tracing()


class OpenSubmit(NamedTuple):
    began_at: datetime
    # The caller's span; None: the trace begins here.
    parent: TraceContext | None
    # The occurrence before, of a schedule.
    before: TraceContext | None = None


class SpanExport:
    """The OpenTelemetry SDK, told of spans after they ended."""

    def __init__(self, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class GivenIds(RandomIdGenerator):
            """The SDK asks for the ids of a span; ours are known before."""

            given = TraceContext(1, 1, is_sampled=True)

            def generate_span_id(self) -> int:
                return self.given.span_id

            def generate_trace_id(self) -> int:
                return self.given.trace_id

        self.ids = GivenIds()
        self.provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create({"service.name": "duly", "service.version": __version__}),
            id_generator=self.ids,
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(processor)
        self.tracer = self.provider.get_tracer("duly", __version__)

    def add(
        self,
        name: str,
        kind: str,
        context: TraceContext,
        parent: TraceContext | None,
        began_at: datetime,
        ended_at: datetime,
        attributes: dict[str, Any],
        *,
        links: Sequence[TraceContext] = (),
        error: str | None = None,
    ) -> None:
        from opentelemetry import trace

        self.ids.given = context
        around = None if parent is None else as_parent(parent)
        span = self.tracer.start_span(
            name,
            context=around,
            kind=trace.SpanKind[kind],
            attributes=attributes,
            links=[trace.Link(as_span_context(linked)) for linked in links],
            start_time=nanoseconds(began_at),
        )
        if error is not None:
            span.set_status(trace.StatusCode.ERROR, error)
        span.end(nanoseconds(max(ended_at, began_at)))

    async def close(self) -> None:
        """The exporter waits for its collector, in threads."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await asyncio.to_thread(self.provider.force_flush, int(FLUSH_S * 1000))
                await asyncio.to_thread(self.provider.shutdown)
        except TimeoutError:
            return


class OpenTelemetryTracing(Tracing):
    """Listens to the events of this process."""

    def __init__(self, environment: Environment, export: SpanExport, sample_ratio: float) -> None:
        self.environment = environment
        self.export = export
        self.sample_ratio = sample_ratio
        self.submits: OrderedDict[str, OpenSubmit] = OrderedDict()
        self.attempts: OrderedDict[tuple[UUID, int], Lease] = OrderedDict()
        # The last occurrence of each schedule that was sampled here.
        self.occurrences: OrderedDict[UUID, TraceContext] = OrderedDict()
        # Last attempts of the parents of nodes that run.
        self.parents: OrderedDict[UUID, list[tuple[UUID, int]]] = OrderedDict()

    def begin_submit(self, header: str | None) -> str | None:
        parent, random = read_traceparent(header), self.environment.random
        if parent is not None and not parent.is_sampled:
            return parent.header()
        if parent is None and random.random() >= self.sample_ratio:
            return None
        context = new_trace(random) if parent is None else parent.child(random)
        return self.open_submit(context, parent)

    def open_submit(
        self,
        context: TraceContext,
        parent: TraceContext | None,
        before: TraceContext | None = None,
    ) -> str:
        stored = context.header()
        self.submits[stored] = OpenSubmit(self.environment.clock.now(), parent, before)
        if len(self.submits) > OPEN_SUBMITS_MAX:
            self.submits.popitem(last=False)
        return stored

    def begin_occurrence(self, schedule: UUID) -> str | None:
        """A trace of its own, with a link to that of the occurrence before."""
        random = self.environment.random
        if random.random() >= self.sample_ratio:
            return None
        context, before = new_trace(random), self.occurrences.pop(schedule, None)
        self.occurrences[schedule] = context
        if len(self.occurrences) > OPEN_SUBMITS_MAX:
            self.occurrences.popitem(last=False)
        return self.open_submit(context, None, before)

    def subscribe(self, events: TaskEvents) -> None:
        events.subscribe(TasksStored, self.on_stored)
        events.subscribe(TasksLeased, self.on_leased)
        events.subscribe(TasksFinished, self.on_ended)
        events.subscribe(TasksRescheduled, self.on_ended)

    def on_stored(self, event: TasksStored) -> None:
        for row in event.rows:
            stored = row.task.traceparent
            begun = self.submits.pop(stored, None) if stored is not None else None
            context = read_traceparent(stored)
            if begun is None or context is None:
                continue
            attributes = task_attributes(row.id, row.task.tenant, row.task.type)
            name = "start workflow" if is_node(row.id) else f"submit {row.task.type}"
            now = self.environment.clock.now()
            self.export.add(
                *(name, "PRODUCER", context, begun.parent, begun.began_at, now, attributes),
                links=[] if begun.before is None else [begun.before],
            )

    def on_inputs(self, found: Mapping[UUID, Sequence[Parent]]) -> None:
        for node, parents in found.items():
            self.parents[node] = [
                (each.id, each.fence) for each in parents if each.fence is not None
            ]
            if len(self.parents) > OPEN_ATTEMPTS_MAX:
                self.parents.popitem(last=False)

    def on_leased(self, event: TasksLeased) -> None:
        fires_at = {ticket.id: ticket.fires_at for ticket in event.tickets}
        for lease in event.leases:
            context = sampled(lease.traceparent)
            if context is None:
                continue
            self.attempts[lease.id, lease.fence] = lease
            if len(self.attempts) > OPEN_ATTEMPTS_MAX:
                self.attempts.popitem(last=False)
            due_s = fires_at.get(lease.id)
            due_at = lease.started_at if due_s is None else datetime.fromtimestamp(due_s, UTC)
            waiting = context._replace(span_id=new_span_id(self.environment.random))
            self.export.add(
                f"wait {lease.type}", "INTERNAL", waiting, context, due_at, lease.started_at,
                attempt_attributes(lease),
            )  # fmt: skip

    def on_ended(self, event: TasksFinished | TasksRescheduled) -> None:
        if not self.attempts:
            return
        for settlement in event.ended:
            lease = self.attempts.pop((settlement.id, settlement.fence), None)
            context = None if lease is None else sampled(lease.traceparent)
            if lease is None or context is None:
                continue
            is_well = settlement.outcome in (Outcome.COMPLETED, Outcome.SNOOZED, Outcome.RELEASED)
            attributes = attempt_attributes(lease) | {"duly.outcome": settlement.outcome.value}
            self.export.add(
                f"run {lease.type}",
                "CLIENT" if lease.url is not None else "CONSUMER",
                context._replace(span_id=attempt_span_id(lease.id, lease.fence)),
                context,
                lease.started_at,
                self.environment.clock.now(),
                attributes,
                links=self.links_of(lease, context),
                error=None if is_well else settlement.error_kind or settlement.outcome.value,
            )

    def links_of(self, lease: Lease, context: TraceContext) -> list[TraceContext]:
        """The attempt before, and the last ones of a node's parents: of the same trace."""
        before = [(lease.id, lease.fence - 2)] if is_retry(lease) else []
        parents = self.parents.pop(lease.id, [])
        return [
            context._replace(span_id=attempt_span_id(task_id, fence))
            for task_id, fence in before + parents
        ]

    async def close(self) -> None:
        await self.export.close()


def open_tracing(
    environment: Environment, endpoint: str, sample_ratio: float, protocol: str = HTTP
) -> Tracing:
    """Off without an endpoint; then the OpenTelemetry libraries are not even imported."""
    if not endpoint:
        return OFF
    try:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = make_exporter(endpoint, protocol)
    except ImportError:
        problem = 'otlp_endpoint is set, and OpenTelemetry is missing: pip install "duly[otel]"'
        raise ConfigurationError(problem=problem) from None
    return OpenTelemetryTracing(environment, SpanExport(BatchSpanProcessor(exporter)), sample_ratio)


def make_exporter(endpoint: str, protocol: str) -> "SpanExporter":
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        return over_http.OTLPSpanExporter(endpoint=endpoint.rstrip("/") + SPANS_PATH)
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

    is_plain = not endpoint.startswith("https://")
    return over_grpc.OTLPSpanExporter(endpoint=endpoint, insecure=is_plain)


def sampled(traceparent: str | None) -> TraceContext | None:
    context = read_traceparent(traceparent)
    return context if context is not None and context.is_sampled else None


def is_retry(lease: Lease) -> bool:
    """The fence rises at a lease and at its end: the attempt before had one less by two."""
    return lease.fence > 2 and lease.attempt > 1


def task_attributes(task_id: UUID, tenant: int, task_type: str) -> dict[str, Any]:
    known = {"duly.task.id": str(task_id), "duly.task.type": task_type, "duly.tenant": tenant}
    if is_node(task_id):
        known |= {"duly.workflow.id": str(workflow_of(task_id)), "duly.node": node_number(task_id)}
    return known


def attempt_attributes(lease: Lease) -> dict[str, Any]:
    return task_attributes(lease.id, lease.tenant, lease.type) | {
        "duly.attempt": lease.attempt,
        "duly.fence": lease.fence,
        "messaging.system": "duly",
    }


def as_span_context(context: TraceContext) -> Any:
    from opentelemetry import trace

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return trace.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags)


def as_parent(context: TraceContext) -> Any:
    from opentelemetry import trace

    return trace.set_span_in_context(trace.NonRecordingSpan(as_span_context(context)))


def nanoseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1e6) * 1000
