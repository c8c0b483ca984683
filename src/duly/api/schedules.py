"""Schedule endpoints: create, read, list, edit, delete, preview, and list occurrences. Pause,
resume and trigger are in schedule_control.py."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from duly.api.admission import Admission
from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid
from duly.api.request import Answer, Call
from duly.api.schedule_changes import ScheduleChanges
from duly.api.schedule_rules import (
    CheckedSchedule,
    ScheduleContext,
    check_recurrence,
    check_schedule,
    check_task,
    name_problems,
)
from duly.api.schedule_views import (
    OccurrenceView,
    PreviewView,
    ScheduleView,
    change_view,
    fire_view,
    occurrence_view,
    schedule_view,
)
from duly.api.schedule_wire import (
    OccurrencesQuery,
    PreviewRequest,
    ScheduleChange,
    ScheduleRequest,
    SchedulesQuery,
)
from duly.api.task_rules import TaskRules
from duly.api.wire import LATEST, Page, TaskRequest, in_utc, page
from duly.api.workflow_body import WorkflowChecks
from duly.api.workflow_wire import OccurrenceWorkflow
from duly.domain.access import OBSERVERS, OPERATORS, PRODUCERS
from duly.domain.clock_changes import describe_changes
from duly.domain.limits import Problem
from duly.domain.recurrence import Recurrence, next_occurrences
from duly.domain.recurrence_fields import INSTANT_MAX, INSTANT_MIN, closest_fires_s
from duly.environment import Environment
from duly.store.occurrences import list_occurrences, read_cadences
from duly.store.schedules import (
    Definition,
    Schedule,
    ScheduleFilter,
    create_schedule,
    delete_schedule,
    edit_schedule,
    find_schedule_ids,
    list_schedules,
    make_schedule_id,
    read_schedules,
)
from duly.store.templates import ScheduledWorkflow, Template
from duly.store.tenants import read_schedule_bound

TAG = "Schedules"
DEFINING = (Code.MALFORMED_BODY, Code.INVALID, Code.CONFLICT, Code.TOO_MANY)


@dataclass(frozen=True)
class ScheduleRoutes:
    environment: Environment
    changes: ScheduleChanges
    rules: TaskRules
    workflow_checks: WorkflowChecks
    admission: Admission

    def endpoints(self) -> list[Endpoint]:
        return [*self.defining(), *self.looking()]

    def defining(self) -> list[Endpoint]:
        route = partial(Endpoint, kind=Kind.CONTROL, access=OPERATORS, tag=TAG, checks_types=True)
        one = partial(route, path="/v1/schedules/{id}", prepare=self.prepare)
        return [
            route(
                method="POST",
                path="/v1/schedules",
                summary="Define a schedule",
                handler=self.create,
                prepare=self.check_payload,
                body=ScheduleRequest,
                answers={201: ScheduleView},
                refusals=DEFINING,
            ),
            one(
                method="PUT",
                summary="Replace the definition of a schedule",
                handler=self.replace,
                body=ScheduleRequest,
                answers={200: ScheduleView},
                refusals=(*DEFINING, Code.NOT_FOUND),
            ),
            one(
                method="PATCH",
                summary="Change some fields of a schedule",
                handler=self.change,
                body=ScheduleChange,
                answers={200: ScheduleView},
                refusals=(*DEFINING, Code.NOT_FOUND),
            ),
            one(
                method="DELETE",
                summary="Delete a schedule; its tasks stay",
                handler=self.delete,
                answers={204: None},
                refusals=(Code.NOT_FOUND, Code.CONFLICT),
            ),
        ]

    def looking(self) -> list[Endpoint]:
        route = partial(Endpoint, kind=Kind.READ, access=PRODUCERS, tag=TAG)
        return [
            route(
                method="GET",
                path="/v1/schedules",
                summary="List schedules, newest first",
                handler=self.list_page,
                query=SchedulesQuery,
                answers={200: Page[ScheduleView]},
            ),
            route(
                method="POST",
                path="/v1/schedules/preview",
                summary="Preview the next fires and clock changes of a definition",
                handler=self.preview,
                access=PRODUCERS | OBSERVERS,
                checks_types=True,
                prepare=self.check_payload,
                body=PreviewRequest,
                answers={200: PreviewView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
            ),
            route(
                method="GET",
                path="/v1/schedules/{id}",
                summary="Read a schedule",
                handler=self.get,
                answers={200: ScheduleView},
                refusals=(Code.NOT_FOUND,),
            ),
            route(
                method="GET",
                path="/v1/schedules/{id}/occurrences",
                summary="List occurrences with their verdicts, newest first",
                handler=self.occurrences,
                query=OccurrencesQuery,
                answers={200: Page[OccurrenceView]},
                refusals=(Code.NOT_FOUND,),
            ),
        ]

    async def prepare(
        self, call: Call, asked: ScheduleRequest | ScheduleChange | None = None
    ) -> None:
        if asked is not None:
            await self.check_payload(call, asked)
        await self.changes.prepare(call)

    async def check_payload(
        self, call: Call, asked: ScheduleRequest | ScheduleChange | PreviewRequest
    ) -> None:
        """A costly check is made before the call holds a connection; a cheap one later, with all
        else that may be wrong."""
        if isinstance(asked.task, TaskRequest):
            await self.rules.check_costly(call.tenant, asked.task)
        if isinstance(asked.workflow, OccurrenceWorkflow):
            async with self.admission.pace() as pace:
                call.prepared = await self.workflow_checks.scheduled_of(call, asked.workflow, pace)

    async def create(self, call: Call, asked: ScheduleRequest) -> Answer:
        least_s, now = await read_schedule_bound(call.session, call.tenant)
        began_at = beginning(now)
        context = ScheduleContext(began_at, least_s, began_at)
        checked = await check_schedule(call, asked, context, self.rules.outbound)
        await self.changes.check_place(call, checked.definition.template)
        schedule_id = make_schedule_id(self.environment, call.tenant, now)
        if not await create_schedule(call.session, call.tenant, schedule_id, *checked, began_at):
            raise name_taken(asked.name)
        call.note("schedule.create", asked.name, id=schedule_id, **facts_of(checked.definition))
        return await self.changes.answer(call, schedule_id, 201)

    async def replace(self, call: Call, asked: ScheduleRequest) -> Answer:
        return await self.edit(call, await self.changes.open(call), asked)

    async def change(self, call: Call, asked: ScheduleChange) -> Answer:
        if asked == ScheduleChange():
            raise invalid([Problem("", "give at least one field")])
        schedule = await self.changes.open(call)
        return await self.edit(call, schedule, asked.applied_to(schedule.definition))

    async def edit(self, call: Call, schedule: Schedule, asked: ScheduleRequest) -> Answer:
        least_s, now = await read_schedule_bound(call.session, call.tenant)
        known = schedule.definition
        scheduled = None if isinstance(known.template, Template) else known.template
        context = ScheduleContext(now, least_s, schedule.anchor_at, known.fields, scheduled)
        checked = await check_schedule(call, asked, context, self.rules.outbound)
        await self.changes.check_place(call, checked.definition.template)
        if asked.name != known.name:
            await self.refuse_taken(call, asked.name)
        await edit_schedule(call.session, schedule, *checked)
        call.note(
            "schedule.edit",
            asked.name,
            id=schedule.id,
            changed=changed_fields(known, checked),
            **facts_of(checked.definition),
        )
        return await self.changes.answer(call, schedule.id)

    async def refuse_taken(self, call: Call, name: str) -> None:
        """Of two that take one name at once, the second meets the table's own check: 503."""
        if await find_schedule_ids(call.session, call.tenant, [name]):
            raise name_taken(name)

    async def delete(self, call: Call) -> Answer:
        """What was due and not fired yet goes with it."""
        schedule = await self.changes.lock(call)
        await delete_schedule(call.session, call.tenant, schedule.id)
        call.note("schedule.delete", schedule.definition.name, id=schedule.id)
        return Answer(204)

    async def get(self, call: Call) -> Answer:
        schedule = await self.changes.find(call)
        cadences = await read_cadences(call.session, [schedule.id])
        return Answer(200, schedule_view(schedule, cadences.get(schedule.id)))

    async def list_page(self, call: Call, query: SchedulesQuery) -> Answer:
        if query.name is not None:
            return await self.by_name(call, query.name, query)
        wanted = ScheduleFilter(query.name_prefix, query.type, query.paused)
        before = None if query.cursor is None else UUID(query.cursor)
        found, following = await list_schedules(
            call.session, call.tenant, wanted, before, query.limit
        )
        cadences = await read_cadences(call.session, [each.id for each in found])
        views = [schedule_view(each, cadences.get(each.id), is_whole=False) for each in found]
        if query.flagged is not None:
            views = [view for view in views if (view.cadence.flag is not None) is query.flagged]
        return Answer(200, page(views, None if following is None else str(following)))

    async def by_name(self, call: Call, name: str, query: SchedulesQuery) -> Answer:
        if query != SchedulesQuery(name=name, limit=query.limit):
            reason = "goes with no other filter"
            raise ApiProblem(Code.INVALID_QUERY, f"name {reason}", [Problem("/name", reason)])
        ids = list((await find_schedule_ids(call.session, call.tenant, [name])).values())
        found = await read_schedules(call.session, ids)
        cadences = await read_cadences(call.session, ids)
        views = [schedule_view(each, cadences.get(each.id)) for each in found]
        return Answer(200, page(views, None))

    async def occurrences(self, call: Call, query: OccurrencesQuery) -> Answer:
        schedule = await self.changes.find(call)
        found = await list_occurrences(
            call.session,
            call.tenant,
            schedule.id,
            before=LATEST if query.cursor is None else datetime.fromisoformat(query.cursor),
            verdict=query.verdict,
            since=None if query.since is None else in_utc(query.since),
            limit=query.limit,
        )
        following = found[-1].nominal_at.isoformat() if len(found) == query.limit else None
        return Answer(200, page([occurrence_view(entry) for entry in found], following))

    async def preview(self, call: Call, asked: PreviewRequest) -> Answer:
        least_s, now = await read_schedule_bound(call.session, call.tenant)
        now = beginning(now)
        context = ScheduleContext(now, least_s, now)
        if asked.name is not None:
            context = await self.context_of(call, asked.name, context)
        recurrence, found = check_recurrence(asked, context)
        found += [] if asked.name is None else name_problems(asked.name)
        template: Template | ScheduledWorkflow | None = None
        if asked.task is not None:
            template, wrong = await check_task(call, asked, asked.task, now, self.rules.outbound)
            found += wrong
        elif isinstance(call.prepared, ScheduledWorkflow):
            template = call.prepared
        after = now if asked.after is None else in_utc(asked.after)
        if not INSTANT_MIN <= after < INSTANT_MAX:
            found.append(Problem("/after", "must lie from 1970 to 2499"))
        if found or recurrence is None:
            raise invalid(found)
        if template is not None:
            await self.changes.check_place(call, template)
        # A hundred leap days take a moment, which other callers need not wait for.
        return Answer(200, await asyncio.to_thread(look_ahead, asked, recurrence, after))

    async def context_of(self, call: Call, name: str, fresh: ScheduleContext) -> ScheduleContext:
        """What stands under that name already is judged, and counted on, as a change of it."""
        ids = list((await find_schedule_ids(call.session, call.tenant, [name])).values())
        found = await read_schedules(call.session, ids)
        if not found:
            return fresh
        return fresh._replace(anchor_at=found[0].anchor_at, known=found[0].definition.fields)


