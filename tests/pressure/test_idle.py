"""Nothing to do: duly must hardly be noticed by the database it lives on."""

import asyncio

import pytest

from duly.composition import make_parts
from duly.environment import Environment
from duly.role import RoleLoop, stop_roles
from duly.telemetry import Metrics
from duly.testing.engine import STOP_S, Engine
from tests.pressure.counting import CountingDatabase
from tests.pressure.watching import Watcher, task, until

pytestmark = pytest.mark.slow

LOOK_S = 6.0
STATEMENTS_PER_S_MAX = 5.0
TENANTS = 60


async def test_idle_duly_issues_fewer_than_five_statements_a_second(
    pool: CountingDatabase,
) -> None:
    """Every role of `duly up`, after work in many places: what each asks adds up."""
    watcher = Watcher()
    async with Engine(pool, Environment(), watcher) as engine:
        # One after the other, so that their places do not keep step by accident.
        for tenant in range(1, TENANTS + 1):
            await engine.group_commit.submit(task(tenant))
        await until(lambda: len(watcher.leases) == TENANTS)
        await settled(pool)
        asked = await pool.statements_in(LOOK_S)
    assert asked.total() < STATEMENTS_PER_S_MAX * LOOK_S, asked


async def test_two_idle_processes_of_an_installation_stay_within_the_budget(
    pool: CountingDatabase,
) -> None:
    """`duly serve` twice, their slots in pieces: the budget is for all of duly together."""
    environment, metrics = Environment(), Metrics()
    parts = [make_parts(pool, environment, metrics, is_alone=False) for _ in range(2)]
    loops = [RoleLoop(role, environment, metrics) for each in parts for role in each.roles]
    running = [asyncio.create_task(loop.run()) for loop in loops]
    try:
        coordinators = [each.scheduler.coordinator for each in parts]
        await until(lambda: all(len(each.owned) == 32 for each in coordinators))
        await settled(pool)
        asked = await pool.statements_in(LOOK_S)
    finally:
        await stop_roles(loops, running, STOP_S)
    assert asked.total() < STATEMENTS_PER_S_MAX * LOOK_S, asked


async def settled(pool: CountingDatabase) -> None:
    """Whatever followed the last work is over once a second passes with little asked."""
    async with asyncio.timeout(20):
        while (await pool.statements_in(1.0)).total() > 2 * STATEMENTS_PER_S_MAX:
            continue
