"""The maintenance role: only the owner works, one service at a time, and no failure spreads."""

import asyncio
from random import Random

import pytest

from duly.environment import Environment
from duly.maintenance import role
from duly.maintenance.role import FIRST_SPACING_S, OWNER_POLL_S, Maintenance, make_services
from duly.maintenance.service import Report, Service
from duly.store.database import Database
from duly.telemetry import Metrics
from duly.testing.clock import ManualClock
from tests.store.world import World


class Recorder:
    """A service that does as it is told and remembers when it ran."""

    def __init__(self, name: str, period_s: float, clock: ManualClock) -> None:
        self.name = name
        self.period_s = period_s
        self.clock = clock
        self.ran_at: list[float] = []
        self.answer: Report | Exception = Report()

    async def run_once(self) -> Report:
        self.ran_at.append(round(self.clock.monotonic(), 3))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Stage:
    """A role over recorders, and a clock that follows its wishes."""

    def __init__(self, periods: dict[str, float]) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.is_owner = True
        self.services = {
            name: Recorder(name, period_s, self.clock) for name, period_s in periods.items()
        }
        self.made = 0
        environment = Environment(clock=self.clock, random=Random(1))
        self.role = Maintenance(environment, self.metrics, lambda: self.is_owner, self.make)

    def make(self) -> list[Service]:
        self.made += 1
        return list(self.services.values())

    async def run(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            before = sum(len(service.ran_at) for service in self.services.values())
            pause_s = await self.role.tick()
            after = sum(len(service.ran_at) for service in self.services.values())
            assert after - before <= 1, "more than one service in a tick"
            assert 0 < pause_s <= OWNER_POLL_S
            self.clock.advance(pause_s)


async def test_each_service_runs_once_in_its_own_period() -> None:
    """One clock for all would run the slow ones too often or the quick ones too late."""
    stage = Stage({"quick": 10.0, "slow": 100.0})
    await stage.run(300)
    assert 27 <= len(stage.services["quick"].ran_at) <= 31
    assert 3 <= len(stage.services["slow"].ran_at) <= 4


async def test_who_is_not_the_owner_does_nothing() -> None:
    """Two processes that tidy at once double the load, for nothing."""
    stage = Stage({"one": 10.0})
    stage.is_owner = False
    await stage.run(100)
    assert stage.made == 0
    stage.is_owner = True
    await stage.run(25)
    assert len(stage.services["one"].ran_at) == 3


async def test_a_lost_ownership_forgets_everything_and_shows_nothing() -> None:
    """The numbers of a former owner stand in the metrics until it is restarted."""
    stage = Stage({"one": 1000.0})
    await stage.run(10)
    stage.metrics.show_oldest_ready({("acme", 0): 7.0})
    stage.metrics.show_in_flight({"acme": 3})
    stage.is_owner = False
    await stage.role.tick()
    assert b"duly_oldest_ready_seconds{" not in stage.metrics.render()
    assert b"duly_in_flight{" not in stage.metrics.render()
    stage.is_owner = True
    await stage.role.tick()
    assert stage.made == 2
    assert len(stage.services["one"].ran_at) == 2


async def test_a_failing_service_is_counted_and_holds_up_nobody() -> None:
    """The first error would otherwise stop partitions from being made, three months early."""
    stage = Stage({"bad": 10.0, "good": 10.0})
    stage.services["bad"].answer = RuntimeError("no")
    await stage.run(100)
    assert len(stage.services["good"].ran_at) >= 9
    gaps = [
        round(later - sooner)
        for sooner, later in zip(
            stage.services["bad"].ran_at, stage.services["bad"].ran_at[1:], strict=False
        )
    ]
    assert gaps == sorted(gaps)
    assert gaps[0] == 5
    assert gaps[-1] == 40
    count = len(stage.services["bad"].ran_at)
    assert f'failures_total{{service="bad"}} {count}.0'.encode() in stage.metrics.render()
    stage.services["bad"].answer = Report(3)
    await stage.run(200)
    bad = stage.services["bad"].ran_at
    assert round(bad[-1] - bad[-2]) == 10
    assert b'changes_total{service="bad"}' in stage.metrics.render()


async def test_a_service_with_more_to_do_comes_back_soon_and_lets_others_in() -> None:
    """A backlog worked off once an hour is never worked off; one that hogs starves the rest."""
    stage = Stage({"busy": 1000.0, "other": 5.0})
    stage.services["busy"].answer = Report(1, has_more=True)
    await stage.run(20)
    assert len(stage.services["busy"].ran_at) >= 15
    assert len(stage.services["other"].ran_at) >= 4
    stage.services["busy"].answer = Report(1)
    await stage.run(100)
    assert len(stage.services["busy"].ran_at) <= 22


async def test_a_hanging_service_is_cut_off_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that never comes would hold the role until somebody restarts the process."""
    monkeypatch.setattr(role, "SERVICE_TIMEOUT_S", 0.01)
    stage = Stage({"hangs": 10.0, "good": 10.0})
    hanging = stage.services["hangs"]
    cut_off: list[str] = []

    async def hang() -> Report:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut_off.append("hangs")
            raise
        return Report()

    monkeypatch.setattr(hanging, "run_once", hang)
    await stage.role.tick()
    stage.clock.advance(1)
    await stage.role.tick()
    assert cut_off == ["hangs"]
    assert len(stage.services["good"].ran_at) == 1
    assert b'failures_total{service="hangs"} 1.0' in stage.metrics.render()


class CountingDatabase(Database):
    """Counts what a role sends."""

    statements = 0
    world: World

    async def fetch(self, statement: str, *arguments: object) -> list[object]:
        self.statements += 1
        return await self.world.database.fetch(statement, *arguments)


async def test_a_steady_installation_costs_far_less_than_a_statement_a_second(
    world: World, metrics: Metrics
) -> None:
    """Idle, all of duly together has five; housekeeping nobody notices may not take one."""
    database = CountingDatabase(world.database.url, world.database.connections)
    database.world = world
    maintenance = Maintenance(
        world.environment,
        metrics,
        lambda: True,
        lambda: make_services(database, metrics, world.submitter),
    )
    await world.submit()
    services = len(make_services(database, metrics, world.submitter))
    # Some come back before the last one's first turn.
    while world.clock.elapsed_s < 2 * services * FIRST_SPACING_S:
        world.advance(await maintenance.tick())
    text = metrics.render().decode()
    assert text.count("duly_maintenance_runs_total{") == services
    assert "duly_maintenance_failures_total{" not in text
    first, began = database.statements, world.clock.elapsed_s
    while world.clock.elapsed_s < began + 600:
        world.advance(await maintenance.tick())
    assert (database.statements - first) / 600 < 0.7
    await maintenance.close()
