"""pgqueuer: PostgreSQL, asyncpg, claims in batches, finished tasks moved to a log in batches."""

from datetime import timedelta
from time import time

import asyncpg
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries

from benchmarks.peers.contract import Payload, note_start, read_order, run_async

ORDER = read_order()
# Its tuning guide: larger batches than the default of 10 where tasks are short.
BATCH = 500


class PgQueuerPeer:
    async def setup(self) -> None:
        """Durable tables (its default), and the vacuum settings that its checklist asks for."""
        connection = await asyncpg.connect(ORDER.url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    async def connect(self, callers: int) -> None:
        """A pool for producers, as its checklist says; twenty connections, as duly has."""
        size = min(callers, 20)
        pool = await asyncpg.create_pool(ORDER.url, min_size=size, max_size=size)
        self.queries = Queries(AsyncpgPoolDriver(pool))

    async def submit_one(self, kind: str, payload: Payload) -> None:
        await self.queries.enqueue(kind, encode(payload))

    async def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        """One statement over arrays."""
        after = [timedelta(seconds=run_at - time()) if run_at else None] * len(payloads)
        bodies = [encode(payload) for payload in payloads]
        await self.queries.enqueue([kind] * len(bodies), bodies, [0] * len(bodies), after)

    async def consume(self, _processes: int) -> None:
        """One connection of its own for the consumer, as its guide says."""
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(ORDER.url)))

        async def noop(_job: object) -> None:
            """Nothing: what is left is the queue's own cost."""

        async def timed(job: "asyncpg.Record") -> None:
            note_start(float(job.payload.split(b" ", 1)[0]))

        queuer.entrypoint("noop")(noop)
        queuer.entrypoint("timed")(timed)
        await queuer.run(batch_size=BATCH)


def encode(payload: Payload) -> bytes:
    """Bytes are its payload: the instant first, no JSON to decode."""
    return f"{payload['at']:.6f} {payload['data']}".encode()


if __name__ == "__main__":
    run_async(PgQueuerPeer, ORDER)
