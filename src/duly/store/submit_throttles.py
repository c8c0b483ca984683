"""Throttles of submits: when the next task of a key may start, for the whole installation.

| event | what happens |
|---|---|
| two submits at once | one row is changed after the other: each gets a start of its own |
| killed after the start was taken | a gap in the sequence; the limit holds |
| a throttle gets another limit | the next start keeps its place, the distance after it is new |
| the row was deleted after its time | the next task starts at once, as it would have with it |
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from duly.domain.ids import key_shard
from duly.domain.limits import THROTTLE_AHEAD_S_MAX
from duly.store.database import Database
from duly.store.statements import statements_beside
from duly.store.unnest import columns

SQL = statements_beside(__file__)


class ThrottleKey(NamedTuple):
    """`step_s`: how far apart two starts are."""

    tenant: int
    key: str
    step_s: float


async def take_starts(database: Database, asked: Sequence[ThrottleKey]) -> list[datetime] | None:
    """An instant for each, in order; None, and maybe gaps, if one would lie too far ahead."""
    counts = Counter(asked)
    # In one order for all callers, so that two of them never lock crosswise.
    rows = [
        (key_shard(each.tenant, each.key), *each, count) for each, count in sorted(counts.items())
    ]
    found = await database.fetch(SQL.take_starts, *columns(rows, 5), THROTTLE_AHEAD_S_MAX)
    if len(found) < len(counts):
        return None
    ends = {row["key"]: row["next_at"] for row in found}
    starts = []
    for each in asked:
        starts.append(ends[each.key] - timedelta(seconds=each.step_s * counts[each]))
        counts[each] -= 1
    return starts


async def delete_passed_throttles(database: Database, limit: int) -> int:
    return len(await database.fetch(SQL.delete_passed_throttles, limit))
