"""Request bodies of schedules. Response bodies are in schedule_views.py, validation in
schedule_rules.py, recurrence in domain/recurrence.py."""

from datetime import date, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duly.api.cursors import Cursor
from duly.api.wire import NULL, Instant, Limit, TaskRequest, TypeName, in_utc
from duly.api.workflow_wire import OccurrenceWorkflow
from duly.domain import limits
from duly.domain.cron import CRON_CHARACTERS_MAX
from duly.domain.occurrence_plan import Misfire, OccurrenceDecision, Overlap, Policies
from duly.domain.recurrence import Gap, Repeat
from duly.domain.recurrence_fields import (
    EVERY_S_MAX,
    EVERY_S_MIN,
    EXCLUDE_DATES_MAX,
    RecurrenceFields,
)
from duly.domain.zones import ZONE_CHARACTERS_MAX
from duly.store.schedules import Definition

BACKFILL_RATE_DEFAULT = 10.0

ScheduleName = Annotated[
    str, Meta(pattern=f"^{limits.SCHEDULE_NAME_PATTERN.pattern}$", max_length=128)
]
NamePrefix = Annotated[str, Meta(min_length=1, max_length=128)]
CronText = Annotated[str, Meta(min_length=1, max_length=CRON_CHARACTERS_MAX)]
EverySeconds = Annotated[
    float, Meta(ge=EVERY_S_MIN, le=EVERY_S_MAX, description="A whole number of real seconds.")
]
ZoneName = Annotated[
    str, Meta(min_length=1, max_length=ZONE_CHARACTERS_MAX, description="IANA, Europe/Berlin.")
]
WindowSeconds = Annotated[float, Meta(ge=0, le=limits.MISFIRE_WINDOW_S_MAX)]
JitterSeconds = Annotated[float, Meta(ge=0, le=limits.SCHEDULE_JITTER_S_MAX)]
MaxRunning = Annotated[int, Meta(ge=1, le=limits.MAX_RUNNING_MAX)]
MaxFires = Annotated[int, Meta(ge=1, le=limits.MAX_FIRES_MAX)]
ExcludeDates = Annotated[
    list[date], Meta(max_length=EXCLUDE_DATES_MAX, description="Local dates of its time zone.")
]
Reason = Annotated[str, Meta(min_length=1, max_length=limits.PAUSE_REASON_CHARACTERS_MAX)]


class ScheduleFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When it fires: by `cron` or by `every_s`, and what becomes of occurrences that come late,
    meet a running task, or fall on a change of the clock."""

    cron: CronText | None = None
    every_s: EverySeconds | None = None
    timezone: ZoneName = "UTC"
    misfire: Misfire = "coalesce"
    misfire_window_s: WindowSeconds = 3600.0
    overlap: Overlap = "allow"
    max_running: MaxRunning | None = None
    dst_gap: Gap = "shift"
    dst_repeat: Repeat = "first"
    jitter_s: JitterSeconds = 0.0
    start_at: Instant | None = None
    end_at: Instant | None = None
    max_fires: MaxFires | None = None
    exclude_dates: ExcludeDates = []

    def recurrence_fields(self) -> RecurrenceFields:
        return RecurrenceFields(
            cron=self.cron,
            every_s=self.every_s,
            timezone=self.timezone,
            dst_gap=self.dst_gap,
            dst_repeat=self.dst_repeat,
            start_at=None if self.start_at is None else in_utc(self.start_at),
            end_at=None if self.end_at is None else in_utc(self.end_at),
            exclude_dates=tuple(sorted(set(self.exclude_dates))),
        )

    def policies(self) -> Policies:
        return Policies(
            self.misfire, self.misfire_window_s, self.overlap, self.max_running, self.max_fires
        )


class ScheduleRequest(ScheduleFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`task` is what each occurrence submits, or `workflow` what it starts. The defaults of task
    types are filled in now, and stay until the schedule is edited."""

    name: ScheduleName
    task: TaskRequest | None = None
    workflow: OccurrenceWorkflow | None = None


class ScheduleChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is not given stays as it is. `cron` takes the place of `every_s`, `task` that of
    `workflow`, and the reverse; `task` and `workflow` are replaced as a whole."""

    name: ScheduleName | UnsetType = UNSET
    cron: CronText | UnsetType | None = UNSET
    every_s: EverySeconds | UnsetType | None = UNSET
    timezone: ZoneName | UnsetType = UNSET
    task: TaskRequest | UnsetType = UNSET
    workflow: OccurrenceWorkflow | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    misfire_window_s: WindowSeconds | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    max_running: MaxRunning | UnsetType | None = UNSET
    dst_gap: Gap | UnsetType = UNSET
    dst_repeat: Repeat | UnsetType = UNSET
    jitter_s: JitterSeconds | UnsetType = UNSET
    start_at: Instant | UnsetType | None = UNSET
    end_at: Instant | UnsetType | None = UNSET
    max_fires: MaxFires | UnsetType | None = UNSET
    exclude_dates: ExcludeDates | UnsetType = UNSET

    def applied_to(self, known: Definition) -> ScheduleRequest:
        fields = msgspec.structs.asdict(self).items()
        given = {name: value for name, value in fields if value is not UNSET}
        if given.get("cron") is not None:
            given.setdefault("every_s", None)
        elif given.get("every_s") is not None:
            given.setdefault("cron", None)
        if "task" in given:
            given.setdefault("workflow", None)
        elif "workflow" in given:
            given["task"] = None
        return msgspec.structs.replace(request_of(known), **given)


class PreviewRequest(ScheduleFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A definition, whole or without `name` and `task`; what is given is judged as if it were to be
    stored, under the name of a schedule that exists as a change of it. Nothing is stored. `after`
    is now, unless given."""

    name: ScheduleName | None = None
    task: TaskRequest | None = None
    workflow: OccurrenceWorkflow | None = None
    count: Annotated[int, Meta(ge=1, le=limits.PREVIEW_FIRES_MAX)] = 10
    after: Instant | None = None


class SchedulesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`name` finds one schedule, whole, and goes with no other filter. `flagged` picks from a page
    that was read: such a page may be short or empty while `next_cursor` says that there is more."""

    name: NamePrefix | None = None
    name_prefix: NamePrefix | None = None
    type: TypeName | None = None
    paused: bool | None = None
    flagged: (
        Annotated[
            bool, Meta(description="Of each page, those that do not keep their cadence (or do).")
        ]
        | None
    ) = None
    limit: Limit = 50
    cursor: Cursor | None = None


class OccurrencesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    verdict: OccurrenceDecision | None = None
    since: Instant | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


class PauseSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Reason


class ResumeSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Reason | None = None


class ManyFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field that is given must match; an empty filter is every schedule."""

    name_prefix: NamePrefix | None = None
    type: TypeName | None = None


class PauseMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    filter: ManyFilter
    reason: Reason
    dry_run: bool = False
    cursor: Cursor | None = None


class ResumeMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    filter: ManyFilter
    reason: Reason | None = None
    dry_run: bool = False
    cursor: Cursor | None = None


class UnchangedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that was left as it was, and why."""

    id: UUID
    name: str
    detail: str


class SchedulesChanged(msgspec.Struct, frozen=True, kw_only=True):
    """`next_cursor`: more match; ask again with it as `cursor`."""

    dry_run: bool
    matched: int
    done: int
    left: list[UnchangedSchedule]
    next_cursor: str | None


class BackfillRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Both ends are included. The tasks are due one after another, at `rate_per_s`, from now on."""

    since: Instant = msgspec.field(name="from")
    until: Instant = msgspec.field(name="to")
    rate_per_s: Annotated[float, Meta(ge=limits.BACKFILL_RATE_MIN, le=limits.BACKFILL_RATE_MAX)] = (
        BACKFILL_RATE_DEFAULT
    )
    dry_run: bool = False


class BackfillAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Of the `matched` occurrences that the definition wants fired in the range: `made` became
    tasks now (in a dry run: would), `known` have one already, `pending` are left to the schedule
    itself. `last_at` is when the last task is due."""

    dry_run: bool
    matched: int
    made: int
    known: int
    pending: int
    last_at: datetime | None


def request_of(known: Definition) -> ScheduleRequest:
    """A stored definition as it could be asked for again."""
    fields, policies = known.fields, known.policies
    kind, model = ("task", TaskRequest) if known.is_task else ("workflow", OccurrenceWorkflow)
    stored: dict[str, Any] = {
        "name": known.name,
        kind: msgspec.json.decode(known.task, type=model),
        "cron": fields.cron,
        "every_s": fields.every_s,
        "timezone": fields.timezone,
        "misfire": policies.misfire,
        "misfire_window_s": policies.misfire_window_s,
        "overlap": policies.overlap,
        "max_running": policies.max_running,
        "dst_gap": fields.dst_gap,
        "dst_repeat": fields.dst_repeat,
        "jitter_s": known.jitter_s,
        "start_at": fields.start_at,
        "end_at": fields.end_at,
        "max_fires": policies.max_fires,
        "exclude_dates": list(fields.exclude_dates),
    }
    return ScheduleRequest(**stored)


def encode_task(task: TaskRequest) -> str:
    """Only what was given: that is what its author wants to see again."""
    fields = msgspec.structs.asdict(task).items()
    given = {name: value for name, value in fields if value is not None and value != NULL}
    return msgspec.json.encode(given).decode()


RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
RAW_NODES = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])


def encode_workflow(workflow: OccurrenceWorkflow) -> str:
    """As it was written, without payloads of null: those stand for none."""
    given = RAW_MEMBERS.decode(msgspec.json.encode(workflow))
    found: dict[str, object] = without_payload(given)
    if "nodes" in given:
        nodes = RAW_NODES.decode(given["nodes"])
        found["nodes"] = {name: without_payload(node) for name, node in nodes.items()}
    return msgspec.json.encode(found).decode()


def without_payload(members: dict[str, msgspec.Raw]) -> dict[str, object]:
    return {name: each for name, each in members.items() if name != "payload" or each != NULL}
