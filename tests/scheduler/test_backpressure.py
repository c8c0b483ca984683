"""A carrier that is down holds tasks back in the dispatcher, and is no failure of it."""

from collections.abc import Sequence
from typing import Any

from duly.broker.contract import Delivery
from duly.broker.memory import MemoryCarrier
from duly.domain.errors import CarrierUnavailable
from duly.domain.task import Submission
from duly.environment import Environment
from duly.scheduler.dispatcher import Dispatcher
from duly.store.database import Database
from duly.testing.engine import Engine
from tests.broker.stage import until
from tests.scheduler.test_outage import is_ready

NOBODY: Any = None
TASKS = 3
TASK = Submission(tenant=1, type="t", url="http://receiver.example/hook")


async def ready_engine(database: Database) -> tuple[Dispatcher, MemoryCarrier]:
    """No role runs by itself, and tasks are ready to be dispatched."""
    engine = Engine(database, Environment(), NOBODY)
    scheduler = engine.scheduler
    await scheduler.coordinator.tick()
    await scheduler.loader.tick()
    await scheduler.bounds.tick()
    await engine.submitter.submit([TASK] * TASKS)
    await until(lambda: is_ready(scheduler.dispatcher))
    carrier = engine.parts.lease_queue.carrier
    assert isinstance(carrier, MemoryCarrier)
    return scheduler.dispatcher, carrier


async def test_nothing_is_dispatched_while_the_carrier_is_down(database: Database) -> None:
    """Each tick would choose tasks, count them and fail, thousands of times."""
    dispatcher, carrier = await ready_engine(database)
    carrier.is_up = False
    assert 0.0 < await dispatcher.tick() <= 1.0, "it looks again soon"
    assert not dispatcher.ready_state.tickets
    carrier.is_up = True
    await dispatcher.tick()
    assert sum(carrier.queues.queues[q].size for q in carrier.queues.queues) == TASKS


async def test_tasks_keep_their_places_when_the_carrier_goes_down(database: Database) -> None:
    """Forgotten, they would wait for the next sweep, behind what was submitted since."""
    dispatcher, carrier = await ready_engine(database)
    publish, batches = carrier.publish, list[Sequence[Delivery]]()

    async def goes_down(batch: Sequence[Delivery]) -> None:
        batches.append(batch)
        raise CarrierUnavailable(address="here", problem="down")

    carrier.publish = goes_down  # type: ignore[method-assign]
    assert 0.0 < await dispatcher.tick() <= 1.0
    assert not dispatcher.ready_state.tickets
    carrier.publish = publish  # type: ignore[method-assign]
    await dispatcher.tick()
    (queue,) = carrier.queues.queues.values()
    (tried,) = batches
    published = queue.take(TASKS + 1)
    assert [each.ticket.id for each in published] == [each.ticket.id for each in tried]
    assert len(published) == TASKS
