"""Ends of leases, batched: one queue for everybody in the process who settles.

Shared by the executor and the worker API. What arrives while a statement is in flight forms the
next batch; a caller is answered after the commit.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from duly.environment import Environment
from duly.store.batching import Batcher
from duly.store.database import Database
from duly.store.settle import SettleAnswer, Settlement, Settler

BATCH_SIZE_MAX = 500
WAITING_MAX = 50_000
FLIGHTS_MAX = 2


class SettleDesk:
    def __init__(self, database: Database, environment: Environment) -> None:
        self.settler = Settler(database, environment)
        self.on_settled: Callable[[Sequence[Settlement], Sequence[SettleAnswer]], None] | None = (
            None
        )
        self.queue: Batcher[Settlement, SettleAnswer] = Batcher(
            "settle",
            self.settle_batch,
            batch_size_max=BATCH_SIZE_MAX,
            waiting_max=WAITING_MAX,
            flights_max=FLIGHTS_MAX,
            key=settlement_key,
        )

    async def settle(self, settlement: Settlement) -> SettleAnswer:
        return await self.queue.submit(settlement)

    async def settle_batch(self, settlements: list[Settlement]) -> list[SettleAnswer]:
        """For callers that hold a whole batch already; unique by (id, fence)."""
        answers = await self.settler.settle(settlements)
        if self.on_settled is not None:
            self.on_settled(settlements, answers)
        return answers

    async def close(self) -> None:
        await self.queue.close()


def settlement_key(settlement: Settlement) -> tuple[UUID, int]:
    return settlement.id, settlement.fence
