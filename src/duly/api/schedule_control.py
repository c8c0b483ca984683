"""Schedule control endpoints: pause and resume one or many, with actor and reason; trigger one."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid
from duly.api.request import Answer, Call
from duly.api.schedule_changes import CATCHING_UP, ScheduleChanges, permit_task, reckon, unreadable
from duly.api.schedule_views import ScheduleView
from duly.api.schedule_wire import (
    PauseMany,
    PauseSchedule,
    ResumeMany,
    ResumeSchedule,
    SchedulesChanged,
    UnchangedSchedule,
)
from duly.api.task_rules import permit_filter
from duly.api.wire import TaskView, task_view
from duly.api.workflow_wire import WorkflowView, workflow_view
from duly.domain.access import OPERATORS
from duly.domain.limits import (
    PAUSE_REASON_CHARACTERS_MAX,
    SCHEDULES_AT_ONCE_MAX,
    Problem,
    text_reason,
)
from duly.domain.occurrence_plan import OccurrenceDecision
from duly.domain.recurrence import Recurrence
from duly.store.read import read_task
from duly.store.schedules import (
    Schedule,
    ScheduleFilter,
    list_schedules,
    lock_schedule,
    pause_schedule,
    resume_schedule,
)
from duly.store.workflows import read_workflow

TAG = "Schedules"
# Changes one schedule, or says why it is left as it is.
Change = Callable[[Call, Schedule], Awaitable[str | None]]


@dataclass(frozen=True)
class ScheduleControlRoutes:
    changes: ScheduleChanges

    def endpoints(self) -> list[Endpoint]:
        route = partial(
            Endpoint,
            method="POST",
            kind=Kind.CONTROL,
            access=OPERATORS,
            tag=TAG,
            checks_types=True,
        )
        one = partial(route, prepare=self.changes.prepare)
        return [
            one(
                path="/v1/schedules/{id}/pause",
                summary="Pause a schedule: its occurrences are skipped, each on record",
                handler=self.pause,
                body=PauseSchedule,
                answers={200: ScheduleView},
                refusals=(Code.NOT_FOUND, Code.CONFLICT, Code.MALFORMED_BODY, Code.INVALID),
            ),
            one(
                path="/v1/schedules/{id}/resume",
                summary="Resume a schedule from its next occurrence on",
                handler=self.resume,
                body=ResumeSchedule,
                is_body_optional=True,
                answers={200: ScheduleView},
                refusals=(Code.NOT_FOUND, Code.CONFLICT, Code.MALFORMED_BODY, Code.INVALID),
            ),
            route(
                path="/v1/schedules/{id}/trigger",
                summary="Fire a schedule now, also while it is paused",
                handler=self.trigger,
                prepare=self.changes.prepare_task,
                # Of a schedule that starts workflows: 202.
                answers={201: TaskView, 202: WorkflowView},
                refusals=(
                    Code.NOT_FOUND,
                    Code.CONFLICT,
                    Code.TOO_MANY,
                    Code.RATE_LIMITED,
                    Code.QUOTA_EXCEEDED,
                ),
            ),
            route(
                path="/v1/schedules/pause",
                summary=f"Pause up to {SCHEDULES_AT_ONCE_MAX} schedules, the newest first",
                handler=self.pause_many,
                body=PauseMany,
                answers={200: SchedulesChanged},
                refusals=(Code.MALFORMED_BODY, Code.INVALID),
            ),
            route(
                path="/v1/schedules/resume",
                summary=f"Resume up to {SCHEDULES_AT_ONCE_MAX} schedules, the newest first",
                handler=self.resume_many,
                body=ResumeMany,
                answers={200: SchedulesChanged},
                refusals=(Code.MALFORMED_BODY, Code.INVALID),
            ),
        ]

    async def pause(self, call: Call, asked: PauseSchedule) -> Answer:
        """Who paused it first, and why, stands until it is resumed."""
        check_reason(asked.reason)
        # Due occurrences that have not fired are skipped too: a pause takes effect at once.
        schedule = await self.changes.lock(call)
        if await pause_schedule(call.session, schedule, call.credential.actor, asked.reason):
            note_one(call, "schedule.pause", schedule, asked.reason)
        return await self.changes.answer(call, schedule.id)

    async def resume(self, call: Call, asked: ResumeSchedule) -> Answer:
        check_reason(asked.reason)
        schedule = await self.changes.open(call)
        if schedule.paused_at is not None:
            await resume_schedule(call.session, schedule, reckon(schedule))
            note_one(call, "schedule.resume", schedule, asked.reason)
        return await self.changes.answer(call, schedule.id)

    async def trigger(self, call: Call) -> Answer:
        schedule = await self.changes.lock(call)
        await permit_task(call, schedule)
        times = [(moment_of(schedule.now), schedule.now)]
        written = await self.changes.schedule_firer.fire_manually(
            call.session, schedule, OccurrenceDecision.TRIGGERED, times
        )
        if not written.made:
            raise ApiProblem(
                Code.CONFLICT, "the schedule was triggered at this same instant; try again"
            )
        (made,) = written.made
        self.changes.notify(call, written)
        # What a scheduler was about to fire has another fence now, and is looked at again.
        self.changes.expect_after(call, schedule)
        kind = "task" if schedule.definition.is_task else "workflow"
        facts = {"id": schedule.id, kind: made}
        call.note("schedule.trigger", schedule.definition.name, **facts)
        if schedule.definition.is_task:
            task = await read_task(call.session, call.tenant, made)
            assert task is not None, "this transaction stored it"
            return Answer(201, task_view(task))
        workflow = await read_workflow(call.session, call.tenant, made)
        assert workflow is not None, "this transaction stored it"
        return Answer(202, workflow_view(workflow))

    async def pause_many(self, call: Call, asked: PauseMany) -> Answer:
        async def pause(call: Call, schedule: Schedule) -> str | None:
            await pause_schedule(call.session, schedule, call.credential.actor, asked.reason)
            return None

        return await self.change_many(call, asked, pause, "schedule.pause_many")

    async def resume_many(self, call: Call, asked: ResumeMany) -> Answer:
        async def resume(call: Call, schedule: Schedule) -> str | None:
            recurrence = schedule.recurrence()
            if not isinstance(recurrence, Recurrence):
                return unreadable(schedule, recurrence)
            await resume_schedule(call.session, schedule, recurrence)
            return None

        return await self.change_many(call, asked, resume, "schedule.resume_many")

    async def change_many(
        self, call: Call, asked: PauseMany | ResumeMany, change: Change, action: str
    ) -> Answer:
        """One page of those that are not in the wanted condition yet, in one transaction."""
        check_reason(asked.reason)
        permit_filter(call.credential, asked.filter.type)
        is_pause = isinstance(asked, PauseMany)
        wanted = ScheduleFilter(asked.filter.name_prefix, asked.filter.type, not is_pause)
        before = None if asked.cursor is None else UUID(asked.cursor)
        found, following = await list_schedules(
            call.session, call.tenant, wanted, before, SCHEDULES_AT_ONCE_MAX
        )
        left: list[UnchangedSchedule] = []
        done = 0
        # In the order of ids, as schedulers lock them: two that lock crosswise would deadlock.
        for seen in [] if asked.dry_run else sorted(found, key=lambda each: each.id.int):
            locked = await lock_schedule(call.session, call.tenant, seen.id)
            if locked is None or (locked.paused_at is not None) is is_pause:
                continue
            reason = await self.change_one(call, locked, change)
            if reason is None:
                done += 1
            else:
                left.append(UnchangedSchedule(id=seen.id, name=seen.definition.name, detail=reason))
        if done:
            facts = {"filter": msgspec.to_builtins(asked.filter), "reason": asked.reason}
            call.note(action, call.tenant_name, done=done, **facts)
        return Answer(
            200,
            SchedulesChanged(
                dry_run=asked.dry_run,
                matched=len(found),
                done=done,
                left=left,
                next_cursor=None if following is None else str(following),
            ),
        )

    async def change_one(self, call: Call, locked: Schedule, change: Change) -> str | None:
        schedule = locked
        if locked.paused_at is not None:
            ruled = await self.changes.schedule_firer.decide_due(call.session, locked)
            if ruled is None:
                return CATCHING_UP
            schedule, written = ruled
            self.changes.notify(call, written)
        reason = await change(call, schedule)
        # Where it moved on, the instant that a scheduler knows of is past.
        self.changes.expect_after(call, schedule)
        return reason


def check_reason(reason: str | None) -> None:
    wrong = None if reason is None else text_reason(reason, PAUSE_REASON_CHARACTERS_MAX)
    if wrong is not None:
        raise invalid([Problem("/reason", wrong)])


def note_one(call: Call, action: str, schedule: Schedule, reason: str | None) -> None:
    call.note(action, schedule.definition.name, id=schedule.id, reason=reason)


def moment_of(now: datetime) -> datetime:
    """The name of what is fired by hand: never a whole second, as those of the rule are."""
    return now if now.microsecond else now + timedelta(microseconds=1)
