"""Task control endpoints: cancel one or many, reschedule, run now."""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, later, not_found
from duly.api.request import Answer, Call
from duly.api.task_rules import permit_filter, permit_type
from duly.api.tasks import TAG, tag_of, task_id_of
from duly.api.wire import Instant, Priority, Seconds, Target, TaskView, TypeName, in_utc, task_view
from duly.domain.access import PRODUCERS
from duly.domain.limits import Problem, submission_problems
from duly.domain.states import State
from duly.domain.task import Submission
from duly.environment import Environment
from duly.events import TaskEvents, TasksRescheduled
from duly.store.control import (
    ControlAnswer,
    TimerChange,
    cancel_tasks,
    cancelled_tasks,
    ended_by_cancel,
    reschedule_tasks,
    run_now,
)
from duly.store.finish import Released
from duly.store.load import Hint
from duly.store.read import PAGE_MAX, Filter, list_tasks, read_task

CANCEL_MANY_MAX = 1000
# Tasks looked at in one call: seconds at most.
LOOKED_AT_MAX = 10_000
# Those that run come last: what has not started is cancelled before it can.
LIVE_STATES = (State.WAITING, State.READY, State.SCHEDULED, State.RUNNING)


class Reschedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    run_at: Instant | None = None
    delay_s: Seconds | None = None
    priority: Priority | None = None


class TaskFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state: State | None = None
    type: TypeName | None = None
    tag: Annotated[str, Meta(pattern="^[^:]+:", max_length=400)] | None = None
    created_after: Instant | None = None
    run_before: Instant | None = None


class CancelMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    filter: TaskFilter
    dry_run: bool = False
    cursor: Cursor | None = None


class CancelManyAnswer(msgspec.Struct, frozen=True):
    """`has_more`: the filter may match further tasks; ask again, with `next_cursor` if it is given:
    the filter looked at so many tasks that it stopped there."""

    dry_run: bool
    matched: int
    cancelled: int
    cancel_requested: int
    has_more: bool
    next_cursor: str | None = None


