"""Ending a lease: completed, tried again, or over for good; each attempt recorded exactly once.

| event | what happens |
|---|---|
| late, after the lease was taken over | fence or holder differ on the row: nothing, STALE |
| the same settlement again | the attempt is on record in the same words: REPLAY |
| a cancel was requested meanwhile | completed stays COMPLETED, every other end is CANCELLED |
| cancel commits between two statements | the retry finds the request on the row and ends instead |
| killed before the commit | nothing; the lease runs out |
| killed after the commit | the attempt is on record; the caller's repetition is a REPLAY |
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from duly.domain.fingerprint import fingerprint
from duly.domain.ids import in_address_order, shard_of
from duly.domain.retry import Failure, GiveUp, decide
from duly.domain.states import UNCHARGED, FailureReason, Outcome, State
from duly.domain.task import WEBHOOK_POOL
from duly.environment import CrashPoint, Environment
from duly.store.columns import runs
from duly.store.database import Database
from duly.store.load import Place
from duly.store.policies import decode_policy
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# A retry that a cancel overtook is tried once more as an end; nothing can overtake it again.
ROUNDS_MAX = 2


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What the holder of a lease says about how it ended."""

    id: UUID
    fence: int
    holder: UUID
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    error_kind: str = ""
    retry_in_s: float | None = None
    at_least_s: float | None = None


class SettleStatus(StrEnum):
    SETTLED = "settled"
    REPLAY = "replay"
    STALE = "stale"


class SettleAnswer(msgspec.Struct, frozen=True, gc=False):
    status: SettleStatus
    state: State | None = None
    due_at: datetime | None = None
    place: Place | None = None
    # Of what was settled just now: whose caps may have room, and whether a key of theirs has.
    tenant: int | None = None
    has_key: bool = False
    # Why it is a dead letter, if it just became one.
    reason: str | None = None
    # Of a failed or lost attempt: what breakers count.
    type: str = ""
    pool: int = WEBHOOK_POOL


STALE = SettleAnswer(SettleStatus.STALE)
REPLAY = SettleAnswer(SettleStatus.REPLAY)


@dataclass(frozen=True, slots=True)
class End:
    """A decided settlement: `state` is terminal, or None when the task goes on in `delay_s`."""

    settlement: Settlement
    state: State | None
    delay_s: float = 0.0
    losses: int = 0
    reason: FailureReason | None = None
    fingerprint: str = ""
    type: str = ""
    pool: int = WEBHOOK_POOL


