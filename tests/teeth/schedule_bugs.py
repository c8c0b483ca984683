"""Deliberate bugs of schedules, for seeds of fleets with a keeper of schedules to notice.

A second task for one occurrence has two guards behind one another, the fence and the ledger: each
of them alone may go unnoticed, both together may not.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from duly.domain import occurrence_plan
from duly.domain.occurrence_plan import FiringPlan, Policies, ScheduleProgress, next_at, plan_firing
from duly.domain.recurrence import Recurrence
from duly.store import fire_schedules
from duly.store.database import Database, Session
from duly.store.fire_schedules import Batch, FiredSchedules, Firing, ScheduleFirer, record
from duly.store.insert import InsertRow
from duly.store.schedules import Schedule
from tests.teeth.planted import Both, Bug, Slip


async def fire_in_two_commits(
    schedule_firer: ScheduleFirer, database: Database, firings: list[Firing]
) -> object:
    """The timer first, the ledger later."""
    async with database.transaction() as session:
        rows = await session.fetch(
            fire_schedules.SQL.move_schedules, *fire_schedules.firing_columns(firings), False
        )
    won = [each for each in firings if each.schedule.id in {row["id"] for row in rows}]
    decisions = [
        (each.schedule, ruling, each.entries.get(ruling.nominal_at))
        for each in won
        for ruling in each.plan.decisions
    ]
    async with database.transaction() as session:
        admitted = await record(session, fire_schedules.SQL.record_occurrences, decisions)
        entries = [entry for _, _, entry in decisions if entry is not None and entry.id in admitted]
        await schedule_firer.store(session, entries)
    return {each.schedule.id for each in won}


def plan_and_forget(
    recurrence: Recurrence,
    policies: Policies,
    progress: ScheduleProgress,
    offset_s: float,
    now: datetime,
    *,
    with_held: bool = False,
) -> FiringPlan:
    """What does not fit into one bite is passed over."""
    plan = plan_firing(recurrence, policies, progress, offset_s, now, with_held=with_held)
    cursor_at = max(plan.cursor_at, now - timedelta(seconds=offset_s))
    fires = progress.fires + sum(ruling.fires for ruling in plan.decisions)
    return replace(
        plan, cursor_at=cursor_at, next_at=next_at(recurrence, policies, cursor_at, fires)
    )


async def rule_on_nothing(
    _firer: ScheduleFirer, _session: Session, schedule: Schedule
) -> tuple[Schedule, FiredSchedules]:
    """What was due under the old definition is forgotten."""
    return schedule, FiredSchedules()


async def store_nothing(
    _firer: ScheduleFirer, _session: Session, _entries: list[InsertRow]
) -> Batch:
    return [], {}


def never_paused(schedule: Schedule) -> ScheduleProgress:
    return ScheduleProgress(schedule.cursor_at, schedule.fires, len(schedule.live))


NO_FENCE = Bug(
    "a firing needs no fence",
    fire_schedules.SQL,
    "move_schedules",
    "AND timer.fence = asked.fence",
    "AND timer.fence >= asked.fence",
    ("AND (timer.due_at <= duly.now() OR $10)", "AND ($10 OR true)"),
)
NO_LEDGER = Bug(
    "the ledger admits a known occurrence",
    fire_schedules.SQL,
    "record_occurrences",
    "DO NOTHING",
    "DO UPDATE SET task = excluded.task, verdict = excluded.verdict",
)
SCHEDULE_BUGS: list[Bug | Slip | Both] = [
    Both("neither fence nor ledger stops a second task", NO_FENCE, NO_LEDGER),
    Bug(
        "a firing leaves the cursor behind",
        fire_schedules.SQL,
        "move_schedules",
        "cursor_at = asked.cursor_at",
        "cursor_at = timer.cursor_at",
    ),
    Bug(
        "what is late is never found",
        fire_schedules.SQL,
        "look_ahead",
        "AND schedule_timers.due_at <= duly.now() - make_interval(secs => $3)",
        "AND schedule_timers.due_at <= timestamptz 'epoch' + make_interval(secs => $3)",
    ),
    Bug(
        "what was triggered may be overlapped",
        fire_schedules.SQL,
        "note_running",
        "running = timer.running || $4::uuid[]",
        "running = timer.running || ($4::uuid[])[:0]",
    ),
    Slip("a bite swallows the rest", fire_schedules, "plan_firing", plan_and_forget),
    Slip("a firing is two commits", ScheduleFirer, "fire", fire_in_two_commits),
    Slip("a change rules on nothing first", ScheduleFirer, "decide_due", rule_on_nothing),
    Slip("a firing stores no task", ScheduleFirer, "store", store_nothing),
    Slip("overlaps are not minded", occurrence_plan, "overlaps", lambda *_: False),
    Slip("a pause is not minded", Schedule, "progress", property(never_paused)),
]
