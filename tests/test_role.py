"""The one loop: it survives what ticks raise, hears every wake-up, and always stops in time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from duly import role as role_module
from duly.environment import Environment
from duly.role import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    CALM_S,
    FAILING_AFTER,
    OVERDUE_AFTER_S,
    RoleLoop,
    problems_of,
    stop_roles,
)
from duly.telemetry import Metrics
from duly.testing.clock import ManualClock

FAR_S = 3600.0
WAIT_MAX_S = 10.0
# From PostgreSQL being ready to the first dispatch, as promised.
FIRST_DISPATCH_MAX_S = 3.0


async def nothing() -> float:
    return FAR_S


@dataclass
class ScriptedRole:
    """Each tick does what the test says next; the last instruction repeats."""

    script: list[Callable[[], Awaitable[float]]] = field(default_factory=lambda: [nothing])
    name: str = "scripted"
    ticks: int = 0
    closed: int = 0
    ticked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def tick(self) -> float:
        step = self.script[min(self.ticks, len(self.script) - 1)]
        async with self.ticked:
            self.ticks += 1
            self.ticked.notify_all()
        return await step()

    async def close(self) -> None:
        self.closed += 1

    async def until_ticks(self, count: int) -> None:
        async with asyncio.timeout(WAIT_MAX_S), self.ticked:
            await self.ticked.wait_for(lambda: self.ticks >= count)


class Stage:
    """A loop under test; whatever the test leaves running is stopped."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.metrics = Metrics()
        self.running: list[asyncio.Task[None]] = []

    def start(self, role: ScriptedRole) -> RoleLoop:
        loop = RoleLoop(role, self.environment, self.metrics)
        self.running.append(asyncio.create_task(loop.run()))
        return loop

    def count(self, family: str) -> float:
        value = self.metrics.registry.get_sample_value(family, {"role": "scripted"})
        return value or 0.0


@pytest.fixture
async def stage(environment: Environment) -> AsyncIterator[Stage]:
    stage = Stage(environment)
    yield stage
    for task in stage.running:
        task.cancel()
    await asyncio.gather(*stage.running, return_exceptions=True)


def failing(error: Exception) -> Callable[[], Awaitable[float]]:
    async def tick() -> float:
        raise error

    return tick


async def test_a_tick_that_raises_is_counted_and_the_next_one_comes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad row or a restarted database must not end a role until somebody notices."""
    monkeypatch.setattr(role_module, "BACKOFF_FIRST_S", 0.001)
    role = ScriptedRole([failing(ValueError("bad row")), failing(OSError("no database")), nothing])
    loop = stage.start(role)
    await role.until_ticks(3)
    loop.stop()
    await asyncio.wait_for(stage.running[0], WAIT_MAX_S)
    assert stage.count("duly_role_failures_total") == 2
    assert stage.count("duly_role_ticks_total") == 1
    assert loop.problem is None


async def test_a_tick_that_hangs_is_cancelled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost connection that never answers would hold the role for ever."""
    monkeypatch.setattr(role_module, "TICK_TIMEOUT_S", 0.01)
    monkeypatch.setattr(role_module, "BACKOFF_FIRST_S", 0.001)

    async def hang() -> float:
        await asyncio.Event().wait()
        return FAR_S

    role = ScriptedRole([hang, nothing])
    stage.start(role)
    await role.until_ticks(2)
    assert stage.count("duly_role_failures_total") == 1


def test_the_backoff_doubles_is_spread_and_is_bounded(environment: Environment) -> None:
    """Unbounded it never comes back; unspread, a whole fleet hits the database at once."""
    loop = RoleLoop(ScriptedRole(), environment, Metrics())
    longest: list[float] = []
    for failures in range(1, 40):
        loop.failures.in_a_row = failures
        waits = [loop.backoff_s() for _ in range(200)]
        whole_s = min(BACKOFF_FIRST_S * 2 ** (failures - 1), BACKOFF_MAX_S)
        assert whole_s / 2 <= min(waits) < whole_s * 0.6
        assert whole_s * 0.9 < max(waits) <= whole_s
        longest.append(max(waits))
    assert longest[-1] <= BACKOFF_MAX_S


def test_after_a_long_outage_a_role_is_back_within_seconds(environment: Environment) -> None:
    """The first dispatch waits for two roles to come back, one after the other."""
    loop = RoleLoop(ScriptedRole(), environment, Metrics())
    loop.failures.in_a_row = 1000
    assert max(loop.backoff_s() for _ in range(200)) * 2 <= FIRST_DISPATCH_MAX_S


async def test_a_wake_up_starts_the_next_tick_at_once(stage: Stage) -> None:
    """A doorbell that waits for the pause to end makes every task late by it."""
    role = ScriptedRole()
    loop = stage.start(role)
    await role.until_ticks(1)
    loop.wake()
    await role.until_ticks(2)


async def test_a_wake_up_during_a_tick_is_kept(stage: Stage) -> None:
    """What rang after the tick had looked would otherwise wait for the whole pause."""
    may_finish = asyncio.Event()

    async def slow() -> float:
        await may_finish.wait()
        return FAR_S

    role = ScriptedRole([slow, nothing])
    loop = stage.start(role)
    await role.until_ticks(1)
    loop.wake()
    may_finish.set()
    await role.until_ticks(2)


async def test_a_stop_lets_the_running_tick_finish_and_starts_no_other(stage: Stage) -> None:
    """A settlement cut in the middle costs an attempt; one more tick may lease new work."""
    may_finish, finished = asyncio.Event(), asyncio.Event()

    async def slow() -> float:
        await may_finish.wait()
        finished.set()
        return 0.0

    role = ScriptedRole([slow])
    loop = stage.start(role)
    await role.until_ticks(1)
    stopping = asyncio.create_task(stop_roles([loop], stage.running, limit_s=WAIT_MAX_S))
    may_finish.set()
    await stopping
    assert finished.is_set()
    assert (role.ticks, role.closed) == (1, 1)


