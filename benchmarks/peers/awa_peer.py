"""awa: PostgreSQL, a Rust core that claims and completes in batches, handlers in Python."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import awa

from benchmarks.peers.contract import FUTURE_POLL_S, Payload, note_start, read_order, run_async

ORDER = read_order()
# Its URL parser wants a host before it looks at the socket folder in the query.
URL = ORDER.url.replace("@/", "@localhost/")
QUEUE = "bench"
# The reference for 10,000 no-ops a second in its ADR 026: from 512 workers on it completes in four
# batches at once. Its API suggests trying 2 or 4 claimers; on two cores they only get in the way.
WORKERS = 1024
CLAIMERS = 1
CLAIM_BATCH = 512
# Its guide: at least four connections for a queue and twenty more.
POOL = 24


@dataclass
class Noop:
    at: float
    data: str


@dataclass
class Timed:
    at: float
    data: str


KINDS: dict[str, type] = {"noop": Noop, "timed": Timed}


class AwaPeer:
    async def setup(self) -> None:
        async with awa.AsyncClient(URL) as client:
            await client.migrate()
            # Its newer storage, active before the first worker comes: COPY needs it.
            await client.install_queue_storage()

    async def connect(self, callers: int) -> None:
        self.client = awa.AsyncClient(URL, max_connections=min(callers, 20))

    async def submit_one(self, kind: str, payload: Payload) -> None:
        """Inserts into one queue wait for each other's commit, under an advisory lock: neither its
        `enqueue_shards` nor COPY of one task is faster here."""
        await self.client.insert(KINDS[kind](**payload), queue=QUEUE)

    async def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        """Its COPY path, which its guide recommends for producers of many."""
        due = datetime.fromtimestamp(run_at, UTC) if run_at else None
        tasks = [KINDS[kind](**payload) for payload in payloads]
        await self.client.enqueue_many_copy(tasks, queue=QUEUE, run_at=due)

    async def consume(self, _processes: int) -> None:
        client = awa.AsyncClient(URL, max_connections=POOL)

        async def noop(_job: Any) -> None:
            """Nothing: what is left is the queue's own cost."""

        async def timed(job: Any) -> None:
            note_start(job.args.at)

        client.task(Noop, queue=QUEUE)(noop)
        client.task(Timed, queue=QUEUE)(timed)
        queue = {"name": QUEUE, "max_workers": WORKERS, "claimers": CLAIMERS}
        await client.start(
            [queue | {"claim_batch_size": CLAIM_BATCH}],
            poll_interval_ms=int(FUTURE_POLL_S * 1000),
            promote_interval_ms=int(FUTURE_POLL_S * 1000),
        )
        await asyncio.Event().wait()


if __name__ == "__main__":
    run_async(AwaPeer, ORDER)
