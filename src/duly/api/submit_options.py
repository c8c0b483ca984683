"""Submit options that are kept in the store: `unique`, `debounce`, `throttle`.

`unique` and `debounce` are idempotency keys made of the type and the payload, or of a key, with a
time to live of their own. A debounced task is put off by the move that reschedules any task.

| event | what happens |
|---|---|
| two first submits at once | one wins the key; the other puts its task off |
| the task has started or ended | the key is freed, and the submit is a task of its own |
| killed between the two | a repeated submit does the same again |
| a throttle's start is taken, and the submit fails | a gap in the sequence; the limit holds |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from duly.api.problems import ApiProblem, Code, later
from duly.api.wire import Debounce, TaskRequest
from duly.domain.limits import THROTTLE_AHEAD_S_MAX, Problem
from duly.domain.task import Submission
from duly.environment import Environment
from duly.events import TaskEvents, TasksRescheduled
from duly.store.control import ControlAnswer, TimerChange, reschedule_tasks
from duly.store.database import Database
from duly.store.idempotency import extend_key, free_key
from duly.store.load import Hint
from duly.store.read import Task
from duly.store.submit_throttles import take_starts

TRIES_MAX = 3


def option_problems(request: TaskRequest, *, is_batch: bool = False) -> list[Problem]:
    """Options that contradict each other, or a time that was asked for."""
    found = []
    if request.debounce is not None:
        if request.unique is not None:
            found.append(Problem("/debounce", "does not go with unique"))
        if is_batch:
            found.append(Problem("/debounce", "does not go in a batch"))
        if request.jitter_s:
            found.append(Problem("/jitter_s", "does not go with debounce"))
    if request.made_key() is not None and request.idempotency_key is not None:
        found.append(Problem("/idempotency_key", "does not go with unique or debounce"))
    is_timed = request.run_at is not None or request.delay_s is not None
    if is_timed and request.debounce is not None:
        found.append(Problem("/debounce", "does not go with run_at or delay_s"))
    if is_timed and request.throttle is not None:
        found.append(Problem("/throttle", "does not go with run_at or delay_s"))
    if request.throttle is not None and request.debounce is not None:
        found.append(Problem("/throttle", "does not go with debounce"))
    return found


@dataclass(frozen=True)
class SubmitOptions:
    database: Database
    environment: Environment
    events: TaskEvents

    async def throttled(
        self, requests: Sequence[TaskRequest], tasks: list[Submission]
    ) -> list[Submission]:
        """The same tasks; those with a throttle are due when it lets them start."""
        if not any(request.throttle is not None for request in requests):
            return tasks
        keys = [
            (ordinal, key)
            for ordinal, (request, task) in enumerate(zip(requests, tasks, strict=True))
            if (key := request.throttle_key(task.tenant)) is not None
        ]
        starts = await take_starts(self.database, [key for _, key in keys])
        if starts is None:
            problem = f"its start would be more than {THROTTLE_AHEAD_S_MAX / 86400:g} days ahead"
            raise ApiProblem(
                Code.RATE_LIMITED, "the throttle is full", [Problem("/throttle", problem)]
            )
        delayed = list(tasks)
        for (ordinal, _), start in zip(keys, starts, strict=True):
            delayed[ordinal] = tasks[ordinal]._replace(run_at=start, delay_s=0.0)
        return delayed

    async def put_off(self, known: Task, task: Submission, debounce: Debounce) -> bool:
        """Whether the waiting task was put off; False if its key is free now."""
        key = task.idempotency_key
        assert key is not None
        wait_s = debounce.wait_s
        if debounce.max_wait_s is not None:
            ends_at = known.created_at + timedelta(seconds=debounce.max_wait_s)
            wait_s = min(wait_s, (ends_at - self.environment.clock.now()).total_seconds())
        hints: list[Hint] = []
        answer = ControlAnswer.MOVED
        async with self.database.transaction() as session:
            if wait_s > 0:
                move = TimerChange(known.id, None, wait_s, None)
                answer = (await reschedule_tasks(session, task.tenant, [move], hints))[known.id]
            if answer is ControlAnswer.MOVED:
                await extend_key(session, task.tenant, key, known.id, max(wait_s, 0.0))
            elif answer is ControlAnswer.CONTENDED:
                raise later(Code.OVERLOADED, "other calls are changing the task; try again")
            else:
                await free_key(session, task.tenant, key, known.id)
        if hints:
            self.events.publish(TasksRescheduled(hints))
        return answer is ControlAnswer.MOVED

    async def free(self, task: Submission, task_id: UUID) -> None:
        """Its task is gone from the store."""
        assert task.idempotency_key is not None
        await free_key(self.database, task.tenant, task.idempotency_key, task_id)
