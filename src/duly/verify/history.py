"""What happened, as independent witnesses tell it: log lines and rows, as plain values.

The client log says what was asked and answered, the effect log what a handler saw, the fault log
what a harness broke, the tables what is stored. `check.py` compares them; nothing here judges.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from duly.domain.states import State
from duly.domain.workflow import WaitRule

# A task and what is wrong with it.
Finding = tuple[UUID | None, str]


class Operation(StrEnum):
    SUBMIT = "submit"
    LEASE = "lease"
    HEARTBEAT = "heartbeat"
    SETTLE = "settle"
    CANCEL = "cancel"
    MOVE = "move"
    REPLAY = "replay"
    PURGE = "purge"
    PURGE_LETTER = "purge_letter"
    READ = "read"


class CallPhase(StrEnum):
    """A timeout or a lost connection is UNKNOWN, never FAIL: FAIL means that nothing changed."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One line of the client log, about one task; the lines of one `call` belong together.

    `at` is on the database's clock. `request` is equal for equal requests, and is what the harness
    wrote into the task to know it again. `fence` of a lease is the ticket's when asked, and the
    lease's when answered; `due_at` is the earliest instant that was asked for or promised.
    """

    call: int
    operation: Operation
    phase: CallPhase
    at: datetime
    tenant: int
    task: UUID | None = None
    holder: UUID | None = None
    fence: int | None = None
    outcome: str | None = None
    answer: str | None = None
    state: str | None = None
    attempt: int | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    lease_until: datetime | None = None
    key: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a handler did, told by itself."""

    task: UUID
    fence: int
    holder: UUID
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Fault:
    """What a harness broke. `step_back_s` is how far the database's clock was set back."""

    kind: str
    at: datetime
    node: str = ""
    step_back_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Logs:
    entries: tuple[LogEntry, ...] = ()
    effects: tuple[Effect, ...] = ()
    faults: tuple[Fault, ...] = ()
    # How long a transaction may last, whose rows have the instant at which it began.
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskRow:
    id: UUID
    tenant: int
    run_at: datetime
    max_attempts: int
    execution_key: str | None = None
    replay_of: UUID | None = None
    request: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    # Whether payload, tags, a result or an error is left of it; None where that was not read.
    has_data: bool | None = None
    # The schedule and nominal instant that the task says it was made for.
    occurrence: tuple[UUID, datetime] | None = None


@dataclass(frozen=True, slots=True)
class TimerRow:
    id: UUID
    fence: int
    attempt: int
    due_at: datetime | None
    holder: UUID | None = None
    started_at: datetime | None = None
    cancel_requested: bool = False
    # None where a harness did not read it.
    tenant: int | None = None
    # Whether its place is among those that schedulers load.
    is_placed: bool = True
    # The fire time, where a reschedule moved it.
    moved_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    id: UUID
    fence: int
    charged: int
    holder: UUID | None
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    state: str | None = None
    tenant: int | None = None
    # The fire time of this attempt, where a reschedule had moved it.
    moved_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    id: UUID
    execution_key: str
    replayed_as: UUID | None = None
    tenant: int | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    tenant: int
    key: str
    task: UUID
    # Whether it stands in the shard where submitters look for it.
    is_at_home: bool = True


@dataclass(frozen=True, slots=True)
class OccurrenceRow:
    """One line of the ledger of schedules."""

    schedule: UUID
    nominal_at: datetime
    verdict: str
    task: UUID | None = None
    tenant: int | None = None


@dataclass(frozen=True, slots=True)
class WorkflowNodeRow:
    """A node as the tables have it: live with a timer, or ended with a state."""

    id: UUID
    number: int
    rule: WaitRule
    parents: tuple[int, ...]
    is_live: bool
    # None: it does not wait for parents.
    pending: int | None
    state: State | None
    # Of its first attempt, that runs or is over.
    started_at: datetime | None
    ended_at: datetime | None
    is_map: bool = False
    # A map whose items its running parent hands over.
    is_paged: bool = False
    # Of an open map: how many of its items it takes for live.
    items_pending: int | None = None
    # Its release is decided by a step, which may skip it.
    is_step: bool = False
    # Such a one that its parents let run, and of which nothing will ever decide.
    is_stranded: bool = False
    # Due, and leased by none; or due once its workflow is not paused any more.
    may_start: bool = False
    is_held: bool = False
    # One that reuses the run of another, and has a run of its own.
    ran_again: bool = False


