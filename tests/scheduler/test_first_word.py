"""The first instant that a scheduler hears of, and who brings it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from duly.domain.ids import shard_of, tenant_shard
from duly.domain.task import Submission
from duly.environment import Environment, SystemClock
from duly.execution.attempt import DONE
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.loader import Loader
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.wakeups import SchedulerWakeups
from duly.store.database import Database
from duly.store.load import DueTimer
from duly.store.tenants import TenantLimits, create_tenant
from duly.testing.engine import Engine

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOBODY: Any = None


def test_a_timer_that_comes_before_the_first_load_finds_a_turning_wheel() -> None:
    """A wheel that still stands in 1970 has no room for it, and the submitter would be told so."""
    ready_state, time = ReadyState(0.0), DatabaseTime(SystemClock())
    loader = Loader(NOBODY, Environment(), NOBODY, ready_state, time, NOBODY, SchedulerWakeups())
    loader.observe(NOW)
    due_at = NOW + timedelta(seconds=5)
    loader.admit([DueTimer(1, 0, 1, UUID(int=1), 0, due_at, 5, None, "t", None, None, None)])
    assert len(ready_state.wheel) == 1


async def test_whoever_waits_for_the_time_hears_of_it_at_once(engine_url: str) -> None:
    """Nothing is dispatched before the gates' inputs are read, and reading them waits for it."""
    database = await Database.open(engine_url, 4)
    try:
        engine = Engine(database, Environment(), lambda _lease: DONE)
        woken = engine.scheduler.bounds.wakeup.event
        engine.scheduler.loader.observe(NOW)
        assert woken.is_set()
        woken.clear()
        engine.scheduler.loader.observe(NOW)
        assert not woken.is_set()
    finally:
        await database.close()


async def test_the_very_first_task_of_a_capped_tenant_stays_at_home(engine_url: str) -> None:
    """Placed elsewhere before the cap is known, another node might dispatch it meanwhile (I10)."""
    database = await Database.open(engine_url, 4)
    try:
        tenant = await create_tenant(database, "capped", TenantLimits(in_flight_max=1))
        assert tenant is not None
        await database.fetch("UPDATE duly.tenants SET spread = 64 WHERE id = $1", tenant.id)
        engine = Engine(database, Environment(), NOBODY)
        task = Submission(tenant=tenant.id, type="t", url="http://a.example/")
        answers = await engine.submitter.submit([task] * 20)
        assert {shard_of(answer.id) for answer in answers} == {tenant_shard(tenant.id, 1, 0)}
    finally:
        await database.close()
