"""Many tasks at once, written by the owner in SQL: as if submitted long ago, in a second or two."""

from datetime import timedelta
from typing import NamedTuple

import asyncpg

from duly.domain.ids import key_shard, tenant_shard
from duly.domain.task import WEBHOOK_POOL, timer_queue

URL = "http://receiver.example/hook"
PRIORITY = 5
LANE = timer_queue(WEBHOOK_POOL, PRIORITY)
# Ids as `domain/ids.py` makes them: the placement time, version 7, the shard, and a number.
INSERT_CROWD = """
WITH made AS (
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
            || lpad(to_hex(28672 + $2 * 4), 4, '0') || '8' || lpad(to_hex($9 + n), 15, '0'))::uuid
               AS id,
           now() - $4::interval + n * interval '1 microsecond' AS due_at
      FROM generate_series(1, $3::integer) AS n
), placed AS (
    INSERT INTO duly.placements (tenant, shard, queue) VALUES ($1, $2, $8) ON CONFLICT DO NOTHING
), stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, type,
                            payload, policy, url)
    SELECT $2, id, $1, 0, 5, 60000, due_at, due_at, $5, 'null', $6, $7 FROM made
)
INSERT INTO duly.timers (shard, id, tenant, queue, pool, priority, timeout_ms, due_at, type,
                         concurrency_key, concurrency_limit, host)
SELECT $2, id, $1, $8, 0, 5, 60000, due_at, $5, duly.concurrency_key_of($6),
       duly.concurrency_limit_of($6), duly.host_of($7)
  FROM made
"""


class Crowd(NamedTuple):
    """So many tasks of one tenant in one shard, all overdue by `late_s` or a little less."""

    size: int
    tenant: int = 1
    key: str | None = None
    key_limit: int = 1
    type: str = "t"
    late_s: float = 60.0

    @property
    def shard(self) -> int:
        if self.key is not None:
            return key_shard(self.tenant, self.key)
        return tenant_shard(self.tenant, spread=1, choice=0)

    @property
    def policy(self) -> str | None:
        if self.key is None:
            return None
        return f'{{"concurrency_key":"{self.key}","concurrency_limit":{self.key_limit}}}'


async def gather_crowd(owner: asyncpg.Connection, crowd: Crowd, first_number: int = 0) -> None:
    """Two crowds of one shard in one millisecond need different numbers."""
    await owner.execute(
        INSERT_CROWD,
        crowd.tenant,
        crowd.shard,
        crowd.size,
        timedelta(seconds=crowd.late_s),
        crowd.type,
        crowd.policy,
        URL,
        LANE,
        first_number,
    )


async def count_timers(owner: asyncpg.Connection, tenant: int) -> int:
    waiting: int = await owner.fetchval(
        "SELECT count(*) FROM duly.timers WHERE tenant = $1", tenant
    )
    return waiting


def keys_of_one_shard(tenant: int) -> tuple[str, str]:
    """Two concurrency keys whose tasks lie in the same shard."""
    first = "blocked"
    shard = key_shard(tenant, first)
    second = next(f"free-{n}" for n in range(100_000) if key_shard(tenant, f"free-{n}") == shard)
    return first, second