def beginning(now: datetime) -> datetime:
    """Occurrences are whole seconds. Counted from within one, the first of an interval would be its
    end: a moment after the schedule was made, instead of an interval later."""
    return now.replace(microsecond=0)


def look_ahead(asked: PreviewRequest, recurrence: Recurrence, after: datetime) -> PreviewView:
    count = asked.count if asked.max_fires is None else min(asked.count, asked.max_fires)
    return PreviewView(
        fires=[
            fire_view(each, asked.jitter_s) for each in next_occurrences(recurrence, after, count)
        ],
        clock_changes=[
            change_view(change, asked.jitter_s) for change in describe_changes(recurrence, after)
        ],
        closest_s=closest_fires_s(recurrence),
    )


def name_taken(name: str) -> ApiProblem:
    return ApiProblem(Code.CONFLICT, f"schedule {name} exists already")


def facts_of(definition: Definition) -> dict[str, object]:
    """For the audit: no payload, and no headers, which may be secrets."""
    fields = definition.fields
    rule = {"cron": fields.cron} if fields.cron is not None else {"every_s": fields.every_s}
    return {**rule, "timezone": fields.timezone, "type": definition.type}


def changed_fields(known: Definition, checked: CheckedSchedule) -> list[str]:
    old, new = known, checked.definition
    pairs = {
        "name": (old.name, new.name),
        "when": (old.fields, new.fields),
        "policies": (old.policies, new.policies),
        "jitter_s": (old.jitter_s, new.jitter_s),
        "task": ((old.task, old.template), (new.task, new.template)),
    }
    return [name for name, (before, after) in pairs.items() if before != after]
