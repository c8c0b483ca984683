"""Shard spread: busy tenants use more shards, so that more than one owner can dispatch them.

A tenant starts in one shard. When its measured submit rate is more than one owner should carry,
its spread is doubled; the old shards stay among the new ones, so nothing moves. It is never
narrowed: an idle shard costs nothing.
"""

from collections import Counter

from duly.environment import Environment
from duly.events import TasksStored
from duly.scheduler.gatekeeper import Gatekeeper
from duly.store.database import Database
from duly.store.tenants import raise_spread
from duly.telemetry import get_logger

MEASURE_S = 10.0
RATE_PER_SHARD_MAX = 2000.0
SPREAD_MAX = 64

log = get_logger("duly.scheduler.shard_spread")


class ShardSpread:
    """A role: looks at what this process stored since its last tick."""

    name = "spread"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        gatekeeper: Gatekeeper,
    ) -> None:
        self.database = database
        self.environment = environment
        self.gatekeeper = gatekeeper
        self.since = environment.clock.monotonic()
        # Tasks of each tenant since then.
        self.submitted: Counter[int] = Counter()

    def on_stored(self, event: TasksStored) -> None:
        self.submitted.update([row.task.tenant for row in event.rows])

    async def tick(self) -> float:
        now = self.environment.clock.monotonic()
        passed_s, self.since = now - self.since, now
        counts, self.submitted = self.submitted, Counter()
        if passed_s > 0:
            for tenant, count in counts.items():
                await self.widen(tenant, count / passed_s)
        return MEASURE_S

    async def widen(self, number: int, rate: float) -> None:
        """One doubling at a time; what one node dispatches as a whole gains nothing by it."""
        bounds = self.gatekeeper.bounds
        tenant = bounds.tenants.get(number)
        if tenant is None or number in bounds.at_home or tenant.spread >= SPREAD_MAX:
            return
        if rate <= RATE_PER_SHARD_MAX * tenant.spread:
            return
        if await raise_spread(self.database, number, tenant.spread, tenant.spread * 2):
            log.info(
                "shard spread widened", tenant=tenant.name, shards=tenant.spread * 2, rate=int(rate)
            )

    async def close(self) -> None:
        """Nothing is held."""
