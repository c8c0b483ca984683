"""Task events: what was just committed, told to the parts of this process that react to it.

The store publishes one typed event for each commit that inserts, leases, reschedules or finishes
tasks; `composition.py` lists who subscribes to what. Events are hints about rows that are durable
already: no part may need one to be correct. Decisions that come before a commit (which idle
consumer gets a direct lease) are constructor arguments of the submitter, not events.

| event | what happens |
|---|---|
| listener raises | logged and counted; the other listeners and the publisher go on |
| killed between commit and publish | lost: loads, sweeps and corrections find the same |
| commit of unknown outcome | nothing, or `SettlementsReplayed` when the settlement is sent again |
| committed by another process | not delivered here, except by the signals of `store/notify.py` |
| stored by the SQL function of a user's transaction | only its doorbell arrives |
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from duly.domain.lanes import Ticket
from duly.store.finish import SettleAnswer, Settlement
from duly.store.insert import InsertRow
from duly.store.lease import Lease
from duly.store.load import DueTimer, Hint
from duly.telemetry import Metrics, get_logger

log = get_logger("duly.events")


@dataclass(frozen=True, slots=True)
class TasksStored:
    """Tasks were inserted. `rows` and `timers` are empty for a replay of dead letters, of which
    only `hints` say where and when the new tasks are due."""

    rows: Sequence[InsertRow] = ()
    # Due soon, and without a direct lease; and the instant of the commit, by the database's clock.
    timers: Sequence[DueTimer] = ()
    at: datetime | None = None
    hints: Sequence[Hint] = ()

    @property
    def tenants(self) -> set[int]:
        return {row.task.tenant for row in self.rows} | {queue.tenant for queue, _ in self.hints}


@dataclass(frozen=True, slots=True)
class TasksLeased:
    """Attempts began in this process. `tickets` left the ready queue for them: those without a
    lease were stale, early or void. Direct leases had no ticket."""

    tickets: Sequence[Ticket]
    leases: Sequence[Lease]

    @property
    def tenants(self) -> set[int]:
        return {lease.tenant for lease in self.leases}


@dataclass(frozen=True, slots=True)
class TasksRescheduled:
    """Tasks are due at another instant: retried, released, snoozed, moved by a caller. `hints` say
    where and when; where leases ended, `ended` and `answers` say which, and how."""

    hints: Sequence[Hint]
    ended: Sequence[Settlement] = ()
    answers: Sequence[SettleAnswer] = ()
    # The reaper ended them, not a settlement.
    is_reaped: bool = False

    @property
    def tenants(self) -> set[int]:
        return {queue.tenant for queue, _ in self.hints}


@dataclass(frozen=True, slots=True)
class TasksFinished:
    """Tasks reached a terminal state, in the order of `ended`: by their last lease, or without one
    (cancelled, or expired before a start), where the fence is `NO_LEASE`."""

    ended: Sequence[Settlement]
    answers: Sequence[SettleAnswer]
    is_reaped: bool = False

    @property
    def tenants(self) -> set[int]:
        return {answer.tenant for answer in self.answers if answer.tenant is not None}


@dataclass(frozen=True, slots=True)
class SettlementsReplayed:
    """These leases had ended before, in a commit whose event may never have been published."""

    ended: Sequence[Settlement]

    @property
    def tenants(self) -> set[int]:
        return set()


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Which slots this node owns, changed. Published after `Coordinator.owns` answers accordingly
    and, for a release, before another node can own them."""

    gained: frozenset[int]
    lost: frozenset[int]


@dataclass(frozen=True, slots=True)
class BulkOperationDue:
    """A bulk operation was started, or goes on after its pause."""


@dataclass(frozen=True, slots=True)
class NodesReleased:
    """Nodes of workflows are due, or workflows have something to do at once, without an end of a
    task: a step was decided, a workflow with steps was started, a pause ended."""

    timers: Sequence[DueTimer] = ()
    workflows: Sequence[UUID] = ()


TaskEvent: TypeAlias = (
    TasksStored | TasksLeased | TasksRescheduled | TasksFinished | SettlementsReplayed
)
TASK_EVENTS: tuple[type[Any], ...] = (
    TasksStored,
    TasksLeased,
    TasksRescheduled,
    TasksFinished,
    SettlementsReplayed,
)
Event = TypeVar("Event")


class TaskEvents:
    """The event stream of one process: synchronous, in the order of its commits."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.metrics = metrics
        self.listeners: dict[type[Any], list[Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[Event], listener: Callable[[Event], None]) -> None:
        """Called with each event of this type. A listener neither waits nor publishes."""
        self.listeners.setdefault(kind, []).append(listener)

    def publish(self, event: object) -> None:
        for listener in self.listeners.get(type(event), ()):
            try:
                listener(event)
            except Exception as error:
                name = type(event).__name__
                # As text: an event carries payloads, which a traceback with locals would show.
                told = traceback.format_exc()
                log.error("event listener failed", kind=name, error=repr(error), traceback=told)
                if self.metrics is not None:
                    self.metrics.event_failures.add(1, name)
