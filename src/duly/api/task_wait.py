"""Long polls for the end of a task: one query for all of them at each poll.

A task settled by this process wakes its long polls at once; others are found by the next poll.
Without waiting callers no query runs.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from uuid import UUID

from duly.domain.ids import is_node, node_number
from duly.events import TasksFinished
from duly.role import Wakeup
from duly.store.database import Database
from duly.store.read import read_ended
from duly.store.workflows import read_ended_workflows

POLL_EVERY_S = 0.1
IDLE_S = 60.0
WAITING_MAX = 10_000
POLL_MAX = 1000


class TaskWaits:
    """A role; `wait` is what callers use."""

    name = "waiting"

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ended: dict[UUID, tuple[asyncio.Event, int]] = {}
        self.wakeup = Wakeup()
        self.is_closed = False

    @contextlib.contextmanager
    def registered(self, task_id: UUID) -> Iterator[asyncio.Event]:
        """An event that is set soon after the task has ended."""
        event, count = self.ended.get(task_id, (asyncio.Event(), 0))
        self.ended[task_id] = (event, count + 1)
        if self.is_closed:
            event.set()
        self.wakeup.wake()
        try:
            yield event
        finally:
            event, count = self.ended[task_id]
            if count == 1:
                del self.ended[task_id]
            else:
                self.ended[task_id] = (event, count - 1)

    @property
    def is_full(self) -> bool:
        return len(self.ended) >= WAITING_MAX

    def on_finished(self, event: TasksFinished) -> None:
        if self.ended:
            for task in event.ended:
                self.wake(task.id)

    def wake(self, task_id: UUID) -> None:
        entry = self.ended.get(task_id)
        if entry is not None:
            entry[0].set()

    async def tick(self) -> float:
        if not self.ended:
            return IDLE_S
        ids = [task_id for task_id, (event, _) in self.ended.items() if not event.is_set()]
        for start in range(0, len(ids), POLL_MAX):
            await self.poll(ids[start : start + POLL_MAX])
        return POLL_EVERY_S

    async def poll(self, ids: list[UUID]) -> None:
        """Workflows end apart from tasks: their ids are those of nodes with the number 0."""
        workflows = [each for each in ids if is_node(each) and not node_number(each)]
        tasks = [each for each in ids if each not in workflows] if workflows else ids
        ended = await read_ended(self.database, tasks) if tasks else []
        if workflows:
            ended += await read_ended_workflows(self.database, workflows)
        for each in ended:
            self.wake(each)

    async def close(self) -> None:
        """Answer all waiting callers now: no further poll will run."""
        self.is_closed = True
        for event, _ in self.ended.values():
            event.set()
