"""procrastinate: PostgreSQL, psycopg, one claim and one update for each task."""

from datetime import UTC, datetime

import procrastinate

from benchmarks.peers.contract import FUTURE_POLL_S, Payload, note_start, read_order, run_async

ORDER = read_order()
# Its guide on concurrency: many asynchronous tasks beside each other in one worker, and a pool
# that leaves connections for their updates. Neither is the limit: a worker fetches one task at a
# time, each in a transaction of its own, so only more workers (processes) are faster.
CONCURRENCY = 30
POOL = 20


def make_app(pool: int) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=ORDER.url, min_size=pool, max_size=pool)
    app = procrastinate.App(connector=connector)
    app.task(name="noop")(noop)
    app.task(name="timed")(timed)
    return app


async def noop(**_payload: object) -> None:
    """Nothing: what is left is the queue's own cost."""


async def timed(at: float, **_payload: object) -> None:
    note_start(at)


class ProcrastinatePeer:
    async def setup(self) -> None:
        async with make_app(1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def connect(self, callers: int) -> None:
        self.app = make_app(min(callers, POOL))
        await self.app.open_async()

    async def submit_one(self, kind: str, payload: Payload) -> None:
        await self.app.tasks[kind].defer_async(**payload)

    async def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        task = self.app.tasks[kind]
        if run_at:
            due = task.configure(schedule_at=datetime.fromtimestamp(run_at, UTC))
            await due.batch_defer_async(*payloads)
        else:
            await task.batch_defer_async(*payloads)

    async def consume(self, _processes: int) -> None:
        """LISTEN wakes it for what is due now; the future is found by polling. Finished tasks stay
        (its default): the record is what duly keeps too."""
        app = make_app(POOL)
        async with app.open_async():
            await app.run_worker_async(
                concurrency=CONCURRENCY, fetch_job_polling_interval=FUTURE_POLL_S
            )


if __name__ == "__main__":
    run_async(ProcrastinatePeer, ORDER)
