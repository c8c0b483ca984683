"""Settlements on their way to the database: those of webhooks and of workers share batches."""

from collections.abc import Sequence
from uuid import UUID

from duly.environment import Environment
from duly.events import TaskEvents
from duly.metric_families import Buckets
from duly.store.batcher import Batcher
from duly.store.database import Database
from duly.store.finish import SettleAnswer, Settlement
from duly.store.settle import Settler

BATCH_SIZE_MAX = 500
WAITING_MAX = 50_000
FLIGHTS_MAX = 2


class SettleQueue:
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
            flights_max=FLIGHTS_MAX,
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


def settlement_key(settlement: Settlement) -> tuple[UUID, int]:
    return settlement.id, settlement.fence
