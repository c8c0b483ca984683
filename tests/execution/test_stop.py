"""An orderly stop hands over after the last tick has ended: no tick may wait for work meanwhile."""

import asyncio

import pytest

from duly.broker.consumer import WaitingConsumer
from duly.broker.lease_queue import LeaseQueue
from duly.broker.memory import MemoryCarrier
from duly.environment import Environment
from duly.events import SlotsChanged
from duly.execution import executor as module
from duly.execution.assembly import EXECUTOR_LOOPS
from duly.execution.attempt import DONE, AttemptResult
from duly.role import stop_roles
from duly.store.database import Database
from duly.store.lease import Lease
from duly.testing.engine import Engine
from tests.broker.stage import LANE, until
from tests.store.world import HOLDER, LEASE_S

# Longer than any test: whoever waits so long is never woken.
FOREVER_S = 3600.0
STOP_S = 20.0


def done(_lease: Lease) -> AttemptResult:
    return DONE


@pytest.mark.slow
@pytest.mark.parametrize("is_alone", [True, False], ids=["memory", "postgresql"])
@pytest.mark.parametrize(("slots", "waiting"), [(0, 0), (1, EXECUTOR_LOOPS)], ids=["room", "work"])
async def test_nobody_who_waits_for_work_holds_up_a_stop(
    database: Database, is_alone: bool, slots: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are released after the last tick; one that waits for tasks or room costs a second."""
    monkeypatch.setattr(module, "TAKE_WAIT_S", FOREVER_S)
    # Nothing has ended that could be settled.
    engine = Engine(database, Environment(), done, is_alone=is_alone, running_max=slots)
    async with engine:
        await until(lambda: engine.parts.lease_queue.waiting() == waiting)
        coordinator = engine.scheduler.coordinator
        await until(lambda: bool(coordinator.owned))
        told: list[bool] = []
        coordinator.events.subscribe(
            SlotsChanged,
            lambda _event: told.append(
                all(task.done() and not task.cancelled() for task in engine.running)
            ),
        )
        await engine.parts.lease_queue.close()
        await stop_roles(engine.loops, engine.running, STOP_S)
        assert told == [True], "every tick had ended by itself when the slots were released"


async def test_a_consumer_that_comes_after_the_close_does_not_wait(database: Database) -> None:
    """It was in its lease statement when the others were woken, and waits next."""
    environment = Environment()
    queue = LeaseQueue(MemoryCarrier(environment.clock), database, environment)
    await queue.close()
    async with asyncio.timeout(STOP_S):
        assert not await queue.wait(WaitingConsumer([LANE], HOLDER, 1, LEASE_S), FOREVER_S)
    assert queue.waiting() == 0
