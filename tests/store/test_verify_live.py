"""`duly verify` beside a duly that works: whatever is under way, nobody is accused."""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from uuid import UUID

import pytest

from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.execution.attempt import DONE, AttemptResult
from duly.store import verify as module
from duly.store.control import cancel_tasks, reschedule_tasks, run_now
from duly.store.database import Database
from duly.store.dead_letters import LetterFilter, list_dead_letters, replay_dead_letters
from duly.store.lease import Lease
from duly.store.submit import Stored
from duly.store.verify import verify
from duly.testing.engine import Engine
from duly.verify.report import Verification

pytestmark = pytest.mark.slow

URL = "http://receiver.example/hook"
AGAIN = Policy(retry=RetryPolicy(max_attempts=3, initial_s=0.01, backoff="fixed"))
# As many as a quick machine makes, and some on any.
ROUNDS, ROUNDS_MIN = 40, 4
ENOUGH_S = 15.0
TASKS_MAX = 2000
BATCH = 20
KEPT_MAX = 20


@pytest.fixture
async def pool(engine_url: str) -> AsyncIterator[Database]:
    database = await Database.open(engine_url, 12)
    yield database
    await database.close()


class Moody:
    """A handler that ends in every way there is."""

    def __init__(self) -> None:
        self.random = Random(5)

    async def __call__(self, lease: Lease) -> AttemptResult:
        await asyncio.sleep(self.random.random() * 0.02)
        outcomes = (Outcome.COMPLETED, Outcome.FAILED, Outcome.REJECTED, Outcome.RELEASED)
        outcome = self.random.choices(outcomes, (10, 3, 1, 1))[0]
        return DONE if outcome is Outcome.COMPLETED else AttemptResult(outcome, error="mood")


async def keep_busy(engine: Engine, pool: Database, over: asyncio.Event) -> int:
    """Submits, keys, cancels, moves and replays without a pause; answers how many tasks."""
    random, count = Random(6), 0
    while not over.is_set() and count < TASKS_MAX:
        wishes = [
            Submission(
                tenant=random.choice((1, 2)),
                type="t",
                url=URL,
                delay_s=random.choice((0.0, 0.0, 0.05, 60.0)),
                policy=AGAIN,
                idempotency_key=f"k{count + n}" if n % 3 == 0 else None,
            )
            for n in range(BATCH)
        ]
        answers = await engine.submitter.submit(wishes)
        count += len(answers)
        ids = [answer.id for answer in answers if isinstance(answer, Stored)]
        await disturb(engine.environment, pool, random.sample(ids, 6))
    return count


async def disturb(environment: Environment, pool: Database, ids: list[UUID]) -> None:
    for tenant in (1, 2):
        await cancel_tasks(pool, tenant, ids[:3])
        await reschedule_tasks(pool, tenant, [run_now(task) for task in ids[3:]])
        letters, _ = await list_dead_letters(pool, tenant, LetterFilter(), limit=3)
        await replay_dead_letters(pool, environment, tenant, [letter.id for letter in letters])


async def test_a_busy_installation_is_never_accused(
    pool: Database, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables read at two instants contradict each other: a task that ends in between looks lost."""
    monkeypatch.setattr(module, "PAGE_TASKS", 100)
    monkeypatch.setattr(module, "PAGE_KEYS", 100)
    over, seen, began = asyncio.Event(), 0, asyncio.get_running_loop().time()
    async with Engine(pool, Environment(), Moody()) as engine:
        work = asyncio.create_task(keep_busy(engine, pool, over))
        try:
            for number in range(ROUNDS):
                is_late = asyncio.get_running_loop().time() > began + ENOUGH_S
                if is_late and number >= ROUNDS_MIN:
                    break
                verification = Verification(KEPT_MAX)
                await verify(engine_url, verification)
                assert verification.violations == []
                seen += bool(verification.rows["timers"] and verification.rows["attempts"])
        finally:
            over.set()
            count = await work
    assert seen > 0
    last = Verification(KEPT_MAX)
    await verify(engine_url, last)
    assert last.violations == []
    assert last.rows["tasks"] >= count > 0