class Settler:
    """Settles batches. Settlements are unique by (id, fence) within one call."""

    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.environment = environment

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        await self.environment.crash_point(CrashPoint.SETTLE_BEFORE)
        order = in_address_order([settlement.id for settlement in settlements])
        ordered = [(ordinal, settlements[ordinal]) for ordinal in order]
        completed = [item for item in ordered if item[1].outcome is Outcome.COMPLETED]
        answers: dict[int, SettleAnswer] = {}
        if completed:
            answers |= await self.complete(completed)
        if len(completed) < len(ordered):
            others = [item for item in ordered if item[1].outcome is not Outcome.COMPLETED]
            ends = await self.decide_ends(others)
            answers |= await self.apply_ends(ends, expired=False)
        if len(answers) < len(ordered):
            missing = [item for item in ordered if item[0] not in answers]
            answers |= await self.classify(missing)
        await self.environment.crash_point(CrashPoint.SETTLE_AFTER_COMMIT)
        return [answers[ordinal] for ordinal in range(len(settlements))]

    async def complete(self, items: list[tuple[int, Settlement]]) -> dict[int, SettleAnswer]:
        done = [settlement for _, settlement in items]
        shards, ids, fences, holders = key_columns(done)
        results = [item.result for item in done]
        groups = await self.database.fetch(
            SQL.settle_completed, ids, *runs(shards, fences, holders, results)
        )
        if len(groups) == 1 and groups[0]["ended"] == len(items):
            # All of one tenant, and all of them ended: the usual case, and one answer.
            return dict.fromkeys([ordinal for ordinal, _ in items], completed_answer(groups[0]))
        ended: dict[tuple[UUID, int], SettleAnswer] = {}
        for group in groups:
            answer = completed_answer(group)
            ended |= dict.fromkeys(zip(group["ids"], group["fences"], strict=True), answer)
        return {
            ordinal: ended[key]
            for ordinal, item in items
            if (key := (item.id, item.fence)) in ended
        }

    async def decide_ends(self, items: list[tuple[int, Settlement]]) -> dict[int, End]:
        """Branch here, so that the statements below only apply what was decided."""
        failed = [item for _, item in items if item.outcome in (Outcome.FAILED, Outcome.REJECTED)]
        facts = await self.read_policies(failed) if failed else {}
        return {ordinal: self.decide_end(item, facts.get(item.id)) for ordinal, item in items}

    async def read_policies(self, failed: list[Settlement]) -> dict[UUID, Any]:
        ids = [item.id for item in failed]
        rows = await self.database.fetch(SQL.read_policies, [shard_of(i) for i in ids], ids)
        return {row["id"]: row for row in rows}

    def decide_end(self, item: Settlement, facts: Any) -> End:
        if item.outcome is Outcome.CANCELLED:
            return End(item, State.CANCELLED)
        if item.outcome in UNCHARGED:
            return End(item, None, delay_s=item.retry_in_s or 0.0)
        if facts is None:
            # No timer any more: whatever we decide, the guards will refuse it.
            return End(item, State.FAILED, reason=FailureReason.EXHAUSTED)
        failure = Failure(item.outcome, item.error_kind, item.retry_in_s, item.at_least_s)
        return decided(item, facts, losses=0, failure=failure, environment=self.environment)

    async def apply_ends(self, ends: dict[int, End], *, expired: bool) -> dict[int, SettleAnswer]:
        """Run both kinds of end; a retry that a requested cancel forbids becomes a final end."""
        answers: dict[int, SettleAnswer] = {}
        remaining = dict(ends)
        for _ in range(ROUNDS_MAX):
            answers |= await self.end_for_good(remaining, expired=expired)
            answers |= await self.go_on(remaining, expired=expired)
            remaining = {o: end for o, end in remaining.items() if o not in answers}
            again = {o: end for o, end in remaining.items() if end.state is None}
            if not again or expired:
                return answers
            forbidden = await self.find_forbidden(again)
            remaining = {o: replace(again[o], state=State.CANCELLED) for o in forbidden}
            if not remaining:
                return answers
        return answers

    async def end_for_good(self, ends: dict[int, End], *, expired: bool) -> dict[int, SettleAnswer]:
        final = {o: end for o, end in ends.items() if end.state is not None}
        if not final:
            return {}
        rows = await self.database.fetch(
            SQL.settle_final,
            *key_columns([end.settlement for end in final.values()]),
            [end.settlement.outcome.value for end in final.values()],
            [end.state.value for end in final.values() if end.state],
            [end.reason.value if end.reason else None for end in final.values()],
            [end.settlement.error for end in final.values()],
            [end.fingerprint for end in final.values()],
            expired,
        )
        ended = {(row["id"], row["fence"]): row for row in rows}
        return {
            ordinal: final_answer(ended[key], end)
            for ordinal, end in final.items()
            if (key := (end.settlement.id, end.settlement.fence)) in ended
        }

    async def go_on(self, ends: dict[int, End], *, expired: bool) -> dict[int, SettleAnswer]:
        again = {o: end for o, end in ends.items() if end.state is None}
        if not again:
            return {}
        rows = await self.database.fetch(
            SQL.settle_again,
            *key_columns([end.settlement for end in again.values()]),
            [end.settlement.outcome.value for end in again.values()],
            [end.delay_s for end in again.values()],
            [int(end.settlement.outcome not in UNCHARGED) for end in again.values()],
            [end.losses for end in again.values()],
            [end.settlement.error for end in again.values()],
            expired,
        )
        moved = {(row["id"], row["fence"]): row for row in rows}
        return {
            ordinal: again_answer(moved[key], end)
            for ordinal, end in again.items()
            if (key := (end.settlement.id, end.settlement.fence)) in moved
        }

    async def find_forbidden(self, ends: dict[int, End]) -> list[int]:
        """Which retries changed nothing because a cancel was requested on the row."""
        rows = await self.fetch_classes([(o, end.settlement) for o, end in ends.items()])
        return [row["ordinal"] for row in rows if row["is_held"] and row["cancel_requested"]]

    async def classify(self, items: list[tuple[int, Settlement]]) -> dict[int, SettleAnswer]:
        rows = await self.fetch_classes(items)
        return {row["ordinal"]: REPLAY if row["is_replay"] else STALE for row in rows}

    async def fetch_classes(self, items: list[tuple[int, Settlement]]) -> list[Any]:
        asked = [item for _, item in items]
        return await self.database.fetch(
            SQL.classify_settlements,
            [ordinal for ordinal, _ in items],
            *key_columns(asked),
            [item.outcome.value for item in asked],
            [item.result for item in asked],
            [item.error for item in asked],
        )


def completed_answer(group: Any) -> SettleAnswer:
    tenant, has_key = group["tenant"], group["has_key"]
    return SettleAnswer(SettleStatus.SETTLED, State.COMPLETED, tenant=tenant, has_key=has_key)


def final_answer(row: Any, end: End) -> SettleAnswer:
    return SettleAnswer(
        SettleStatus.SETTLED,
        State(row["state"]),
        tenant=row["tenant"],
        has_key=row["has_key"],
        reason=row["reason"],
        type=end.type,
        pool=end.pool,
    )


def again_answer(row: Any, end: End) -> SettleAnswer:
    return SettleAnswer(
        SettleStatus.SETTLED,
        due_at=row["due_at"],
        place=Place(row["tenant"], row["shard"], row["lane"]),
        tenant=row["tenant"],
        has_key=row["has_key"],
        type=end.type,
        pool=end.pool,
    )


def decided(
    item: Settlement, facts: Any, losses: int, failure: Failure, environment: Environment
) -> End:
    """`facts` has the policy, the type, the pool and the charged attempts before this one."""
    policy = decode_policy(facts["policy"])
    verdict = decide(policy.retry, facts["attempt"] + 1, losses, failure, environment.random)
    if isinstance(verdict, GiveUp):
        mark = fingerprint(facts["type"], verdict.reason, item.error)
        end = End(item, State.FAILED, reason=verdict.reason, losses=losses, fingerprint=mark)
    else:
        end = End(item, None, delay_s=verdict.in_s, losses=losses)
    return replace(end, type=facts["type"], pool=facts["pool"])


def key_columns(
    items: Sequence[Settlement],
) -> tuple[list[int], list[UUID], list[int], list[UUID]]:
    ids = [item.id for item in items]
    return (
        [shard_of(task_id) for task_id in ids],
        ids,
        [item.fence for item in items],
        [item.holder for item in items],
    )