@dataclass(frozen=True, slots=True)
class MapItems:
    """The items of one map of a workflow, added up."""

    map_number: int
    live: int
    counts: Mapping[State, int]
    # Each place from the first to the last is there, once.
    is_gapless: bool
    may_start: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A workflow with all of its nodes. `is_deferred`: it was stopped, or a cascade of skips goes
    on by a timer, so that its counts may be behind."""

    id: UUID
    live: int
    counts: Mapping[State, int]
    is_ended: bool
    is_deferred: bool
    nodes: tuple[WorkflowNodeRow, ...]
    items: tuple[MapItems, ...] = ()
    is_paused: bool = False
    # How many signals were given to each node.
    given_signals: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotHolderRow:
    number: int
    holder: UUID | None
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Tables:
    tasks: tuple[TaskRow, ...] = ()
    timers: tuple[TimerRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    dead_letters: tuple[DeadLetterRow, ...] = ()
    keys: tuple[KeyRow, ...] = ()
    tombstones: frozenset[UUID] = frozenset()
    # How many tasks of a tenant may be in flight; a tenant that is not here has no cap.
    caps: Mapping[int, int] = field(default_factory=dict)
    occurrences: tuple[OccurrenceRow, ...] = ()
    workflows: tuple[WorkflowRow, ...] = ()
    # What an independent model says should be in the ledger, as (schedule, nominal instant).
    expected: frozenset[tuple[UUID, datetime]] | None = None
    # Tasks placed before this id may be gone, because their time of retention is over.
    kept_from: UUID | None = None
    # Failed tasks whose dead letter was purged by hand, as far as anybody looked.
    letters_purged: frozenset[UUID] | None = None


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """The lines of one call: what was asked, and the answer if one was heard."""

    asked: LogEntry
    answered: LogEntry | None = None

    @property
    def ok(self) -> LogEntry | None:
        return self.answered if self.answered and self.answered.phase is CallPhase.OK else None

    @property
    def is_unknown(self) -> bool:
        return self.answered is None or self.answered.phase is CallPhase.UNKNOWN


@dataclass(slots=True)
class Evidence:
    """Logs and tables, joined once and indexed for every invariant."""

    calls: dict[Operation, list[LoggedCall]] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    tasks: dict[UUID, TaskRow] = field(default_factory=dict)
    timers: dict[UUID, TimerRow] = field(default_factory=dict)
    attempts: dict[UUID, list[AttemptRow]] = field(default_factory=dict)
    finals: dict[UUID, AttemptRow] = field(default_factory=dict)
    dead_letters: dict[UUID, DeadLetterRow] = field(default_factory=dict)
    keys: tuple[KeyRow, ...] = ()
    tombstones: frozenset[UUID] = frozenset()
    caps: Mapping[int, int] = field(default_factory=dict)
    workflows: tuple[WorkflowRow, ...] = ()
    occurrences: tuple[OccurrenceRow, ...] = ()
    expected: frozenset[tuple[UUID, datetime]] | None = None
    kept_from: UUID | None = None
    letters_purged: frozenset[UUID] | None = None
    # How far two instants may stand in the wrong order because the clock itself was set back.
    tolerance: timedelta = timedelta()
    # From the instant that rows have, to their commit.
    commit_s: float = 0.0

    @property
    def has_client_log(self) -> bool:
        return bool(self.calls)

    def of(self, operation: Operation) -> list[LoggedCall]:
        return self.calls.get(operation, [])

    def answers(self, operation: Operation) -> Iterator[tuple[LogEntry, LogEntry]]:
        """Asked and answered, of the calls that were answered."""
        for call in self.of(operation):
            if call.ok is not None:
                yield call.asked, call.ok

    def is_before(self, early: datetime, late: datetime) -> bool:
        """Certainly before, even if the clock was set back in between."""
        return early + self.tolerance < late

    def is_missing(self, task: UUID) -> bool:
        """Not stored, though neither a purge nor retention can have taken it away."""
        if task in self.tasks or task in self.tombstones:
            return False
        return self.kept_from is None or task.int >= self.kept_from.int

    def attempt_of(self, task: UUID | None, fence: int | None) -> AttemptRow | None:
        rows = self.attempts.get(task, []) if task else []
        return next((row for row in rows if row.fence == fence), None)

    def recorded_holder(self, task: UUID, fence: int) -> UUID | None:
        """Whose lease this is, by the record or by the timer."""
        row = self.attempt_of(task, fence)
        if row is not None:
            return row.holder
        timer = self.timers.get(task)
        return timer.holder if timer is not None and timer.fence == fence else None

    def began_at(self, task: UUID, fence: int) -> datetime | None:
        row = self.attempt_of(task, fence)
        if row is not None:
            return row.started_at
        timer = self.timers.get(task)
        return timer.started_at if timer is not None and timer.fence == fence else None


def gather(logs: Logs, tables: Tables) -> Evidence:
    attempts: dict[UUID, list[AttemptRow]] = defaultdict(list)
    for row in sorted(tables.attempts, key=lambda row: row.fence):
        attempts[row.id].append(row)
    return Evidence(
        calls=join_calls(logs.entries),
        effects=logs.effects,
        tasks={row.id: row for row in tables.tasks},
        timers={row.id: row for row in tables.timers},
        attempts=dict(attempts),
        finals={row.id: row for row in tables.attempts if row.state is not None},
        dead_letters={row.id: row for row in tables.dead_letters},
        keys=tables.keys,
        tombstones=tables.tombstones,
        caps=tables.caps,
        occurrences=tables.occurrences,
        workflows=tables.workflows,
        expected=tables.expected,
        kept_from=tables.kept_from,
        letters_purged=tables.letters_purged,
        tolerance=timedelta(seconds=sum(fault.step_back_s for fault in logs.faults)),
        commit_s=logs.commit_s,
    )


def join_calls(entries: Iterable[LogEntry]) -> dict[Operation, list[LoggedCall]]:
    asked: dict[int, LogEntry] = {}
    answered: dict[int, LogEntry] = {}
    for entry in entries:
        (asked if entry.phase is CallPhase.INVOKE else answered)[entry.call] = entry
    calls: dict[Operation, list[LoggedCall]] = defaultdict(list)
    for number, entry in asked.items():
        calls[entry.operation].append(LoggedCall(entry, answered.get(number)))
    return dict(calls)
