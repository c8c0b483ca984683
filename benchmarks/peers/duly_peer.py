"""duly in the same contract, for what crosses processes: filling a backlog and draining it.

Runs in duly's own environment. One consumer is alone, as `duly up` is; more share the work as
`duly serve` does, through PostgreSQL.
"""

import asyncio
import signal
from datetime import UTC, datetime

from benchmarks.peers.contract import Payload, note_start, read_order, run_async
from duly.app import tune_garbage_collector
from duly.domain.task import Submission
from duly.environment import Environment
from duly.execution.attempt import DONE, AttemptResult
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.submit import GroupCommit, Submitter
from duly.telemetry import configure_logs
from duly.testing.engine import Engine

ORDER = read_order()
CONNECTIONS = 20
TENANT = 1
# Any: the handler is called instead.
URL = "http://127.0.0.1/noop"


class DulyPeer:
    async def setup(self) -> None:
        """The driver has migrated already, with the owner's login."""

    async def connect(self, callers: int) -> None:
        """Its connections are open before the clock runs, as a peer's are."""
        size = min(callers, CONNECTIONS)
        database = await Database.open(ORDER.url, size)
        await asyncio.gather(*(database.fetch("SELECT 1") for _ in range(size)))
        self.submitter = Submitter(database, Environment())
        self.group_commit = GroupCommit(self.submitter)

    async def submit_one(self, kind: str, payload: Payload) -> None:
        await self.group_commit.submit(task_of(kind, payload, 0.0))

    async def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        await self.submitter.submit([task_of(kind, payload, run_at) for payload in payloads])

    async def consume(self, processes: int) -> None:
        configure_logs("error", "text")
        database = await Database.open(ORDER.url, CONNECTIONS)
        # An orderly end, as of `duly serve`: the next step would wait until its slots' leases end.
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        async with Engine(database, Environment(), handle, is_alone=processes == 1):
            await stopping.wait()


def task_of(kind: str, payload: Payload, run_at: float) -> Submission:
    due = datetime.fromtimestamp(run_at, UTC) if run_at else None
    body = f'{{"at": {payload["at"]}, "data": "{payload["data"]}"}}'
    return Submission(tenant=TENANT, type=f"bench.{kind}", payload=body, url=URL, run_at=due)


def handle(lease: Lease) -> AttemptResult:
    if lease.type == "bench.timed":
        note_start(lease.run_at.timestamp())
    return DONE


if __name__ == "__main__":
    # As every process of duly does once everything is imported.
    tune_garbage_collector()
    run_async(DulyPeer, ORDER)
