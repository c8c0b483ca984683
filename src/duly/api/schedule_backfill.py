"""Backfill endpoint: tasks for past occurrences without one, one batch in each commit.

| event | what happens |
|---|---|
| asked twice, or broken off and asked again | what has a task is left alone, and counted |
| killed between two batches | the tasks of earlier batches stand; ask again |
| the definition is edited meanwhile | it stops with 409; what was made stands |
| the schedule has not decided an occurrence yet | it is left to the schedule |
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, takewhile

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid, later
from duly.api.request import Answer, Call
from duly.api.schedule_changes import ScheduleChanges, permit_task, reckon
from duly.api.schedule_wire import BackfillAnswer, BackfillRequest
from duly.api.wire import in_utc
from duly.domain.access import OPERATORS
from duly.domain.limits import BACKFILL_MAX, Problem
from duly.domain.occurrence_plan import OccurrenceDecision
from duly.domain.recurrence import SECOND, Recurrence, occurrences
from duly.store.audit import append_audit
from duly.store.backfill import read_fired
from duly.store.database import Session
from duly.store.partitions import RETENTION_S
from duly.store.schedules import Schedule, lock_schedule

BATCH_SIZE = 500
TIMEOUT_S = 120.0


@dataclass
class BackfillProgress:
    """How far a backfill has come."""

    made: int = 0
    known: int = 0
    last_at: datetime | None = None


@dataclass(frozen=True)
class BackfillRoutes:
    changes: ScheduleChanges
    # Each takes a second connection beside that of its call; many at once would take them all.
    under_way: asyncio.Lock

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/schedules/{id}/backfill",
                summary=f"Make up for up to {BACKFILL_MAX:,} past occurrences, spread over time",
                handler=self.backfill,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=BackfillRequest,
                answers={200: BackfillAnswer},
                refusals=(
                    Code.NOT_FOUND,
                    Code.CONFLICT,
                    Code.MALFORMED_BODY,
                    Code.INVALID,
                    Code.QUOTA_EXCEEDED,
                ),
                tag="Schedules",
                timeout_s=TIMEOUT_S,
                prepare=self.changes.prepare,
            )
        ]

    async def backfill(self, call: Call, asked: BackfillRequest) -> Answer:
        schedule = await self.changes.find(call)
        await permit_task(call, schedule)
        recurrence = reckon(schedule)
        since, until = in_utc(asked.since), in_utc(asked.until)
        if problems := range_problems(since, until, schedule.now):
            raise invalid(problems)
        found = await asyncio.to_thread(wanted_times, recurrence, since, until)
        if found is None:
            raise invalid([Problem("/to", f"more than {BACKFILL_MAX} occurrences; ask in parts")])
        ruled = [at for at in found if at <= schedule.cursor_at]
        progress = await self.fill(call, asked, schedule, ruled)
        return Answer(
            200,
            BackfillAnswer(
                dry_run=asked.dry_run,
                matched=len(found),
                made=progress.made,
                known=progress.known,
                pending=len(found) - len(ruled),
                last_at=progress.last_at,
            ),
        )

    async def fill(
        self, call: Call, asked: BackfillRequest, schedule: Schedule, times: list[datetime]
    ) -> BackfillProgress:
        progress = BackfillProgress()
        if asked.dry_run:
            for batch in batches(times):
                await self.plan(call.session, asked, schedule, batch, progress)
            return progress
        if self.under_way.locked():
            raise later(Code.OVERLOADED, "another backfill is running; try again")
        async with self.under_way:
            for batch in batches(times):
                await self.changes.throttle.admit_spread(call.tenant, len(batch))
                await self.take(call, asked, schedule, batch, progress)
        return progress

    async def take(
        self,
        call: Call,
        asked: BackfillRequest,
        schedule: Schedule,
        batch: Sequence[datetime],
        progress: BackfillProgress,
    ) -> None:
        """Store one batch in one commit. The audit entry commits with the first batch."""
        async with self.changes.database.tenant(call.tenant) as session:
            locked = await lock_schedule(session, call.tenant, schedule.id)
            if locked is None or locked.definition != schedule.definition:
                raise ApiProblem(
                    Code.CONFLICT,
                    f"the schedule was changed meanwhile; {progress.made} tasks were made before",
                )
            is_first = progress.made == 0
            # Relative to the start: the rate holds over all batches.
            planned = await self.plan(session, asked, schedule, batch, progress)
            if not planned:
                return
            if is_first:
                await record(session, call, asked, schedule)
            written = await self.changes.schedule_firer.fire_manually(
                session, locked, OccurrenceDecision.BACKFILLED, planned
            )
        await self.changes.schedule_firer.publish(written)

    async def plan(
        self,
        session: Session,
        asked: BackfillRequest,
        schedule: Schedule,
        batch: Sequence[datetime],
        progress: BackfillProgress,
    ) -> list[tuple[datetime, datetime]]:
        """Nominal times without a task, each with its fire time."""
        fired = await read_fired(session, schedule, batch)
        planned = []
        for nominal_at in batch:
            if nominal_at in fired:
                progress.known += 1
                continue
            pause = timedelta(seconds=progress.made / asked.rate_per_s)
            progress.last_at = schedule.now + pause
            progress.made += 1
            planned.append((nominal_at, progress.last_at))
        return planned


def range_problems(since: datetime, until: datetime, now: datetime) -> list[Problem]:
    oldest = now - timedelta(seconds=RETENTION_S)
    found = []
    if since < oldest:
        days = int(RETENTION_S // 86400)
        found.append(Problem("/from", f"is more than {days} days ago, of which nothing is kept"))
    if until > now:
        found.append(Problem("/to", "lies in the future, which is left to the schedule"))
    if until < since:
        found.append(Problem("/to", "lies before from"))
    return found


def wanted_times(recurrence: Recurrence, since: datetime, until: datetime) -> list[datetime] | None:
    """Those that the definition wants fired, both ends included. None: too many lie between."""
    following = takewhile(lambda each: each.at <= until, occurrences(recurrence, since - SECOND))
    found = list(islice(following, BACKFILL_MAX + 1))
    if len(found) > BACKFILL_MAX:
        return None
    return [each.at for each in found if each.verdict_hint is None and each.at >= since]


def batches(times: list[datetime]) -> Iterator[list[datetime]]:
    return (times[start : start + BATCH_SIZE] for start in range(0, len(times), BATCH_SIZE))


async def record(session: Session, call: Call, asked: BackfillRequest, schedule: Schedule) -> None:
    detail = {
        "id": schedule.id,
        "from": asked.since,
        "to": asked.until,
        "rate_per_s": asked.rate_per_s,
    }
    await append_audit(
        session,
        call.tenant,
        call.credential.actor,
        "schedule.backfill",
        schedule.definition.name,
        msgspec.json.encode(detail).decode(),
    )
