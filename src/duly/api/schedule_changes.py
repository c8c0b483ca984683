"""Shared steps of every schedule change: lock it, decide due occurrences under the current
definition, and notify the cron role after the commit."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from duly.api.problems import ApiProblem, Code, later, not_found
from duly.api.rate_limit import Throttle
from duly.api.request import Answer, Call
from duly.api.schedule_views import schedule_view
from duly.api.task_rules import permit, permit_type, read_rules
from duly.api.tasks import task_id_of
from duly.domain.errors import TooManyPools
from duly.domain.limits import POOLS_PER_TENANT_MAX, Problem
from duly.domain.recurrence import Recurrence
from duly.store.database import Database
from duly.store.fire_schedules import FiredSchedules, ScheduleFirer
from duly.store.occurrences import read_cadences
from duly.store.pools import may_have_pool
from duly.store.schedules import Schedule, find_schedule, lock_schedule
from duly.store.templates import ScheduledWorkflow, Template

# The schedule, when it is due next, and the time by the database's clock.
Expect = Callable[[UUID, datetime | None, datetime], None]
CATCHING_UP = "the schedule is catching up with missed occurrences; try again"
CATCH_UP_RETRY_S = 5


@dataclass(frozen=True)
class ScheduleChanges:
    database: Database
    schedule_firer: ScheduleFirer
    expect: Expect
    throttle: Throttle

    async def prepare(self, call: Call, *_: object) -> None:
        """What firing must know (partitions, the number of the pool) is known before the call holds
        a connection."""
        found = await find_schedule(self.database, call.tenant, task_id_of(call, "schedule"))
        times = [] if found is None else [(found, found.now, found.now)]
        # What cannot fire must still be mended, paused or deleted.
        with contextlib.suppress(TooManyPools):
            await self.schedule_firer.entries(times, None)

    async def prepare_task(self, call: Call, *_: object) -> None:
        """Firing by hand is a submit, and counts as one."""
        await self.prepare(call)
        await self.throttle.admit(call.tenant, 1)

    async def check_place(self, call: Call, scheduled: Template | ScheduledWorkflow) -> None:
        """A template whose tasks would find no pool is refused before it is kept."""
        templates = [scheduled] if isinstance(scheduled, Template) else scheduled.tasks
        for pool in sorted({each.pool for each in templates if each.url is None}):
            if not await may_have_pool(call.session, call.tenant, pool):
                raise TooManyPools(tenant=call.tenant, most=POOLS_PER_TENANT_MAX)

    async def find(self, call: Call) -> Schedule:
        schedule_id = task_id_of(call, "schedule")
        found = await find_schedule(call.session, call.tenant, schedule_id)
        if found is None:
            raise not_found("schedule", schedule_id)
        return found

    async def lock(self, call: Call) -> Schedule:
        """For a change, which a credential limited to other task types may not make."""
        schedule_id = task_id_of(call, "schedule")
        locked = await lock_schedule(call.session, call.tenant, schedule_id)
        if locked is None:
            raise not_found("schedule", schedule_id)
        permit_type(call.credential, locked.definition.type)
        return locked

    async def open(self, call: Call) -> Schedule:
        """Locked, and nothing of it is due any more."""
        ruled = await self.schedule_firer.decide_due(call.session, await self.lock(call))
        if ruled is None:
            raise later(Code.CONFLICT, CATCHING_UP, CATCH_UP_RETRY_S)
        schedule, written = ruled
        self.notify(call, written)
        return schedule

    def notify(self, call: Call, written: FiredSchedules) -> None:
        if written.made:
            call.after.append(lambda: self.schedule_firer.publish(written))

    def expect_after(self, call: Call, schedule: Schedule) -> None:
        call.after.append(lambda: self.expect(schedule.id, schedule.due_at, schedule.now))

    async def answer(self, call: Call, schedule_id: UUID, status: int = 200) -> Answer:
        """The schedule as it stands after the change."""
        changed = await find_schedule(call.session, call.tenant, schedule_id)
        assert changed is not None, "it is locked by this transaction"
        self.expect_after(call, changed)
        cadences = await read_cadences(call.session, [schedule_id])
        return Answer(status, schedule_view(changed, cadences.get(schedule_id)))


async def permit_task(call: Call, schedule: Schedule) -> None:
    """Firing by hand is a submit: it needs a credential that may submit the type."""
    template = schedule.definition.template
    if not isinstance(template, Template):
        types = {each.type for each in template.tasks} or {template.name}
    else:
        types = {template.type}
    for task_type in sorted(types):
        permit(await read_rules(call.session, call.tenant, task_type), call.credential, task_type)


def reckon(schedule: Schedule) -> Recurrence:
    """Refused if this server cannot tell any more when it fires: its zone may be gone."""
    recurrence = schedule.recurrence()
    if isinstance(recurrence, Recurrence):
        return recurrence
    raise ApiProblem(Code.CONFLICT, unreadable(schedule, recurrence))


def unreadable(schedule: Schedule, problems: list[Problem]) -> str:
    reasons = "; ".join(f"{problem.pointer} {problem.reason}" for problem in problems)
    zone = schedule.definition.fields.timezone
    return f"the fire times of this schedule cannot be computed (time zone {zone}): {reasons}"
