"""The cron role: loads schedules due within a short horizon, and fires them when due.

| event | what happens |
|---|---|
| a schedule is created or edited in this process | `expect` is called at once |
| in another process | a hint comes, or the next load finds it |
| a firing is lost to another node | that node did it; the next look shows what comes next |
| a backlog after an outage | oldest first, at `CATCH_UP_PER_S` tasks, after what is due now |
| one schedule cannot be stored | the batch is halved until it stands alone; it is paused |
| a deadlock, or another session holds its lock | the same, and it is tried again in a moment |
| an unknown time zone | the schedule is paused, with the reason |
| a zone's rules changed, a timer is lost | the sweep computes the next instant anew, and logs it |
"""

import heapq
from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from duly.coordinator.ownership import Coordinator
from duly.domain.errors import StatementRefused, TooManyPools
from duly.domain.ids import shard_of, shards_of, slot_of
from duly.domain.occurrence_plan import GRACE_S, next_at
from duly.domain.recurrence import Recurrence
from duly.environment import Environment
from duly.events import SlotsChanged
from duly.role import Wakeup
from duly.scheduler.database_time import DatabaseTime
from duly.store.audit import append_audit
from duly.store.database import Database
from duly.store.fire_schedules import (
    START,
    Firing,
    ScheduleFirer,
    UpcomingSchedule,
    look_ahead,
    pause_unreadable,
    rearm_schedules,
    rebuild_timers,
    sweep,
)
from duly.store.notify import SCHEDULES, Send
from duly.store.schedules import Schedule, read_schedules
from duly.telemetry import Metrics, get_logger

HORIZON_S = 15.0
LOAD_S = 5.0
# Between two sweeps of all definitions; within one, a page follows each look.
SWEEP_S = 60.0
# Of one shard, in one look; a full page is followed by another look as soon as it is dealt with.
PAGE = 2000
LATE_PAGE = 200
# Schedules of one firing.
BATCH = 200
# Tasks that catching up may make in a second, and at once; rulings without one cost less.
CATCH_UP_PER_S = 200.0
RULING_COST = 0.02
# How long a schedule that failed in a batch is deferred.
AGAIN_S = 0.5
# Classes of refusals that a row brings upon itself: data, constraints, program limits.
OWN_FAULTS = ("22", "23", "54")
SWEEP_PAGE = 500
BY_DULY = "duly"

log = get_logger("duly.scheduler.cron")


