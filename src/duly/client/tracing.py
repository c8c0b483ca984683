"""Trace context of the program's own OpenTelemetry, if it uses it: found where it was imported,
never imported here. A program without it pays for a look into a dict."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duly.client.leased_tasks import LeasedTask
from duly.domain.trace_context import TraceContext, read_traceparent

API = "opentelemetry.trace"


def current_traceparent() -> str | None:
    """Of the span in which a task is submitted."""
    trace: Any = sys.modules.get(API)
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return TraceContext(context.trace_id, context.span_id, context.trace_flags.sampled).header()


@contextmanager
def handler_span(task: LeasedTask) -> Iterator[None]:
    """Around a handler: a span that goes on with the trace of the task's submitter."""
    trace: Any = sys.modules.get(API)
    known = read_traceparent(task.traceparent) if trace is not None else None
    if known is None:
        yield
        return
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if known.is_sampled else 0)
    remote = trace.SpanContext(known.trace_id, known.span_id, is_remote=True, trace_flags=flags)
    around = trace.set_span_in_context(trace.NonRecordingSpan(remote))
    attributes = {
        "duly.task.id": task.id,
        "duly.task.type": task.type,
        "duly.attempt": task.attempt,
        "duly.fence": task.fence,
    }
    tracer = trace.get_tracer("duly.worker")
    with tracer.start_as_current_span(
        f"handle {task.type}", context=around, kind=trace.SpanKind.CONSUMER, attributes=attributes
    ):
        yield
