"""A program with OpenTelemetry: its submits and its handlers belong to one trace."""

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duly.client.leased_tasks import LeasedTask
from duly.client.tracing import current_traceparent, handler_span
from duly.domain.trace_context import read_traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def leased(traceparent: str) -> LeasedTask:
    return msgspec.convert(
        {
            "id": "019a5b6e-0000-7000-8000-000000000001",
            "fence": 3,
            "attempt": 2,
            "max_attempts": 5,
            "type": "mail.send",
            "scheduled_for": "2026-01-01T00:00:00Z",
            "started_at": "2026-01-01T00:00:00Z",
            "lease_until": "2026-01-01T00:00:15Z",
            "timeout_s": 60.0,
            "execution_key": "k",
            "traceparent": traceparent,
        },
        LeasedTask,
    )


def test_a_handler_goes_on_with_the_trace_of_its_task(spans: InMemorySpanExporter) -> None:
    """What a handler calls would otherwise begin traces that nothing leads to."""
    with handler_span(leased(TRACE)):
        inside = read_traceparent(current_traceparent())
    (span,) = spans.get_finished_spans()
    assert span.name == "handle mail.send"
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == read_traceparent(TRACE)[:2]  # type: ignore[index]
    assert inside is not None
    assert inside.span_id == span.context.span_id, "a submit inside is its child"
    assert span.attributes is not None
    assert span.attributes["duly.attempt"] == 2


def test_an_exception_of_a_handler_passes_through(spans: InMemorySpanExporter) -> None:
    """A swallowed error would complete the task."""
    with pytest.raises(ValueError, match="no"), handler_span(leased(TRACE)):
        raise ValueError("no")
    (span,) = spans.get_finished_spans()
    assert not span.status.is_ok


@pytest.mark.parametrize("traceparent", ["", "broken"])
def test_a_task_without_a_trace_context_runs(spans: InMemorySpanExporter, traceparent: str) -> None:
    """An older server sends none."""
    with handler_span(leased(traceparent)):
        assert current_traceparent() is None
    assert spans.get_finished_spans() == ()
