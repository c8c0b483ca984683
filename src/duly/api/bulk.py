"""Bulk operation endpoints: preview, start, follow, stop, continue after a canary.

An operation is a row, run by the process that leads maintenance (maintenance/bulk_operations.py).
"""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.dead_letter_wire import Fingerprint
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.task_control import TaskFilter
from duly.api.task_rules import permit_filter
from duly.api.wire import Limit, Page, Seconds, TypeName, page
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.limits import Problem
from duly.domain.states import TERMINAL, FailureReason, State
from duly.environment import Environment
from duly.events import BulkOperationDue, TaskEvents
from duly.store.bulk import (
    CANARY_MAX,
    LIVE_MAX,
    RATE_DEFAULT,
    RATE_MAX,
    RATE_MIN,
    BulkAction,
    BulkFilter,
    BulkItem,
    BulkRecord,
    BulkRequest,
    BulkState,
    continue_operation,
    create_operation,
    list_operations,
    preview,
    read_operation,
    stop_operation,
)

TAG = "Bulk operations"
OF_TASKS = frozenset({"state", "type", "tag", "created_after", "run_before"})
OF_REPLAY = frozenset({"state", "type", "tag", "reason", "fingerprint"})
OF_PURGE = OF_REPLAY | {"replayed"}
OF_WORKFLOWS = frozenset({"state", "name", "tag", "created_after"})
# States of workflows that an action can change.
CHANGED_STATES = {BulkAction.RESUME_WORKFLOWS: (State.FAILED, State.CANCELLED)}


