"""W3C trace context: what is read, what is ignored, and ids that every process finds again."""

from random import Random
from uuid import UUID

import pytest

from duly.domain.trace_context import (
    TraceContext,
    attempt_span_id,
    new_trace,
    read_traceparent,
    trace_of_attempt,
    trace_of_task,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TASK = UUID("019a5b6e-0000-7000-8000-000000000001")


def test_a_trace_context_is_read_and_written() -> None:
    """One bit of difference, and the caller's trace ends here."""
    context = read_traceparent(TRACE)
    assert context == TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
    assert context.header() == TRACE
    off = read_traceparent(TRACE[:-1] + "0")
    assert off is not None
    assert not off.is_sampled


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "no",
        TRACE + "-more",
        TRACE.upper(),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff" + TRACE[2:],
        "01" + TRACE[2:] + "-" + "x" * 500,
        TRACE + "\n",
        "00-\u0660af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_what_is_no_trace_context_is_ignored(header: str | None) -> None:
    """The standard asks for it: a broken tracer of a caller must not break the caller's submits."""
    assert read_traceparent(header) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """The standard promises that much of every later version."""
    assert read_traceparent("01" + TRACE[2:] + "-what-comes") == read_traceparent(TRACE)


def test_every_process_finds_the_same_span_of_an_attempt() -> None:
    """A receiver nests its span under one that another process exports later."""
    first = trace_of_attempt(TASK, 1, TRACE)
    assert first == trace_of_attempt(TASK, 1, TRACE)
    assert first != trace_of_attempt(TASK, 3, TRACE)
    assert first.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert first.span_id == attempt_span_id(TASK, 1) != 0
    assert trace_of_task(TASK, None).trace_id == TASK.int
    assert read_traceparent(new_trace(Random(1)).header()) == new_trace(Random(1))
