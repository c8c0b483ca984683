"""An outage longer than a node trusts its slots: what is on the board waits for it to end."""

from typing import Any

import pytest

from duly.domain.task import Submission
from duly.environment import Environment
from duly.scheduler.dispatcher import Dispatcher
from duly.store.database import Database
from duly.testing.engine import Engine
from tests.broker.stage import until

pytestmark = pytest.mark.slow
NOBODY: Any = None
TASK = Submission(tenant=1, type="t", url="http://receiver.example/hook")


async def test_what_was_loaded_before_an_outage_is_dispatched_right_after_it(
    database: Database,
) -> None:
    """Forgotten, it would wait for the next sweep, though the slot was never anybody else's."""
    engine = Engine(database, Environment(), NOBODY)
    scheduler = engine.scheduler
    coordinator, dispatcher = scheduler.coordinator, scheduler.dispatcher
    await coordinator.tick()
    await scheduler.loader.tick()
    await scheduler.bounds.tick()
    assert dispatcher.gatekeeper.is_informed
    await engine.submitter.submit([TASK])
    await until(lambda: is_ready(dispatcher))
    coordinator.trusted_until = coordinator.environment.clock.monotonic()
    assert await dispatcher.tick() <= 1.0, "it looks again soon"
    assert not dispatcher.ready_state.tickets, "somebody else may have the slot by now"
    await coordinator.tick()
    await dispatcher.tick()
    assert len(dispatcher.ready_state.tickets) == 1


def is_ready(dispatcher: Dispatcher) -> bool:
    """The doorbell brought it, and its slot of the wheel has come."""
    dispatcher.ready_state.advance(dispatcher.time.now())
    return bool(dispatcher.ready_state.turns)
