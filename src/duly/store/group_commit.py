"""Group commit: submits and reads of many callers in one statement.

Tasks without a key share one stream of batches. Tasks with a key go through a stream of their own
tenant, because a key held by an open transaction makes its batch wait.
"""

from uuid import UUID

from duly.domain.task import Submission
from duly.metric_families import Buckets
from duly.store.batcher import Batcher
from duly.store.call_idempotency import CallKey
from duly.store.database import Database
from duly.store.read import Task, read_asked
from duly.store.submit import SubmitAnswer, Submitter

BATCH_SIZE_MAX = 500
READ_BATCH_MAX = 200
WAITING_MAX = 20_000
# Two statements in flight keep the server busy while the answers of one are handed out.
FLIGHTS_MAX = 2
COMPANY_MIN = 100


class GroupCommit:
    def __init__(self, submitter: Submitter, sizes: Buckets | None = None) -> None:
        self.submitter = submitter
        self.sizes = sizes
        self.plain = self.stream("submit", flights_max=FLIGHTS_MAX)
        self.keyed: dict[int, Batcher[Submission, SubmitAnswer]] = {}

    async def submit(self, task: Submission) -> SubmitAnswer:
        """Submit one task; answered after the commit, in a batch with concurrent submits."""
        if task.idempotency_key is None:
            return await self.plain.submit(task)
        stream = self.keyed.get(task.tenant)
        if stream is None:
            stream = self.keyed[task.tenant] = self.stream(f"submit of tenant {task.tenant}")
        try:
            return await stream.submit(task)
        finally:
            if stream.is_idle:
                self.keyed.pop(task.tenant, None)

    async def submit_all(
        self, tasks: list[Submission], call: CallKey | None = None
    ) -> list[SubmitAnswer]:
        """A batch of one caller, in a commit of its own: all of it or nothing."""
        return await self.submitter.submit_all(tasks, call)

    def stream(self, name: str, flights_max: int = 1) -> Batcher[Submission, SubmitAnswer]:
        return Batcher(
            name,
            self.submitter.submit,
            batch_size_max=BATCH_SIZE_MAX,
            waiting_max=WAITING_MAX,
            flights_max=flights_max,
            company_min=COMPANY_MIN,
            key=key_of,
            sizes=self.sizes,
        )

    async def close(self) -> None:
        for stream in (self.plain, *list(self.keyed.values())):
            await stream.close()


class ReadBatcher:
    def __init__(self, database: Database, sizes: Buckets | None = None) -> None:
        self.queue: Batcher[tuple[int, UUID], Task | None] = Batcher(
            "read",
            lambda asked: read_asked(database, asked),
            batch_size_max=READ_BATCH_MAX,
            waiting_max=WAITING_MAX,
            flights_max=FLIGHTS_MAX,
            company_min=COMPANY_MIN,
            sizes=sizes,
        )

    async def read(self, tenant: int, task_id: UUID) -> Task | None:
        """None for another tenant's task, as for one that never was."""
        return await self.queue.submit((tenant, task_id))

    async def close(self) -> None:
        await self.queue.close()


def key_of(task: Submission) -> object:
    """Two requests with one key never share a batch; without a key every request is its own."""
    return task.idempotency_key if task.idempotency_key is not None else id(task)
