"""Erasure endpoints: erase personal data of one task, of tasks that match a filter, of a tenant.

Only ended tasks are erased, in bounded batches; the answer has the cursor of the next batch. A
batch and its audit entry are one transaction.
"""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.task_control import TaskFilter
from duly.api.tasks import tag_of
from duly.domain.access import ADMINS
from duly.domain.limits import Problem
from duly.domain.states import TERMINAL, State
from duly.store.dead_letters import read_dead_letter
from duly.store.purge import erase_tasks, find_outliving_letters, is_erased
from duly.store.read import PAGE_MAX, Filter, ListOrder, list_tasks, read_task

TAG = "Erasures"
# Cursor after the last stored task: dead letters that outlived their tasks.
LETTERS = "letters"


class Erase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of `task`, `filter` and `tenant`; the tenant is the one of the call, named in full."""

    task: UUID | None = None
    filter: TaskFilter | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    dry_run: bool = False
    cursor: Cursor | None = None


class ErasureAnswer(msgspec.Struct, frozen=True):
    """`matched`: ended tasks that still have their data. `unfinished`: matching tasks that have not
    ended and keep theirs; cancel them first. `has_more`: ask again with `next_cursor`."""

    dry_run: bool
    matched: int
    erased: int
    unfinished: int
    has_more: bool
    next_cursor: str | None = None


class ErasureBatch(msgspec.Struct, frozen=True):
    ids: list[UUID]
    unfinished: int = 0
    following: str | None = None


@dataclass(frozen=True)
class ErasureRoutes:
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/erasures",
                summary="Erase payload, result, error, tags and keys of ended tasks, for good",
                handler=self.erase,
                kind=Kind.CONTROL,
                access=ADMINS,
                body=Erase,
                answers={200: ErasureAnswer},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.NOT_FOUND, Code.CONFLICT),
                tag=TAG,
            )
        ]

    async def erase(self, call: Call, asked: Erase) -> Answer:
        check(call, asked)
        if asked.task is not None:
            batch = await self.one(call, asked.task)
        else:
            batch = await self.next_batch(call, asked)
        erased: list[UUID] = []
        if batch.ids and not asked.dry_run:
            erased = await erase_tasks(call.session, call.tenant, batch.ids, call.credential.actor)
        if erased:
            subject = str(asked.task or call.tenant_name)
            call.note("task.erase", subject, erased=len(erased), **audited(asked))
        return Answer(
            200,
            ErasureAnswer(
                asked.dry_run,
                len(batch.ids),
                len(erased),
                batch.unfinished,
                batch.following is not None,
                batch.following,
            ),
        )

    async def one(self, call: Call, task_id: UUID) -> ErasureBatch:
        task = await read_task(call.session, call.tenant, task_id)
        if task is None:
            # Its dead letter may have outlived it.
            if await is_erased(call.session, call.tenant, task_id):
                return ErasureBatch([])
            if await read_dead_letter(call.session, call.tenant, task_id) is None:
                raise not_found("task", task_id)
        elif task.state not in TERMINAL:
            detail = f"the task is {task.state} and needs its data; cancel it first"
            raise ApiProblem(Code.CONFLICT, detail)
        elif task.is_purged:
            return ErasureBatch([])
        return ErasureBatch([task_id])

    async def next_batch(self, call: Call, asked: Erase) -> ErasureBatch:
        """Newest created first; a task that is erased keeps its place, so every batch goes on."""
        given = asked.filter or TaskFilter()
        wanted = Filter(
            given.state, given.type, tag_of(given.tag), given.created_after, given.run_before
        )
        ids: list[UUID] = []
        unfinished = 0
        if asked.cursor != LETTERS:
            found = await list_tasks(
                call.session, call.tenant, wanted, asked.cursor, PAGE_MAX, ListOrder.CREATED
            )
            ended = [task for task in found.items if task.state in TERMINAL]
            ids = [task.id for task in ended if not task.is_purged]
            unfinished = len(found.items) - len(ended)
            if found.next_cursor is not None:
                return ErasureBatch(ids, unfinished, found.next_cursor)
        if wanted.state not in (None, State.FAILED):
            return ErasureBatch(ids, unfinished)
        letters = await find_outliving_letters(call.session, call.tenant, wanted, PAGE_MAX)
        # Once erased, those are not found again: the same place, until fewer are left.
        has_more = len(letters) == PAGE_MAX and not asked.dry_run
        return ErasureBatch([*ids, *letters], unfinished, LETTERS if has_more else None)


def check(call: Call, asked: Erase) -> None:
    if sum(each is not None for each in (asked.task, asked.filter, asked.tenant)) != 1:
        raise invalid([Problem("", "give one of task, filter and tenant")])
    if asked.filter == TaskFilter():
        raise invalid([Problem("/filter", "is empty; for everything, name the tenant")])
    if asked.tenant is not None and asked.tenant != call.tenant_name:
        reason = f"is not the tenant of this call, which is {call.tenant_name} (see ?tenant=)"
        raise invalid([Problem("/tenant", reason)])


def audited(asked: Erase) -> dict[str, object]:
    """What was asked for, without what it may say about a person: the audit is for ever."""
    if asked.filter is None:
        return {"whole_tenant": asked.tenant is not None}
    facts = msgspec.to_builtins(asked.filter)
    if asked.filter.tag is not None:
        facts["tag"] = asked.filter.tag.partition(":")[0]
    return {"filter": {name: value for name, value in facts.items() if value is not None}}