class CronRole:
    """A role: each tick fires one batch of what is due, or looks ahead, or sweeps."""

    name = "cron"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        coordinator: Coordinator,
        time: DatabaseTime,
        schedule_firer: ScheduleFirer,
        metrics: Metrics,
        send: Send | None = None,
    ) -> None:
        self.database = database
        self.environment = environment
        self.coordinator = coordinator
        self.time = time
        self.schedule_firer = schedule_firer
        self.metrics = metrics
        self.send = send
        self.soon: list[UpcomingSchedule] = []
        self.late: list[UpcomingSchedule] = []
        self.look_ahead_at = 0.0
        self.is_full = self.is_late_full = False
        self.sweep_at = 0.0
        self.swept_to = (-1, START)
        self.deferred_until: dict[UUID, float] = {}
        self.tokens = CATCH_UP_PER_S
        self.tokens_at = environment.clock.monotonic()
        self.wakeup = Wakeup()

    async def tick(self) -> float:
        now_s = self.environment.clock.monotonic()
        if now_s >= self.look_ahead_at:
            await self.load_upcoming()
        if now_s >= self.sweep_at:
            await self.sweep_page()
        # Before the time is known, nothing tells what is due now from what is late.
        if self.time.is_known and (due := self.take_due() or self.take_late(now_s)):
            await self.fire(due)
        return self.pause_s()

    async def close(self) -> None:
        """Nothing is held: what is due stays due."""

    def expect(self, schedule_id: UUID, due_at: datetime | None, now: datetime) -> None:
        """A schedule was created or changed, due at that instant by the database's clock."""
        if due_at is None or due_at - now > timedelta(seconds=HORIZON_S):
            return
        if self.coordinator.owns(shard_of(schedule_id)) is not None:
            heapq.heappush(self.soon, UpcomingSchedule(due_at, schedule_id, False))
            self.wakeup.wake()
        elif self.send is not None:
            self.send(SCHEDULES, [str(slot_of(shard_of(schedule_id)))])

    def on_notify(self, hints: list[str]) -> None:
        """Another process changed a schedule in these slots."""
        if any(hint.isdigit() and int(hint) in self.coordinator.owned for hint in hints):
            self.look_ahead_at = 0.0
            self.wakeup.wake()

    def on_slots(self, _event: SlotsChanged) -> None:
        """Load newly owned slots at once."""
        self.look_ahead_at = self.sweep_at = 0.0
        self.wakeup.wake()

    def pause_s(self) -> float:
        """Until the next instant, or the next look."""
        look_s = max(
            min(self.look_ahead_at, self.sweep_at) - self.environment.clock.monotonic(), 0.0
        )
        if not self.time.is_known:
            return min(look_s, LOAD_S)
        waits = [look_s]
        if self.soon:
            waits.append(max(self.soon[0].due_at.timestamp() - self.time.now(), 0.0))
        if self.late:
            waits.append(max(-self.tokens, 0.0) / CATCH_UP_PER_S)
        return min(waits)

    async def load_upcoming(self) -> None:
        """Load what is due within the horizon; it replaces what was known."""
        self.look_ahead_at = self.environment.clock.monotonic() + LOAD_S
        shards = self.owned_shards()
        if not shards:
            self.soon, self.late = [], []
            return
        now_s = self.environment.clock.monotonic()
        self.deferred_until = {
            key: until for key, until in self.deferred_until.items() if until > now_s
        }
        found = await look_ahead(
            self.database, shards, HORIZON_S, GRACE_S, PAGE, LATE_PAGE, self.deferred_until
        )
        per_shard = Counter((shard_of(soon.id), soon.is_late) for soon in found)
        self.is_full = any(n >= PAGE for (_, is_late), n in per_shard.items() if not is_late)
        self.is_late_full = any(n >= LATE_PAGE for (_, is_late), n in per_shard.items() if is_late)
        self.soon = [soon for soon in found if not soon.is_late]
        self.late = [soon for soon in found if soon.is_late]
        heapq.heapify(self.soon)
        heapq.heapify(self.late)

    def take_due(self) -> list[UpcomingSchedule]:
        now = self.time.instant()
        due: list[UpcomingSchedule] = []
        while self.soon and self.soon[0].due_at <= now and len(due) < BATCH:
            due.append(heapq.heappop(self.soon))
        if due and self.is_full and (not self.soon or self.soon[0].due_at > now):
            # A full page hid something: look as soon as what is due of it is dealt with.
            self.look_ahead_at = 0.0
        return due

    def take_late(self, now_s: float) -> list[UpcomingSchedule]:
        """Catching up: as much as the rate allows, and a debt is paid before more is taken."""
        elapsed_s, self.tokens_at = now_s - self.tokens_at, now_s
        self.tokens = min(self.tokens + elapsed_s * CATCH_UP_PER_S, CATCH_UP_PER_S)
        if self.tokens <= 0 or not self.late:
            return []
        count = min(BATCH, max(int(self.tokens), 1), len(self.late))
        due = [heapq.heappop(self.late) for _ in range(count)]
        if self.is_late_full and not self.late:
            self.look_ahead_at = 0.0
        return due

    async def fire(self, due: list[UpcomingSchedule]) -> None:
        """One bounded batch; what does not fit into it stays due and comes again."""
        wanted = {soon.id: soon for soon in due}
        schedules = await read_schedules(self.database, sorted(wanted, key=lambda each: each.int))
        readable = [
            (schedule, recurrence)
            for schedule, recurrence in await self.readable(schedules)
            if schedule.due_at is not None and schedule.due_at <= schedule.now
        ]
        done = await self.fire_readable(readable)
        for schedule, _ in readable:
            if schedule.id not in done:
                soon = wanted[schedule.id]
                heapq.heappush(self.late if soon.is_late else self.soon, soon)

    async def fire_readable(self, readable: list[tuple[Schedule, Recurrence]]) -> set[UUID]:
        """Those that were dealt with. A pool too many is known when tasks get their places, before
        anything is stored."""
        if not readable:
            return set()
        try:
            firings = await self.schedule_firer.plan(readable)
        except TooManyPools as refusal:
            if len(readable) > 1:
                middle = len(readable) // 2
                done = await self.fire_readable(readable[:middle])
                return done | await self.fire_readable(readable[middle:])
            await self.pause(readable[0][0], str(refusal))
            return {readable[0][0].id}
        await self.fire_planned(firings)
        return {firing.schedule.id for firing in firings}

    async def fire_planned(self, firings: list[Firing]) -> None:
        try:
            moved = await self.schedule_firer.fire(self.database, firings)
        except StatementRefused as refusal:
            await self.split_batch(firings, refusal)
            return
        for firing in firings:
            if firing.schedule.id in moved:
                self.record_firing(firing)

    async def split_batch(self, firings: list[Firing], refusal: StatementRefused) -> None:
        """Split a batch: one bad schedule must not keep the others from firing."""
        if len(firings) > 1:
            middle = len(firings) // 2
            await self.fire_planned(firings[:middle])
            await self.fire_planned(firings[middle:])
            return
        schedule, now_s = firings[0].schedule, self.environment.clock.monotonic()
        if str(refusal.facts["code"]).startswith(OWN_FAULTS):
            await self.pause(schedule, str(refusal))
            return
        self.deferred_until[schedule.id] = now_s + AGAIN_S
        self.look_ahead_at = min(self.look_ahead_at, now_s + AGAIN_S)

    def record_firing(self, firing: Firing) -> None:
        """Count the firing, charge late tasks to the catch-up rate, and keep the next instant."""
        for ruling in firing.plan.decisions:
            self.metrics.occurrences.add(1, ruling.verdict.value)
            if ruling.fires:
                self.metrics.occurrence_lateness.observe(ruling.late_s)
            if ruling.late_s > GRACE_S:
                self.tokens -= 1.0 if ruling.fires else RULING_COST
        if firing.due_at is None or firing.due_at > firing.schedule.now + timedelta(seconds=LOAD_S):
            return
        is_late = firing.due_at <= firing.schedule.now - timedelta(seconds=GRACE_S)
        soon = UpcomingSchedule(firing.due_at, firing.schedule.id, is_late)
        if is_late:
            heapq.heappush(self.late, soon)
        else:
            heapq.heappush(self.soon, soon)

    async def readable(self, schedules: list[Schedule]) -> list[tuple[Schedule, Recurrence]]:
        """Those that can be reckoned with; the others are paused."""
        found = []
        for schedule in schedules:
            recurrence = schedule.recurrence()
            if isinstance(recurrence, Recurrence):
                found.append((schedule, recurrence))
            elif schedule.nominal_at is not None:
                zone = schedule.definition.fields.timezone
                reasons = "; ".join(each.reason for each in recurrence)
                await self.pause(schedule, f"it cannot be reckoned with (zone {zone}): {reasons}")
        return found

    async def pause(self, schedule: Schedule, reason: str) -> None:
        """Pause a schedule that cannot fire as defined, with the reason."""
        async with self.database.transaction() as session:
            if not await pause_unreadable(session, schedule, reason):
                return
            detail = msgspec.json.encode({"id": schedule.id, "reason": reason}).decode()
            name = schedule.definition.name
            await append_audit(session, schedule.tenant, BY_DULY, "schedule.pause", name, detail)
        log.warning("schedule paused", schedule=str(schedule.id), reason=reason)

    async def sweep_page(self) -> None:
        """One page of all definitions: is the next instant the one that the rules say?"""
        # Said before the look: slots that come meanwhile ask for another.
        self.sweep_at = self.environment.clock.monotonic() + SWEEP_S
        page = await sweep(self.database, self.owned_shards(), self.swept_to, SWEEP_PAGE)
        if len(page) < SWEEP_PAGE:
            self.swept_to = (-1, START)
        else:
            self.swept_to = (shard_of(page[-1].id), page[-1].id)
            self.sweep_at = min(self.sweep_at, self.environment.clock.monotonic() + LOAD_S)
        await self.rebuild([each.id for each in page if each.is_broken])
        if page:
            await self.rearm(await read_schedules(self.database, [each.id for each in page]))

    def owned_shards(self) -> list[int]:
        return [shard for slot in sorted(self.coordinator.owned) for shard in shards_of(slot)]

    async def rebuild(self, lost: list[UUID]) -> None:
        if not lost:
            return
        for schedule_id in await rebuild_timers(self.database, lost):
            log.warning("schedule timer restored", schedule=str(schedule_id))

    async def rearm(self, schedules: list[Schedule]) -> None:
        wanted = []
        for schedule, recurrence in await self.readable(schedules):
            policies = schedule.definition.policies
            expected = next_at(recurrence, policies, schedule.cursor_at, schedule.fires)
            if expected != schedule.nominal_at:
                wanted.append((schedule, expected))
        if not wanted:
            return
        changed = set(await rearm_schedules(self.database, wanted))
        for schedule, expected in wanted:
            if schedule.id in changed:
                self.metrics.schedules_rearmed.add(1)
                log.warning(
                    "schedule next instant recomputed",
                    schedule=str(schedule.id),
                    was=str(schedule.nominal_at),
                    now=str(expected),
                )
        self.look_ahead_at = 0.0
