"""W3C trace context: the header `traceparent`, read and written. Knows nothing of spans."""

import hashlib
import re
from random import Random
from typing import NamedTuple
from uuid import UUID

FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
# Of a later version only the beginning is known, and more may follow.
LATER_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
TRACEPARENT_MAX = 200
SAMPLED = 1


class TraceContext(NamedTuple):
    """A span of a trace, as others name it."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def header(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"

    def child(self, random: Random) -> "TraceContext":
        """A new span of the same trace."""
        return self._replace(span_id=new_span_id(random))


def read_traceparent(header: str | None) -> TraceContext | None:
    """None for what is not a trace context: it is ignored, as the standard asks, never refused."""
    if header is None or len(header) > TRACEPARENT_MAX:
        return None
    found = FORM.fullmatch(header) or (
        None if header.startswith("00") else LATER_FORM.fullmatch(header)
    )
    if found is None:
        return None
    trace_id, span_id, flags = (int(found[group], 16) for group in (1, 2, 3))
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(flags & SAMPLED))


def trace_of_task(task_id: UUID, traceparent: str | None) -> TraceContext:
    """The caller's, or one that is named by the task: all its attempts are one trace. That one
    counts as sampled, so that a receiver decides for itself what it keeps."""
    known = read_traceparent(traceparent)
    return known or TraceContext(task_id.int, task_id.int & (2**64 - 1) or 1, is_sampled=True)


def trace_of_attempt(task_id: UUID, fence: int, traceparent: str | None) -> TraceContext:
    """The span of one attempt, which a worker or receiver nests its own under."""
    task = trace_of_task(task_id, traceparent)
    return task._replace(span_id=attempt_span_id(task_id, fence))


def attempt_span_id(task_id: UUID, fence: int) -> int:
    """Every process finds the same."""
    digest = hashlib.sha256(task_id.bytes + fence.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") or 1


def new_span_id(random: Random) -> int:
    return random.getrandbits(64) or 1


def new_trace(random: Random) -> TraceContext:
    return TraceContext(random.getrandbits(128) or 1, new_span_id(random), is_sampled=True)
