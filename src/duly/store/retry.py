"""The retry move: an attempt has ended and its task goes on, later and with a higher fence.

| event | what happens |
|---|---|
| late, after the lease was taken over | fence or holder differ on the row: nothing |
| a cancel was requested meanwhile | nothing; the settler finishes the task instead |
"""

from typing import Any

from duly.domain.ids import is_node
from duly.domain.states import UNCHARGED
from duly.store.database import Database
from duly.store.finish import AttemptEnd, SettleAnswer, SettleStatus, key_columns
from duly.store.load import TimerQueue
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def retry_tasks(
    database: Database, ends: dict[int, AttemptEnd], *, expired: bool
) -> dict[int, SettleAnswer]:
    """Those of the numbered ends without a state whose task goes on."""
    again = {ordinal: end for ordinal, end in ends.items() if end.state is None}
    nodes = {ordinal: end for ordinal, end in again.items() if is_node(end.settlement.id)}
    plain = {ordinal: end for ordinal, end in again.items() if ordinal not in nodes}
    answers: dict[int, SettleAnswer] = {}
    if plain:
        answers |= await retry_some(database, SQL.retry_tasks, plain, expired)
    if nodes:
        answers |= await retry_some(database, SQL.retry_nodes, nodes, expired)
    return answers


async def retry_some(
    database: Database, statement: str, again: dict[int, AttemptEnd], expired: bool
) -> dict[int, SettleAnswer]:
    rows = await database.fetch(
        statement,
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
        ordinal: retry_answer(moved[key], end)
        for ordinal, end in again.items()
        if (key := (end.settlement.id, end.settlement.fence)) in moved
    }


def retry_answer(row: Any, end: AttemptEnd) -> SettleAnswer:
    return SettleAnswer(
        SettleStatus.SETTLED,
        due_at=row["due_at"],
        timer_queue=TimerQueue(row["tenant"], row["shard"], row["queue"]),
        tenant=row["tenant"],
        has_key=row["has_key"],
        type=end.type,
        pool=end.pool,
    )
