"""Response bodies of schedules, their occurrences and previews."""

from datetime import date, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from duly.domain.clock_changes import ClockChange
from duly.domain.ids import is_node
from duly.domain.occurrence_plan import GRACE_S, Misfire, OccurrenceDecision, Overlap, watches
from duly.domain.recurrence import Occurrence, SkipReason
from duly.store.occurrences import Cadence, RecordedOccurrence
from duly.store.schedules import Definition, Schedule

# Fewer than this share of at least so many expected occurrences fired on time: something is wrong.
CADENCE_SHARE_MIN = 0.9
CADENCE_EXPECTED_MIN = 5


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    by: str
    reason: str


class CadenceView(msgspec.Struct, frozen=True, kw_only=True):
    """Of the newest occurrences, those that were to fire, and those that fired on time."""

    expected: int
    fired: int
    flag: Literal["overdue", "late_or_skipped"] | None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """`next_at` is the nominal time of the next occurrence, `next_due_at` that with the schedule's
    own jitter. `running` counts its live tasks, where the overlap policy looks at them. Lists leave
    out the payload of `task`."""

    id: UUID
    name: str
    state: Literal["ACTIVE", "PAUSED", "ENDED"]
    cron: str | None
    every_s: int | None
    timezone: str
    task: msgspec.Raw | None
    workflow: msgspec.Raw | None
    misfire: Misfire
    misfire_window_s: float
    overlap: Overlap
    max_running: int | None
    dst_gap: str
    dst_repeat: str
    jitter_s: float
    start_at: datetime | None
    end_at: datetime | None
    max_fires: int | None
    exclude_dates: list[date]
    paused: Paused | None
    next_at: datetime | None
    next_due_at: datetime | None
    jitter_offset_s: float
    fires: int
    running: int | None
    cadence: CadenceView
    created_at: datetime
    updated_at: datetime


class OccurrenceView(msgspec.Struct, frozen=True, kw_only=True):
    nominal_at: datetime
    decided_at: datetime
    late_s: float
    verdict: OccurrenceDecision
    task_id: UUID | None
    workflow_id: UUID | None


class FireView(msgspec.Struct, frozen=True, kw_only=True):
    """`wall` is the local time that was asked for. With a `verdict` it will not fire. With jitter
    it is due at one moment from `at` to `due_by`, always the same for one schedule."""

    at: datetime
    wall: datetime
    verdict: SkipReason | None
    due_by: datetime


class ClockChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """At `at`, clocks go from `wall_before` to `wall_after`; `touched` are the first occurrences
    that this moves, drops or repeats."""

    at: datetime
    kind: Literal["gap", "repeat"]
    wall_before: datetime
    wall_after: datetime
    effect: str
    touched: list[FireView]


class PreviewView(msgspec.Struct, frozen=True, kw_only=True):
    """`closest_s`: no two fires are closer, changes of the clock aside."""

    fires: list[FireView]
    clock_changes: list[ClockChangeView]
    closest_s: int


def schedule_view(
    schedule: Schedule, cadence: Cadence | None = None, *, is_whole: bool = True
) -> ScheduleView:
    definition = schedule.definition
    fields, policies = definition.fields, definition.policies
    return ScheduleView(
        id=schedule.id,
        name=definition.name,
        state=state_of(schedule),
        cron=fields.cron,
        every_s=None if fields.every_s is None else int(fields.every_s),
        timezone=fields.timezone,
        task=task_text(definition.task, is_whole=is_whole) if definition.is_task else None,
        workflow=None if definition.is_task else workflow_text(definition, is_whole=is_whole),
        misfire=policies.misfire,
        misfire_window_s=policies.misfire_window_s,
        overlap=policies.overlap,
        max_running=policies.max_running,
        dst_gap=fields.dst_gap,
        dst_repeat=fields.dst_repeat,
        jitter_s=definition.jitter_s,
        start_at=fields.start_at,
        end_at=fields.end_at,
        max_fires=policies.max_fires,
        exclude_dates=list(fields.exclude_dates),
        paused=paused_of(schedule),
        next_at=schedule.nominal_at,
        next_due_at=schedule.due_at,
        jitter_offset_s=schedule.offset_s,
        fires=schedule.fires,
        running=len(schedule.live) if watches(schedule.definition.policies) else None,
        cadence=cadence_view(cadence or Cadence(0, 0), is_overdue=is_overdue(schedule)),
        created_at=schedule.created_at,
        updated_at=schedule.updated_at,
    )


def task_text(task: str, *, is_whole: bool) -> msgspec.Raw:
    if is_whole:
        return msgspec.Raw(task.encode())
    fields = msgspec.json.decode(task, type=dict[str, msgspec.Raw])
    fields.pop("payload", None)
    return msgspec.Raw(msgspec.json.encode(fields))


def workflow_text(definition: Definition, *, is_whole: bool) -> msgspec.Raw:
    """Lists leave out nodes and payload."""
    if is_whole:
        return msgspec.Raw(definition.task.encode())
    fields = msgspec.json.decode(definition.task, type=dict[str, msgspec.Raw])
    fields.pop("payload", None)
    fields.pop("nodes", None)
    return msgspec.Raw(msgspec.json.encode(fields))


def state_of(schedule: Schedule) -> Literal["ACTIVE", "PAUSED", "ENDED"]:
    if schedule.paused_at is not None:
        return "PAUSED"
    return "ACTIVE" if schedule.nominal_at is not None else "ENDED"


def paused_of(schedule: Schedule) -> Paused | None:
    if schedule.paused_at is None:
        return None
    by, reason = schedule.paused_by or "", schedule.pause_reason or ""
    return Paused(at=schedule.paused_at, by=by, reason=reason)


def is_overdue(schedule: Schedule) -> bool:
    """What should have been ruled on by now has no row in the ledger that could tell."""
    grace = timedelta(seconds=GRACE_S)
    return schedule.due_at is not None and schedule.due_at < schedule.now - grace


def cadence_view(cadence: Cadence, *, is_overdue: bool) -> CadenceView:
    is_enough = cadence.expected >= CADENCE_EXPECTED_MIN
    is_kept = cadence.fired >= cadence.expected * CADENCE_SHARE_MIN
    return CadenceView(
        expected=cadence.expected,
        fired=cadence.fired,
        flag="overdue" if is_overdue else "late_or_skipped" if is_enough and not is_kept else None,
    )


def occurrence_view(entry: RecordedOccurrence) -> OccurrenceView:
    is_workflow = entry.task is not None and is_node(entry.task)
    return OccurrenceView(
        nominal_at=entry.nominal_at,
        decided_at=entry.decided_at,
        late_s=entry.late_s,
        verdict=OccurrenceDecision(entry.verdict),
        task_id=None if is_workflow else entry.task,
        workflow_id=entry.task if is_workflow else None,
    )


def fire_view(occurrence: Occurrence, jitter_s: float) -> FireView:
    return FireView(
        at=occurrence.at,
        wall=occurrence.wall,
        verdict=occurrence.verdict_hint,
        due_by=occurrence.at + timedelta(seconds=jitter_s),
    )


def change_view(change: ClockChange, jitter_s: float) -> ClockChangeView:
    return ClockChangeView(
        at=change.at,
        kind=change.kind,
        wall_before=change.wall_before,
        wall_after=change.wall_after,
        effect=change.effect,
        touched=[fire_view(each, jitter_s) for each in change.touched],
    )
