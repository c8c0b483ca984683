"""Where single submits from many callers become group commits.

Tasks without a key share one stream of batches. Tasks with a key go through a stream of their own
tenant, because a key held by somebody's open transaction makes its batch wait.
"""

from duly.domain.task import Submission
from duly.store.batching import Batcher
from duly.store.submit import SubmitAnswer, Submitter

BATCH_SIZE_MAX = 500
WAITING_MAX = 20_000
# Two statements in flight keep the server busy while the answers of one are handed out.
FLIGHTS_MAX = 2


class SubmitDesk:
    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter
        self.plain = self.stream("submit", flights_max=FLIGHTS_MAX)
        self.keyed: dict[int, Batcher[Submission, SubmitAnswer]] = {}

    async def submit(self, task: Submission) -> SubmitAnswer:
        """Answered after the commit, together with whoever submitted meanwhile."""
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

    def stream(self, name: str, flights_max: int = 1) -> Batcher[Submission, SubmitAnswer]:
        return Batcher(
            name,
            self.submitter.submit,
            batch_size_max=BATCH_SIZE_MAX,
            waiting_max=WAITING_MAX,
            flights_max=flights_max,
            key=key_of,
        )

    async def close(self) -> None:
        for stream in (self.plain, *list(self.keyed.values())):
            await stream.close()


def key_of(task: Submission) -> object:
    """Two requests with one key never share a batch; without a key every request is its own."""
    return task.idempotency_key if task.idempotency_key is not None else id(task)
