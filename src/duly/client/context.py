"""The context of a handler: its attempt, progress, logging, snooze and once."""

import threading
from collections.abc import AsyncIterable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from duly.client.leased_tasks import LeasedTask, ParentResult
from duly.client.logs import get_logger
from duly.client.outcomes import Snooze
from duly.domain.limits import DELAY_S_MAX, NUL_REASON, PROGRESS_BYTES_MAX, has_nul

if TYPE_CHECKING:
    from duly.client.attempt_logs import LineLog
    from duly.client.inbox import Once
    from duly.client.map_items import ItemHandover

making_events = threading.Lock()


class Flag:
    """Whether the handler should stop: true or not, and something that a thread can wait for."""

    __slots__ = ("event", "is_raised")

    def __init__(self) -> None:
        self.is_raised = False
        # Few handlers ever wait, and an event costs more than all the rest of a context.
        self.event: threading.Event | None = None

    def __bool__(self) -> bool:
        return self.is_raised

    def is_set(self) -> bool:
        """The same as its truth, in the words of `threading.Event`."""
        return self.is_raised

    def set(self) -> None:
        with making_events:
            self.is_raised = True
            if self.event is not None:
                self.event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is raised, at most that long; whether it is."""
        with making_events:
            if self.event is None:
                self.event = threading.Event()
                if self.is_raised:
                    self.event.set()
        return self.event.wait(timeout_s)


class Context:
    """`cancelled` is raised when the attempt has to stop: its task was cancelled, its time is up,
    its lease is lost, or the worker is going down."""

    __slots__ = (
        "attempt_log",
        "cancelled",
        "handover",
        "make_handover",
        "report",
        "reported",
        "task",
    )

    def __init__(self, task: LeasedTask, report: Callable[[bytes], None] | None = None) -> None:
        self.task = task
        # Where a worker keeps the lines of this attempt.
        self.attempt_log: LineLog | None = None
        # Of a worker: how items of maps go to the server, made at its first use.
        self.make_handover: Callable[[LeasedTask], ItemHandover] | None = None
        self.handover: ItemHandover | None = None
        # The handler's last words about its progress, and who else wants to hear them.
        self.reported: bytes | None = None
        self.report = report
        self.cancelled = Flag()

    @property
    def id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def type(self) -> str:
        """The task's type, which chose the handler."""
        return self.task.type

    @property
    def attempt(self) -> int:
        """1 for the first; attempts that were released or snoozed are not counted."""
        return self.task.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the task may have in all."""
        return self.task.max_attempts

    @property
    def fence(self) -> int:
        """Higher in every later attempt: a store that keeps the highest can refuse the others."""
        return self.task.fence

    @property
    def execution_key(self) -> str:
        """The same in every attempt, and in a replay."""
        return self.task.execution_key

    @property
    def scheduled_for(self) -> datetime:
        """When the task was to fire; a retry keeps it."""
        return self.task.scheduled_for

    @property
    def traceparent(self) -> str:
        """The W3C trace context of the task: the caller's, or one of its own. Empty from an older
        server."""
        return self.task.traceparent

    @property
    def last_progress(self) -> Any:
        """What an earlier attempt said last; None if nothing."""
        return msgspec.json.decode(self.task.progress)

    @property
    def parents(self) -> dict[str, ParentResult]:
        """Of a workflow node, by name, how those it comes after ended: `.state`, and `.value` for
        the result. Empty for other tasks, and where they are read in pages at `parents_url`."""
        return self.task.parents or {}

    @property
    def parents_url(self) -> str | None:
        """Where to read the parents in pages; None unless they are too many or too long."""
        return self.task.parents_url

    @property
    def log(self) -> Any:
        """A structured logger that names the task, the attempt and the fence. Its lines are kept
        with the attempt, too: `duly tasks logs`."""
        from duly.client.attempt_logs import AttemptLogger

        task = self.task
        logger = get_logger().bind(
            task_id=task.id, type=task.type, attempt=task.attempt, fence=task.fence
        )
        # W3C: version, trace, span, flags.
        if (trace := task.traceparent.split("-"))[1:]:
            logger = logger.bind(trace_id=trace[1])
        return AttemptLogger(logger, self.attempt_log)

    def progress(self, value: Any) -> None:
        """Report progress: shown with the task, and kept for its next attempt. Any JSON, up to 4
        KiB."""
        encoded = msgspec.json.encode(value)
        if len(encoded) > PROGRESS_BYTES_MAX:
            raise ValueError(
                f"this progress is {len(encoded)} bytes, and {PROGRESS_BYTES_MAX} is the most"
            )
        # Refused by the server together with the heartbeat that carries it.
        if has_nul(encoded):
            raise ValueError(f"this progress {NUL_REASON}")
        self.reported = encoded
        if self.report is not None:
            self.report(encoded)

    def map_items(self, name: str, items: Iterable[Any]) -> int:
        """Hand over items to the map of that name, which comes after this node: they start while
        this handler still runs. Call it as often as there is more; how many items the map was given
        by this attempt. An attempt that is not the first hands over the same, in the same order."""
        return handover_of(self).send(name, items)

    async def amap_items(self, name: str, items: Iterable[Any] | AsyncIterable[Any]) -> int:
        """`map_items` of an async handler."""
        return await handover_of(self).asend(name, items)

    def snooze(self, seconds: float) -> NoReturn:
        """End this attempt, uncharged, and come again after so many seconds."""
        if not 0 <= seconds <= DELAY_S_MAX:
            raise ValueError(f"a task can be put off by 0 to {DELAY_S_MAX:g} s, not {seconds!r}")
        raise Snooze(seconds)

    def once(self, connection: Any, step: str = "", *, fenced: bool = False) -> "Once":
        """An effect in the caller's own transaction that happens in one attempt only.

        `async with ctx.once(connection, step="charge") as first:` (or `with`), and `if first:`
        before the effect. `fenced` also refuses an attempt after a later one was there.
        """
        from duly.client.inbox import once

        return once(
            connection, self.execution_key, step, task_id=self.id, fence=self.fence, fenced=fenced
        )


def handover_of(context: Context) -> "ItemHandover":
    if context.handover is None:
        if context.make_handover is None:
            raise RuntimeError("items are handed over by a worker, in its own process")
        context.handover = context.make_handover(context.task)
    return context.handover