@dataclass(frozen=True)
class TaskControlRoutes:
    environment: Environment
    events: TaskEvents

    def endpoints(self) -> list[Endpoint]:
        route = partial(Endpoint, access=PRODUCERS, tag=TAG, checks_types=True)
        return [
            route(
                "POST",
                "/v1/tasks/cancel",
                "Cancel many tasks by filter",
                self.cancel_many,
                Kind.CONTROL,
                is_bulk=True,
                body=CancelMany,
                answers={200: CancelManyAnswer},
                refusals=(Code.MALFORMED_BODY, Code.INVALID),
            ),
            *(
                route(
                    method,
                    path,
                    "Cancel a task; a running one is asked to stop",
                    self.cancel,
                    Kind.CONTROL,
                    answers={200: TaskView, 202: TaskView},
                    refusals=(Code.NOT_FOUND, Code.ALREADY_TERMINAL),
                )
                for method, path in (
                    ("POST", "/v1/tasks/{id}/cancel"),
                    ("DELETE", "/v1/tasks/{id}"),
                )
            ),
            route(
                "PATCH",
                "/v1/tasks/{id}",
                "Give a task another instant or priority",
                self.reschedule,
                Kind.CONTROL,
                body=Reschedule,
                answers={200: TaskView},
                refusals=(
                    Code.NOT_FOUND,
                    Code.ALREADY_TERMINAL,
                    Code.RUNNING,
                    Code.WAITING,
                    Code.MALFORMED_BODY,
                    Code.INVALID,
                ),
            ),
            route(
                "POST",
                "/v1/tasks/{id}/run-now",
                "Make a task due at once",
                self.run_now,
                Kind.CONTROL,
                answers={200: TaskView},
                refusals=(Code.NOT_FOUND, Code.ALREADY_TERMINAL, Code.RUNNING, Code.WAITING),
            ),
        ]

    async def cancel(self, call: Call) -> Answer:
        task_id = task_id_of(call)
        await permit_task(call, task_id)
        released = Released()
        answers = await cancel_tasks(call.session, call.tenant, [task_id], released)
        answer = answers[task_id]
        if answer is ControlAnswer.CANCELLED:
            call.after.append(lambda: self.publish_cancelled(call, [task_id], released))
        if answer in (ControlAnswer.CANCELLED, ControlAnswer.CANCEL_REQUESTED):
            call.note("task.cancel", str(task_id), answer=answer.value)
        elif answer is not ControlAnswer.ALREADY_CANCELLED:
            raise control_refusal(answer, task_id)
        status = 202 if answer is ControlAnswer.CANCEL_REQUESTED else 200
        return remembered_without_payload(status, await self.view_in(call, task_id))

    def publish_cancelled(self, call: Call, ids: list[UUID], released: Released) -> None:
        self.events.publish(cancelled_tasks(call.tenant, ids, released))

    async def view_in(self, call: Call, task_id: UUID) -> TaskView:
        """As this call's own transaction sees it."""
        found = await read_task(call.session, call.tenant, task_id)
        if found is None:
            raise not_found("task", task_id)
        return task_view(found)

    async def reschedule(self, call: Call, asked: Reschedule) -> Answer:
        if asked == Reschedule():
            raise invalid([Problem("", "give run_at, delay_s or priority")])
        if asked.run_at is not None and asked.delay_s is not None:
            raise invalid([Problem("/delay_s", "give run_at or delay_s, not both")])
        if asked.run_at is not None:
            probe = Submission(tenant=call.tenant, type="probe", run_at=asked.run_at)
            problems = submission_problems(probe, self.environment.clock.now())
            if problems:
                raise invalid(problems)
        run_at = None if asked.run_at is None else in_utc(asked.run_at)
        move = TimerChange(task_id_of(call), run_at, asked.delay_s, asked.priority)
        return await self.move(call, move, "task.reschedule")

    async def run_now(self, call: Call) -> Answer:
        return await self.move(call, run_now(task_id_of(call)), "task.run_now")

    async def move(self, call: Call, move: TimerChange, action: str) -> Answer:
        await permit_task(call, move.id)
        hints: list[Hint] = []
        answer = (await reschedule_tasks(call.session, call.tenant, [move], hints))[move.id]
        if answer is not ControlAnswer.MOVED:
            raise control_refusal(answer, move.id)
        call.after.append(lambda: self.events.publish(TasksRescheduled(hints)))
        call.note(action, str(move.id), **facts_of(move))
        return remembered_without_payload(200, await self.view_in(call, move.id))

    async def cancel_many(self, call: Call, asked: CancelMany) -> Answer:
        """Cancel one bounded batch of the unfinished tasks that match."""
        permit_filter(call.credential, asked.filter.type)
        ids, has_more, next_cursor = await self.matching(call, asked.filter, asked.cursor)
        counts: Counter[ControlAnswer] = Counter()
        if ids and not asked.dry_run:
            released = Released()
            answers = await cancel_tasks(call.session, call.tenant, ids, released)
            counts.update(answers.values())
            ended = ended_by_cancel(answers)
            call.after.append(lambda: self.publish_cancelled(call, ended, released))
            call.note(
                "task.cancel_many",
                call.tenant_name,
                filter=msgspec.to_builtins(asked.filter),
                matched=len(ids),
            )
        return Answer(
            200,
            CancelManyAnswer(
                asked.dry_run,
                len(ids),
                counts[ControlAnswer.CANCELLED],
                counts[ControlAnswer.CANCEL_REQUESTED],
                has_more,
                next_cursor,
            ),
        )

    async def matching(
        self, call: Call, asked: TaskFilter, start: str | None
    ) -> tuple[list[UUID], bool, str | None]:
        """Unfinished tasks without a cancel request: every batch finds other ones."""
        ids: dict[UUID, None] = {}
        states = [state for state in LIVE_STATES if asked.state in (None, state)]
        place, _, cursor_text = (start or "0 ").partition(" ")
        cursor, looked_at = cursor_text or None, 0
        for number in range(int(place), len(states)):
            wanted = Filter(
                states[number], asked.type, tag_of(asked.tag), asked.created_after, asked.run_before
            )
            while True:
                found = await list_tasks(
                    *(call.session, call.tenant, wanted, cursor, PAGE_MAX),
                    searched_max=LOOKED_AT_MAX - looked_at,
                )
                ids.update((task.id, None) for task in found.items if not task.cancel_requested)
                if len(ids) > CANCEL_MANY_MAX:
                    return list(ids)[:CANCEL_MANY_MAX], True, None
                cursor, looked_at = found.next_cursor, looked_at + found.searched
                if cursor is None:
                    break
                if looked_at >= LOOKED_AT_MAX:
                    return list(ids), True, f"{number} {cursor}"
        return list(ids), False, None


async def permit_task(call: Call, task_id: UUID) -> None:
    """Looked up only for a limited credential. A type never changes, so no lock is needed."""
    if call.credential.types is None:
        return
    found = await read_task(call.session, call.tenant, task_id)
    if found is None:
        raise not_found("task", task_id)
    permit_type(call.credential, found.type)


def remembered_without_payload(status: int, view: TaskView) -> Answer:
    """A repeated call is answered from memory, which no erasure of personal data reaches: without
    payload and whatever else the user wrote."""
    kept = msgspec.structs.replace(
        view,
        payload=None,
        result=None,
        progress=None,
        error=None,
        tags=None,
        concurrency_key=None,
        idempotency_key=None,
        execution_key=None,
        target=Target(pool=view.target.pool),
    )
    return Answer(status, view, kept=kept)


def control_refusal(answer: ControlAnswer, task_id: UUID) -> ApiProblem:
    match answer:
        case ControlAnswer.UNKNOWN:
            return not_found("task", task_id)
        case ControlAnswer.RUNNING:
            return ApiProblem(Code.RUNNING, "the task is running; cancel it, or wait until it ends")
        case ControlAnswer.WAITING:
            return ApiProblem(Code.WAITING, "the task waits for other tasks of its workflow")
        case ControlAnswer.ALREADY_TERMINAL | ControlAnswer.ALREADY_CANCELLED:
            return ApiProblem(
                Code.ALREADY_TERMINAL, "the task has ended; an ended task never changes"
            )
        case _:
            return later(Code.OVERLOADED, "other calls are changing the task; try again")


def facts_of(move: TimerChange) -> dict[str, object]:
    facts = {"run_at": move.run_at, "delay_s": move.delay_s, "priority": move.priority}
    return {name: value for name, value in facts.items() if value is not None}