async def test_a_stop_is_bounded_when_a_tick_and_a_close_hang(stage: Stage) -> None:
    """A process that does not stop is killed by its supervisor, without any hand-over."""

    class Stubborn(ScriptedRole):
        async def close(self) -> None:
            await asyncio.Event().wait()

    async def hang() -> float:
        await asyncio.Event().wait()
        return FAR_S

    stubborn, orderly = Stubborn([hang]), ScriptedRole()
    loops = [stage.start(stubborn), stage.start(orderly)]
    await stubborn.until_ticks(1)
    await orderly.until_ticks(1)
    async with asyncio.timeout(WAIT_MAX_S):
        await stop_roles(loops, stage.running, limit_s=0.1)
    assert all(task.done() for task in stage.running)
    assert orderly.closed == 1


async def test_a_role_that_fails_to_close_does_not_keep_others_from_closing(stage: Stage) -> None:
    """Each hand-over is worth having; one that fails must not cost the rest."""

    class Broken(ScriptedRole):
        async def close(self) -> None:
            raise OSError("no database")

    orderly = ScriptedRole()
    loops = [stage.start(Broken()), stage.start(orderly)]
    await orderly.until_ticks(1)
    await stop_roles(loops, stage.running, limit_s=WAIT_MAX_S)
    assert orderly.closed == 1


class Trial:
    """One loop under a manual clock, ticked by hand."""

    def __init__(self, environment: Environment, clock: ManualClock) -> None:
        self.clock = clock
        self.role = ScriptedRole()
        self.metrics = Metrics()
        self.loop = RoleLoop(self.role, environment, self.metrics)

    async def tick(self, *, is_good: bool, after_s: float = 0.0) -> str | None:
        self.clock.advance(after_s)
        self.role.script = [nothing if is_good else failing(OSError("no database"))]
        await self.loop.tick_once()
        self.loop.next_tick_by = self.clock.monotonic() + FAR_S
        return self.loop.problem


@pytest.fixture
def trial(environment: Environment, clock: ManualClock) -> Trial:
    return Trial(environment, clock)


async def test_a_role_that_fails_at_every_tick_has_a_problem_until_it_does_well(
    trial: Trial,
) -> None:
    """Readiness that stays green while nothing is done hides an outage; one hiccup is none."""
    for _ in range(FAILING_AFTER - 1):
        assert await trial.tick(is_good=False) is None
    assert await trial.tick(is_good=False, after_s=2.0) == "failing: OSError, 3 times in 2 s"
    assert await trial.tick(is_good=True) is None


async def test_good_ticks_in_between_do_not_hide_a_role_that_goes_on_failing(trial: Trial) -> None:
    """A dispatcher that cannot publish does well whenever there is nothing to publish."""
    problems = []
    for _ in range(4):
        problems.append(await trial.tick(is_good=False, after_s=CALM_S / 2))
        problems.append(await trial.tick(is_good=True))
    assert [problem is not None for problem in problems] == [False] * 4 + [True] * 4
    assert await trial.tick(is_good=True, after_s=CALM_S - 0.1) is not None
    assert await trial.tick(is_good=True, after_s=0.1) is None
    assert await trial.tick(is_good=False) is None


async def test_a_role_that_does_not_finish_its_tick_has_a_problem(trial: Trial) -> None:
    """It hangs, and neither fails nor does anything."""
    await trial.tick(is_good=True)
    trial.clock.advance(FAR_S + OVERDUE_AFTER_S - 0.001)
    assert trial.loop.problem is None
    trial.clock.advance(0.001)
    assert trial.loop.problem == "overdue: no tick for 30 s"


async def test_a_failure_that_repeats_is_logged_less_and_less_and_its_end_is_told(
    trial: Trial,
) -> None:
    """9,000 lines in 40 s bury the first one, which says what happened."""
    with capture_logs() as lines:
        for _ in range(1000):
            await trial.tick(is_good=False, after_s=0.125)
        await trial.tick(is_good=True)
    failed = [line for line in lines if line["event"] == "role tick failed"]
    assert [line["failures"] for line in failed] == [1, 8, 16, 32, 64, 128, 256]
    assert "no database" in failed[0]["error"]
    (recovered,) = [line for line in lines if line["event"] == "role recovered"]
    assert (recovered["failures"], recovered["role"]) == (1000, "scripted")


async def test_one_of_several_loops_that_fails_is_its_roles_problem(trial: Trial) -> None:
    """The others of the same name would hide it."""
    well = RoleLoop(ScriptedRole(), trial.loop.environment, trial.metrics)
    for _ in range(FAILING_AFTER):
        await trial.tick(is_good=False)
    for loops in ([well, trial.loop], [trial.loop, well]):
        assert problems_of(loops)["scripted"] == "failing: OSError, 3 times in 0 s"


async def test_a_wake_up_does_not_cut_the_pause_after_a_failure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy process wakes a role all the time: it would fail as often as it is woken."""
    monkeypatch.setattr(role_module, "BACKOFF_FIRST_S", FAR_S)
    monkeypatch.setattr(role_module, "BACKOFF_MAX_S", FAR_S)
    role = ScriptedRole([failing(OSError())])
    loop = stage.start(role)
    await role.until_ticks(1)
    for _ in range(10):
        loop.wake()
        await asyncio.sleep(0)
    assert role.ticks == 1
    loop.stop()
    await asyncio.wait_for(stage.running[0], WAIT_MAX_S)