class BulkFilterBody(TaskFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field that is given must match. Cancel, reschedule and run_now take unfinished tasks by
    the fields of a task list; replay and purge take dead letters by `type`, `tag`, `reason`,
    `fingerprint`, and purge by `replayed`; the actions on workflows take them by `state`, `name`,
    `tag`, `created_after`: resume those that failed or were cancelled, the others those that have
    not ended."""

    reason: FailureReason | None = None
    fingerprint: Fingerprint | None = None
    replayed: bool | None = None
    name: TypeName | None = None


class StartBulk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`canary`: pause after so many. `delay_s`: of a reschedule, from then on."""

    action: BulkAction
    filter: BulkFilterBody
    dry_run: bool = False
    rate_per_s: Annotated[float, Meta(ge=RATE_MIN, le=RATE_MAX)] = RATE_DEFAULT
    canary: Annotated[int, Meta(ge=1, le=CANARY_MAX)] | None = None
    delay_s: Seconds | None = None


class BulkPreviewView(msgspec.Struct, frozen=True):
    """`has_more`: more match, or may match, than were counted."""

    matched: int
    has_more: bool
    sample: list[BulkItem]
    dry_run: bool = True


class BulkView(msgspec.Struct, frozen=True, kw_only=True):
    """`matched` is what is known to match so far; with `has_more` it may still grow. `done` were
    changed, `refused` were not: they had ended, ran, or waited for other tasks."""

    id: UUID
    action: BulkAction
    state: BulkState
    filter: dict[str, Any]
    delay_s: float | None
    rate_per_s: float
    canary: int | None
    matched: int
    has_more: bool
    done: int
    refused: int
    sample: list[BulkItem]
    actor: str
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    error: str | None


class BulkQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class BulkRoutes:
    environment: Environment
    events: TaskEvents

    def endpoints(self) -> list[Endpoint]:
        read = partial(Endpoint, kind=Kind.READ, access=PRODUCERS, tag=TAG)
        change = partial(
            Endpoint, kind=Kind.CONTROL, access=PRODUCERS, tag=TAG, checks_types=True, is_bulk=True
        )
        return [
            change(
                method="POST",
                path="/v1/bulk",
                summary="Change all tasks, dead letters or workflows that match a filter",
                handler=self.start,
                body=StartBulk,
                answers={200: BulkPreviewView, 201: BulkView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
            ),
            read(
                method="GET",
                path="/v1/bulk",
                summary="List bulk operations, newest first; ended ones are kept for 30 days",
                handler=self.list_page,
                query=BulkQuery,
                answers={200: Page[BulkView]},
            ),
            read(
                method="GET",
                path="/v1/bulk/{id}",
                summary="Read a bulk operation and its progress",
                handler=self.get,
                answers={200: BulkView},
                refusals=(Code.NOT_FOUND,),
            ),
            change(
                method="POST",
                path="/v1/bulk/{id}/stop",
                summary="Stop a bulk operation; what it changed stays changed",
                handler=self.stop,
                answers={200: BulkView},
                refusals=(Code.NOT_FOUND, Code.CONFLICT),
            ),
            change(
                method="POST",
                path="/v1/bulk/{id}/continue",
                summary="Go on with a bulk operation that paused after its canary",
                handler=self.go_on,
                answers={200: BulkView},
                refusals=(Code.NOT_FOUND, Code.CONFLICT),
            ),
        ]

    async def start(self, call: Call, asked: StartBulk) -> Answer:
        check(asked)
        permit_action(call, asked.action)
        permit_filter(call.credential, asked.filter.type)
        request = BulkRequest(
            asked.action,
            msgspec.convert(msgspec.to_builtins(asked.filter), BulkFilter),
            asked.rate_per_s,
            asked.canary,
            asked.delay_s,
        )
        if asked.dry_run:
            seen = await preview(call.session, call.tenant, request)
            return Answer(200, BulkPreviewView(seen.matched, seen.has_more, seen.sample))
        actor = call.credential.actor
        made = await create_operation(call.session, self.environment, call.tenant, request, actor)
        if made is None:
            detail = f"a tenant may have {LIVE_MAX} bulk operations that have not ended; stop some"
            raise ApiProblem(Code.TOO_MANY, detail)
        call.note("bulk.start", str(made.id), **facts_of(asked))
        call.after.append(lambda: self.events.publish(BulkOperationDue()))
        return Answer(201, bulk_view(made))

    async def list_page(self, call: Call, query: BulkQuery) -> Answer:
        found, following = await list_operations(
            call.session, call.tenant, query.cursor, query.limit
        )
        return Answer(200, page([bulk_view(each) for each in found], following))

    async def get(self, call: Call) -> Answer:
        return Answer(200, bulk_view(await self.named(call)))

    async def named(self, call: Call) -> BulkRecord:
        text = call.params["id"]
        try:
            operation_id = UUID(text)
        except ValueError:
            raise not_found("bulk operation", text) from None
        found = await read_operation(call.session, call.tenant, operation_id)
        if found is None:
            raise not_found("bulk operation", text)
        return found

    async def changeable(self, call: Call) -> BulkRecord:
        found = await self.named(call)
        permit_action(call, found.action)
        permit_filter(call.credential, found.filter.type)
        return found

    async def stop(self, call: Call) -> Answer:
        found = await self.changeable(call)
        if await stop_operation(call.session, call.tenant, found.id):
            call.note("bulk.stop", str(found.id), of=found.action.value)
        seen = await self.named(call)
        if seen.state is not BulkState.STOPPED:
            raise ApiProblem(Code.CONFLICT, f"the bulk operation has ended: it is {seen.state}")
        return Answer(200, bulk_view(seen))

    async def go_on(self, call: Call) -> Answer:
        found = await self.changeable(call)
        if not await continue_operation(call.session, call.tenant, found.id):
            detail = f"the bulk operation is {found.state}, not {BulkState.PAUSED_AFTER_CANARY}"
            raise ApiProblem(Code.CONFLICT, detail)
        call.note("bulk.continue", str(found.id), of=found.action.value)
        call.after.append(lambda: self.events.publish(BulkOperationDue()))
        return Answer(200, bulk_view(await self.named(call)))


def permit_action(call: Call, action: BulkAction) -> None:
    """Replays and purges are an operator's, as one by one."""
    if action.is_of_letters and call.credential.access not in OPERATORS:
        needed = " or ".join(sorted(OPERATORS))
        raise ApiProblem(Code.FORBIDDEN, f"a bulk {action} needs the role {needed}")


def check(asked: StartBulk) -> None:
    taken = OF_TASKS
    if asked.action.is_of_letters:
        taken = OF_PURGE if asked.action is BulkAction.PURGE else OF_REPLAY
    if asked.action.is_of_workflows:
        taken = OF_WORKFLOWS
    found = [
        Problem(f"/filter/{name}", f"does not go with {asked.action}")
        for name, value in msgspec.structs.asdict(asked.filter).items()
        if value is not None and name not in taken
    ]
    state = asked.filter.state
    if asked.action.is_of_letters and state not in (None, State.FAILED):
        found.append(Problem("/filter/state", f"{asked.action} takes FAILED tasks only"))
    if asked.action.is_of_workflows:
        states = CHANGED_STATES.get(asked.action, (State.RUNNING,))
        if state is not None and state not in states:
            reason = f"{asked.action} takes {' and '.join(states)} workflows only"
            found.append(Problem("/filter/state", reason))
    elif not asked.action.is_of_letters and state in TERMINAL:
        found.append(Problem("/filter/state", f"{state} tasks have ended and never change"))
    if (asked.action is BulkAction.RESCHEDULE) != (asked.delay_s is not None):
        reason = "is required" if asked.delay_s is None else "goes with reschedule only"
        found.append(Problem("/delay_s", reason))
    if found:
        raise invalid(found)


def facts_of(asked: StartBulk) -> dict[str, object]:
    """For the audit, which is for ever: of a tag its name, because the value may be personal."""
    facts = msgspec.to_builtins(asked)
    facts["filter"] = {name: each for name, each in facts["filter"].items() if each is not None}
    if asked.filter.tag is not None:
        facts["filter"]["tag"] = asked.filter.tag.partition(":")[0]
    facts["of"] = facts.pop("action")
    return {name: each for name, each in facts.items() if each is not None and name != "dry_run"}


def bulk_view(operation: BulkRecord) -> BulkView:
    return BulkView(
        id=operation.id,
        action=operation.action,
        state=operation.state,
        filter=msgspec.to_builtins(operation.filter),
        delay_s=operation.delay_s,
        rate_per_s=operation.rate_per_s,
        canary=operation.canary,
        matched=operation.matched,
        has_more=operation.has_more,
        done=operation.done,
        refused=operation.refused,
        sample=operation.sample,
        actor=operation.actor,
        created_at=operation.created_at,
        updated_at=operation.updated_at,
        ended_at=operation.ended_at,
        error=operation.error,
    )
