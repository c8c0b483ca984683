"""Dead letter endpoints: list, group, inspect; replay or purge one or many.

Bulk operations run in bounded batches; the answer says whether more is left. A batch of replays is
spread over time and returns the due time of its last task, so that the next batch can start there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from uuid import UUID

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.dead_letter_wire import (
    DeadLetterView,
    LetterGroup,
    LettersQuery,
    ManyAnswer,
    PurgeMany,
    ReplayMany,
    ReplayManyAnswer,
    group_view,
    letter_view,
)
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.task_control import remembered_without_payload
from duly.api.task_rules import permit_filter, permit_type
from duly.api.tasks import task_id_of
from duly.api.wire import Page, TaskView, page, task_view
from duly.domain import limits
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.ids import is_node, workflow_of
from duly.domain.limits import Problem
from duly.environment import Environment
from duly.events import TaskEvents, TasksStored
from duly.store.dead_letters import (
    LetterFilter,
    ReplayRate,
    find_dead_letters,
    group_dead_letters,
    list_dead_letters,
    match_dead_letters,
    read_dead_letter,
    read_letter_types,
    replay_dead_letters,
)
from duly.store.load import Hint
from duly.store.purge import purge_letters
from duly.store.read import read_task

TAG = "Dead letters"


@dataclass(frozen=True)
class DeadLetterRoutes:
    environment: Environment
    events: TaskEvents

    def endpoints(self) -> list[Endpoint]:
        return [*self.reading(), *self.changing_one(), *self.changing_many()]

    def reading(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/dead-letters",
                summary="List dead letters, newest first, or group them by cause",
                handler=self.list_page,
                kind=Kind.READ,
                access=PRODUCERS,
                query=LettersQuery,
                answers={200: Page[DeadLetterView | LetterGroup]},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/dead-letters/{id}",
                summary="Inspect a dead letter",
                handler=self.get,
                kind=Kind.READ,
                access=PRODUCERS,
                answers={200: DeadLetterView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
        ]

    def changing_one(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/dead-letters/{id}/replay",
                summary="Replay a dead letter as a new task that is due now",
                handler=self.replay,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                answers={201: TaskView},
                refusals=(Code.NOT_FOUND, Code.CONFLICT),
                tag=TAG,
            ),
            Endpoint(
                method="DELETE",
                path="/v1/dead-letters/{id}",
                summary="Purge a dead letter and erase the data of its task, which stays FAILED",
                handler=self.purge,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                answers={204: None},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
        ]

    def changing_many(self) -> list[Endpoint]:
        refusals = (Code.MALFORMED_BODY, Code.INVALID)
        return [
            Endpoint(
                method="POST",
                path="/v1/dead-letters/replay",
                summary="Replay up to 1,000 dead letters, the oldest first, spread over time",
                handler=self.replay_many,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=ReplayMany,
                answers={200: ReplayManyAnswer},
                refusals=refusals,
                is_bulk=True,
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/dead-letters/purge",
                summary="Purge up to 1,000 dead letters and erase their tasks' data, oldest first",
                handler=self.purge_many,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=PurgeMany,
                answers={200: ManyAnswer},
                refusals=refusals,
                is_bulk=True,
                tag=TAG,
            ),
        ]

    async def list_page(self, call: Call, query: LettersQuery) -> Answer:
        items: Sequence[DeadLetterView | LetterGroup]
        if query.group_by is None:
            wanted = LetterFilter(query.type, query.reason, query.fingerprint, query.replayed)
            letters, following = await list_dead_letters(
                call.session, call.tenant, wanted, query.cursor, query.limit
            )
            items = [letter_view(letter) for letter in letters]
        else:
            wanted = LetterFilter(query.type, query.reason, query.fingerprint, bool(query.replayed))
            groups, following = await group_dead_letters(
                call.session, call.tenant, wanted, query.cursor, query.limit
            )
            items = [group_view(group) for group in groups]
        return Answer(200, page(items, following))

    async def get(self, call: Call) -> Answer:
        letter_id = task_id_of(call, "dead letter")
        letter = await read_dead_letter(call.session, call.tenant, letter_id)
        if letter is None:
            raise not_found("dead letter", letter_id)
        return Answer(200, letter_view(letter))

    async def replay(self, call: Call) -> Answer:
        letter_id = task_id_of(call, "dead letter")
        await permit_letters(call, [letter_id])
        hints: list[Hint] = []
        made = await replay_dead_letters(
            call.session, self.environment, call.tenant, [letter_id], hints
        )
        if not made:
            raise await self.not_replayed(call, letter_id)
        call.after.append(lambda: self.events.publish(TasksStored(hints=hints)))
        call.note("dead_letter.replay", str(letter_id), replayed_as=made[letter_id])
        task = await read_task(call.session, call.tenant, made[letter_id])
        assert task is not None
        return remembered_without_payload(201, task_view(task))

    async def not_replayed(self, call: Call, letter_id: UUID) -> ApiProblem:
        letter = await read_dead_letter(call.session, call.tenant, letter_id)
        if letter is None:
            return not_found("dead letter", letter_id)
        if is_node(letter_id):
            return ApiProblem(
                Code.CONFLICT,
                f"dead letter {letter_id} is a node of workflow {workflow_of(letter_id)}, which "
                "went on without it; start the workflow again",
            )
        return ApiProblem(
            Code.CONFLICT,
            f"dead letter {letter_id} was replayed already, as task {letter.replayed_as}",
        )

    async def purge(self, call: Call) -> Answer:
        letter_id = task_id_of(call, "dead letter")
        await permit_letters(call, [letter_id])
        actor = call.credential.actor
        if not await purge_letters(call.session, call.tenant, [letter_id], actor):
            raise not_found("dead letter", letter_id)
        call.note("dead_letter.purge", str(letter_id))
        return Answer(204)

    async def replay_many(self, call: Call, asked: ReplayMany) -> Answer:
        self.check(asked)
        ids, has_more = await matching(call, asked, is_replayed=False)
        hints: list[Hint] = []
        if ids and not asked.dry_run:
            start_at = None if asked.start_at is None else asked.start_at.astimezone(UTC)
            pace = ReplayRate(asked.rate_per_s, start_at)
            await replay_dead_letters(call.session, self.environment, call.tenant, ids, hints, pace)
        if hints:
            call.after.append(lambda: self.events.publish(TasksStored(hints=hints)))
            note_many(call, "dead_letter.replay_many", asked, len(hints))
        return Answer(
            200,
            ReplayManyAnswer(
                dry_run=asked.dry_run,
                matched=len(ids),
                done=len(hints),
                has_more=has_more,
                last_at=max((due_at for _, due_at in hints), default=None),
            ),
        )

    def check(self, asked: ReplayMany) -> None:
        reason = limits.run_at_reason(asked.start_at, self.environment.clock.now())
        if reason is not None:
            raise invalid([Problem("/start_at", reason)])

    async def purge_many(self, call: Call, asked: PurgeMany) -> Answer:
        is_replayed = None if asked.filter is None else asked.filter.replayed
        ids, has_more = await matching(call, asked, is_replayed)
        done = 0
        if ids and not asked.dry_run:
            actor = call.credential.actor
            done = len(await purge_letters(call.session, call.tenant, ids, actor))
        if done:
            note_many(call, "dead_letter.purge_many", asked, done)
        answer = ManyAnswer(dry_run=asked.dry_run, matched=len(ids), done=done, has_more=has_more)
        return Answer(200, answer)


async def matching(
    call: Call, asked: ReplayMany | PurgeMany, is_replayed: bool | None
) -> tuple[list[UUID], bool]:
    """One batch of the requested dead letters, and whether more match."""
    if (asked.filter is None) == (asked.ids is None):
        raise invalid([Problem("", "give filter or ids, and not both")])
    if asked.ids is not None:
        wanted_ids = sorted(set(asked.ids), key=lambda letter_id: letter_id.int)
        if isinstance(asked, ReplayMany):
            wanted_ids = [letter_id for letter_id in wanted_ids if not is_node(letter_id)]
        await permit_letters(call, wanted_ids)
        return await find_dead_letters(call.session, call.tenant, wanted_ids, is_replayed), False
    assert asked.filter is not None
    permit_filter(call.credential, asked.filter.type)
    wanted = LetterFilter(
        asked.filter.type, asked.filter.reason, asked.filter.fingerprint, is_replayed
    )
    most = limits.LETTERS_AT_ONCE_MAX
    with_nodes = not isinstance(asked, ReplayMany)
    ids = await match_dead_letters(
        call.session, call.tenant, wanted, most + 1, with_nodes=with_nodes
    )
    return ids[:most], len(ids) > most


async def permit_letters(call: Call, ids: Sequence[UUID]) -> None:
    """Looked up only for a limited credential; one letter of another type refuses the call."""
    if call.credential.types is not None:
        for task_type in await read_letter_types(call.session, call.tenant, ids):
            permit_type(call.credential, task_type)


def note_many(call: Call, action: str, asked: ReplayMany | PurgeMany, done: int) -> None:
    """By ids, only their number: a thousand of them say no more than the letters themselves do."""
    by = (
        {"ids": len(asked.ids)}
        if asked.ids is not None
        else {"filter": msgspec.to_builtins(asked.filter)}
    )
    call.note(action, call.tenant_name, done=done, **by)
