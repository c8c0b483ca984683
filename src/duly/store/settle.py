"""Settling a lease: what its holder says becomes a finish or a retry, each recorded exactly once.

| event | what happens |
|---|---|
| late, after the lease was taken over | fence or holder differ on the row: nothing, STALE |
| the same settlement again | the attempt is on record in the same words: REPLAY |
| cancel commits between two statements | the retry finds the request on the row and ends instead |
| killed after the commit | the attempt is on record; the caller's repetition is a REPLAY |
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from duly.domain.fingerprint import fingerprint
from duly.domain.ids import in_address_order, includes_marked, is_node, shard_of
from duly.domain.retry import Failure, GiveUp, decide
from duly.domain.states import UNCHARGED, FailureReason, Outcome, State
from duly.environment import CrashPoint, Environment
from duly.events import SettlementsReplayed, TaskEvents, TasksFinished, TasksRescheduled
from duly.metric_families import Buckets
from duly.store.batcher import Batcher
from duly.store.database import Database
from duly.store.finish import (
    REPLAY,
    STALE,
    AttemptEnd,
    SettleAnswer,
    Settlement,
    finish_completed,
    finish_completed_nodes,
    finish_terminal,
    key_columns,
)
from duly.store.policies import decode_policy
from duly.store.retry import retry_tasks
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# A retry that a cancel overtook is tried once more as an end; nothing can overtake it again.
ROUNDS_MAX = 2
BATCH_SIZE_MAX = 500
WAITING_MAX = 50_000
BATCHES_MAX = 2


class TaskPolicy(NamedTuple):
    """What decides between another attempt and the end."""

    # Charged attempts before this one.
    attempt: int
    policy: str | None
    type: str
    pool: int


class Settler:
    """Settles batches, and publishes each commit. Settlements are unique by (id, fence) within one
    call."""

    def __init__(
        self, database: Database, environment: Environment, events: TaskEvents | None = None
    ) -> None:
        self.database = database
        self.environment = environment
        self.events = events or TaskEvents()

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        await self.environment.crash_point(CrashPoint.SETTLE_BEFORE)
        order = in_address_order([settlement.id for settlement in settlements])
        ordered = [(ordinal, settlements[ordinal]) for ordinal in order]
        completed = [item for item in ordered if item[1].outcome is Outcome.COMPLETED]
        answers: dict[int, SettleAnswer] = {}
        if completed:
            answers |= await self.complete(completed)
            self.publish_finished(settlements, answers, is_reaped=False)
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
        """Nodes of workflows never share a commit with plain tasks."""
        if not includes_marked([item.id for _, item in items]):
            return await finish_completed(self.database, items)
        nodes = [item for item in items if is_node(item[1].id)]
        answers = await finish_completed_nodes(self.database, nodes) if nodes else {}
        if len(nodes) < len(items):
            plain = [item for item in items if not is_node(item[1].id)]
            calls_back = includes_marked([item.id for _, item in plain])
            answers |= await finish_completed(self.database, plain, calls_back=calls_back)
        return answers

    async def decide_ends(self, items: list[tuple[int, Settlement]]) -> dict[int, AttemptEnd]:
        """Branch here, so that the statements below only apply what was decided."""
        failed = [item for _, item in items if item.outcome in (Outcome.FAILED, Outcome.REJECTED)]
        facts = await self.read_policies(failed) if failed else {}
        return {ordinal: self.decide_end(item, facts.get(item.id)) for ordinal, item in items}

    async def read_policies(self, failed: list[Settlement]) -> dict[UUID, TaskPolicy]:
        ids = [item.id for item in failed]
        rows = await self.database.fetch(SQL.read_policies, [shard_of(i) for i in ids], ids)
        return {row["id"]: task_policy(row) for row in rows}

    def decide_end(self, item: Settlement, facts: TaskPolicy | None) -> AttemptEnd:
        if item.outcome is Outcome.CANCELLED:
            return AttemptEnd(item, State.CANCELLED)
        if item.outcome in UNCHARGED:
            return AttemptEnd(item, None, delay_s=item.retry_in_s or 0.0)
        if facts is None:
            # No timer any more: whatever we decide, the guards will refuse it.
            return AttemptEnd(item, State.FAILED, reason=FailureReason.EXHAUSTED)
        failure = Failure(item.outcome, item.error_kind, item.retry_in_s, item.at_least_s)
        return decided(item, facts, losses=0, failure=failure, environment=self.environment)

    async def apply_ends(
        self, ends: dict[int, AttemptEnd], *, expired: bool
    ) -> dict[int, SettleAnswer]:
        """Run both kinds of end; a retry that a requested cancel forbids becomes a final end."""
        answers: dict[int, SettleAnswer] = {}
        remaining = dict(ends)
        settlements = {ordinal: end.settlement for ordinal, end in ends.items()}
        for _ in range(ROUNDS_MAX):
            finished = await finish_terminal(self.database, remaining, expired=expired)
            self.publish_finished(settlements, finished, is_reaped=expired)
            retried = await retry_tasks(self.database, remaining, expired=expired)
            self.publish_rescheduled(settlements, retried, is_reaped=expired)
            answers |= finished | retried
            remaining = {o: end for o, end in remaining.items() if o not in answers}
            again = {o: end for o, end in remaining.items() if end.state is None}
            if not again or expired:
                return answers
            forbidden = await self.find_forbidden(again)
            remaining = {o: replace(again[o], state=State.CANCELLED) for o in forbidden}
            if not remaining:
                return answers
        return answers

    async def find_forbidden(self, ends: dict[int, AttemptEnd]) -> list[int]:
        """Which retries changed nothing because a cancel was requested on the row."""
        rows = await self.fetch_classes([(o, end.settlement) for o, end in ends.items()])
        return [row["ordinal"] for row in rows if row["is_held"] and row["cancel_requested"]]

    async def classify(self, items: list[tuple[int, Settlement]]) -> dict[int, SettleAnswer]:
        rows = await self.fetch_classes(items)
        replayed = {row["ordinal"] for row in rows if row["is_replay"]}
        if replayed:
            ended = [settlement for ordinal, settlement in items if ordinal in replayed]
            self.events.publish(SettlementsReplayed(ended))
        return {row["ordinal"]: REPLAY if row["is_replay"] else STALE for row in rows}

    def publish_finished(
        self,
        settlements: Sequence[Settlement] | Mapping[int, Settlement],
        answers: Mapping[int, SettleAnswer],
        *,
        is_reaped: bool,
    ) -> None:
        if answers:
            ended = [settlements[ordinal] for ordinal in answers]
            self.events.publish(TasksFinished(ended, list(answers.values()), is_reaped))

    def publish_rescheduled(
        self,
        settlements: Mapping[int, Settlement],
        answers: Mapping[int, SettleAnswer],
        *,
        is_reaped: bool,
    ) -> None:
        if answers:
            ended = [settlements[ordinal] for ordinal in answers]
            hints = [
                (answer.timer_queue, answer.due_at)
                for answer in answers.values()
                if answer.timer_queue is not None and answer.due_at is not None
            ]
            self.events.publish(TasksRescheduled(hints, ended, list(answers.values()), is_reaped))

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


class SettleQueue:
    """Settlements of webhooks and workers on their way to the database, in shared batches."""

    def __init__(
        self,
        database: Database,
        environment: Environment,
        events: TaskEvents | None = None,
        sizes: Buckets | None = None,
    ) -> None:
        self.settler = Settler(database, environment, events)
        self.queue: Batcher[Settlement, SettleAnswer] = Batcher(
            "settle",
            self.flush,
            batch_size_max=BATCH_SIZE_MAX,
            waiting_max=WAITING_MAX,
            batches_max=BATCHES_MAX,
            key=settlement_key,
            sizes=sizes,
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """One answer for each, in order, after the commit. Unique by (id, fence)."""
        return await self.queue.submit_all(settlements)

    async def flush(self, settlements: list[Settlement]) -> list[SettleAnswer]:
        return await self.settler.settle(settlements)

    async def close(self) -> None:
        await self.queue.close()


def task_policy(row: Any) -> TaskPolicy:
    return TaskPolicy(row["attempt"], row["policy"], row["type"], row["pool"])


def decided(
    item: Settlement, facts: TaskPolicy, losses: int, failure: Failure, environment: Environment
) -> AttemptEnd:
    """The end of a charged attempt: another one after a delay, or failed for good."""
    policy = decode_policy(facts.policy)
    decision = decide(policy.retry, facts.attempt + 1, losses, failure, environment.random)
    if isinstance(decision, GiveUp):
        mark = fingerprint(facts.type, decision.reason, item.error)
        end = AttemptEnd(
            item, State.FAILED, reason=decision.reason, losses=losses, fingerprint=mark
        )
    else:
        end = AttemptEnd(item, None, delay_s=decision.in_s, losses=losses)
    return replace(end, type=facts.type, pool=facts.pool)


def settlement_key(settlement: Settlement) -> tuple[UUID, int]:
    return settlement.id, settlement.fence
