"""Seeds of the simulated cluster, replayed bit for bit, and the bugs that they must notice."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duly.environment import CrashPoint
from tests.servers import ServerOfTheRun
from tests.simulation.__main__ import fresh_database
from tests.simulation.case import Case, Kind, keep, kept_cases, plan_of, read_case, run_case
from tests.simulation.database import Postgres, SimulatedDatabase
from tests.simulation.fleet_plan import make_fleet_plan
from tests.simulation.fleet_run import run_fleet_plan, run_fleet_seed
from tests.simulation.loop import Stuck, run_virtually
from tests.simulation.plan import Actor, FaultKind
from tests.simulation.run import Verdict, run_seed, tell_story
from tests.simulation.shrink import shrink
from tests.simulation.story import tell
from tests.teeth.first_caught import first_caught, first_caught_by_fleet
from tests.teeth.fleet_bugs import FLEET_BUGS
from tests.teeth.planted import Both, Bug, Slip
from tests.teeth.store_bugs import BUGS

SEEDS = 60
SEEDS_TO_CATCH = 100
# On a quiet machine a tenth of it.
TIMEOUT_S = 300
# Bugs of different kinds, each caught within a few dozen seeds.
QUICKLY_CAUGHT = {
    "a ticket needs no fence",
    "an end keeps the fence",
    "a retry after a requested cancel",
    "cancel takes a running task away",
    "a key is taken over",
}
# So many, because of fewer not every fault strikes.
FLEET_SEEDS = 30
FLEET_QUICKLY_CAUGHT = {
    "a belief outlives its lease",
    "a hand-over needs no wait",
    "a cap is free at the deadline of a ticket",
    "a lost ticket counts for ever",
    "a consumer is handed what is not stored yet",
    "what is parked stays parked",
    "a firing stores no task",
    "a change rules on nothing first",
    "a cancelled node counts for nothing",
    "a key begins a second workflow",
    "a cascade of skips is not gone on with",
}
# With the first of each kind, two hundred: as many again as one test may take in a row.
SHARES = [
    (Kind.STORE, 61, 105),
    (Kind.STORE, 106, 150),
    (Kind.FLEET, FLEET_SEEDS + 1, 40),
    (Kind.FLEET, 41, 50),
]
# What simulated nodes pass through; every one of them must have killed somebody.
SIMULATED = {
    CrashPoint.SUBMIT_AFTER_COMMIT,
    CrashPoint.LEASE_AFTER_COMMIT,
    CrashPoint.EXECUTION_AFTER_EFFECT,
    CrashPoint.SETTLE_BEFORE,
    CrashPoint.SETTLE_AFTER_COMMIT,
    CrashPoint.REAP_BEFORE,
}
FIRING = {CrashPoint.FIRE_BEFORE, CrashPoint.FIRE_BETWEEN, CrashPoint.FIRE_AFTER_COMMIT}
# Enough of them, where nothing but crashes happens, for each of these to have killed somebody.
FIRING_SEEDS = range(301, 313)


@pytest.fixture(scope="module")
def postgres(server: ServerOfTheRun) -> Iterator[Postgres]:
    with fresh_database(server) as postgres:
        yield postgres


def unregistered(task: "asyncio.Task[Any]") -> None:
    """A node without slots."""


def explain(verdict: Verdict) -> str:
    told = [f"seed {verdict.plan.seed}", *verdict.failures]
    for violation in verdict.violations[:3]:
        told += [str(violation), *tell_story(verdict, violation.task)]
    return "\n".join(told)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_breaks_a_promise(postgres: Postgres) -> None:
    """Every promise of the design, under kills, lost answers, pauses and wrong clocks."""
    crash_points: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for seed in range(1, SEEDS + 1):
        verdict = run_seed(postgres, seed)
        assert verdict.is_clean, explain(verdict)
        crash_points += verdict.crash_points
        answers += verdict.operations
    assert crash_points.keys() >= SIMULATED, "a crash point was never hit"
    never = {"lease leased", "settle stale", "settle replay", "heartbeat stale"} - answers.keys()
    assert not never, "the swarm is too tame"


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_no_fleet_breaks_a_promise(postgres: Postgres) -> None:
    """The real scheduler on several nodes: kills, frost, lost tickets; caps, pauses, owners."""
    faults: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    node_ends: Counter[str] = Counter()
    for seed in range(1, FLEET_SEEDS + 1):
        verdict = run_fleet_seed(postgres, seed)
        assert verdict.is_clean, explain(verdict)
        faults += verdict.faults
        node_ends += verdict.node_ends
        decisions += Counter(row.verdict for row in verdict.tables.occurrences)
    never = {FaultKind.FREEZE, FaultKind.KILL, FaultKind.TICKET_LOST} - faults.keys()
    assert not never, "the swarm is too tame"
    assert decisions.keys() >= {"FIRED", "TRIGGERED", "SKIPPED_PAUSED", "SKIPPED_OVERLAP"}
    assert node_ends.keys() == {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"}


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_node_that_dies_within_a_firing_loses_and_doubles_nothing(postgres: Postgres) -> None:
    """Timer, ledger and tasks that are not one commit lose an occurrence, or fire it twice."""
    crash_points: Counter[str] = Counter()
    for seed in FIRING_SEEDS:
        plan = replace(
            make_fleet_plan(seed),
            rates={FaultKind.CRASH: 0.1},
            actors=frozenset({Actor.KEEPER}),
            submissions=2,
        )
        verdict = run_fleet_plan(postgres, plan)
        assert verdict.is_clean, explain(verdict)
        crash_points += verdict.crash_points
    assert crash_points.keys() >= FIRING, "a crash point was never hit"


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(("kind", "first", "last"), SHARES)
def test_no_further_seed_breaks_a_promise(
    postgres: Postgres, kind: Kind, first: int, last: int
) -> None:
    """What sixty seeds do not meet, two hundred may; the numbers are the test's name."""
    for seed in range(first, last + 1):
        verdict = run_case(postgres, Case(kind, seed))
        assert verdict.is_clean, explain(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("case", kept_cases(), ids=lambda case: case.name)
def test_what_failed_once_stays_mended(server: ServerOfTheRun, case: Case) -> None:
    """A bug that was found, understood and mended comes back with the next change."""
    with fresh_database(server) as postgres:
        verdict = run_case(postgres, case)
    assert verdict.is_clean, "\n".join(tell(verdict))


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_failing_seed_is_shrunk_and_kept(server: ServerOfTheRun, tmp_path: Path) -> None:
    """A failure of a thousand lines is not read; one that cannot be repeated is not mended."""

    def run(case: Case) -> Verdict:
        with fresh_database(server) as postgres:
            return run_case(postgres, case)

    (bug,) = [bug for bug in BUGS if bug.name == "an end keeps the fence"]
    with bug.planted():
        whole, verdict = first_failing(run)
        smallest, told = shrink(whole, verdict, run)
        again = read_case(keep(smallest, tmp_path))
        assert again == smallest
        assert run(again).trace == told.trace
    assert len(told.logs.faults) < len(verdict.logs.faults) or not verdict.logs.faults
    assert plan_of(smallest).submissions <= plan_of(whole).submissions
    story = tell(told)
    assert story[0].startswith("1. ")
    assert story[-1].endswith(str(told.violations[0]))
    assert run(smallest).is_clean, "the case blames what is sound"


def first_failing(run: Callable[[Case], Verdict]) -> tuple[Case, Verdict]:
    for seed in range(1, SEEDS_TO_CATCH):
        case = Case(Kind.STORE, seed)
        verdict = run(case)
        if verdict.violations and len(verdict.logs.faults) > 1:
            return case, verdict
    raise AssertionError("the bug was not caught")


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_seed, run_fleet_seed])
def test_a_seed_replays_bit_for_bit(
    server: ServerOfTheRun, run: Callable[[Postgres, int], Verdict]
) -> None:
    """A failure that cannot be repeated cannot be understood."""
    traces = []
    for _ in range(2):
        with fresh_database(server) as postgres:
            traces.append([run(postgres, seed).trace for seed in (3, 4, 5)])
    assert traces[0] == traces[1]
    assert all(len(trace) > 50 for trace in traces[0])


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("number", "bug"),
    [(n, bug) for n, bug in enumerate(BUGS) if bug.name in QUICKLY_CAUGHT],
    ids=lambda value: "" if isinstance(value, int) else value.name,
)
def test_a_deliberate_bug_is_caught(postgres: Postgres, number: int, bug: Bug | Slip) -> None:
    """A simulator that finds nothing may be one that looks at nothing."""
    assert first_caught(postgres, bug, number, SEEDS_TO_CATCH) is not None


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("number", "bug"),
    [(n, bug) for n, bug in enumerate(FLEET_BUGS) if bug.name in FLEET_QUICKLY_CAUGHT],
    ids=lambda value: "" if isinstance(value, int) else value.name,
)
def test_a_deliberate_bug_of_the_scheduler_is_caught(
    postgres: Postgres, number: int, bug: Bug | Slip | Both
) -> None:
    """Caps and owners that nobody checks may as well be broken."""
    assert first_caught_by_fleet(postgres, bug, number, SEEDS_TO_CATCH) is not None


@pytest.mark.parametrize("bug", [*BUGS, *FLEET_BUGS], ids=lambda bug: bug.name)
def test_every_deliberate_bug_still_finds_its_place(bug: Bug | Slip | Both) -> None:
    """A guard that was reworded would leave the suite testing nothing."""
    before = sound_part(bug)
    with bug.planted():
        assert sound_part(bug) != before
    assert sound_part(bug) == before


def sound_part(bug: Bug | Slip | Both) -> object:
    if isinstance(bug, Both):
        return sound_part(bug.first), sound_part(bug.second)
    return (
        bug.statements.blocks[bug.statement]
        if isinstance(bug, Bug)
        else vars(bug.place).get(bug.attribute)
    )


def test_virtual_time_passes_without_waiting() -> None:
    """A simulated hour that takes an hour is not run."""

    async def sleep_long() -> float:
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtually(sleep_long(), unregistered) == pytest.approx(3660)


def test_a_simulation_in_which_nothing_can_happen_says_so() -> None:
    """Waiting for ever on nothing must not hang the run."""

    async def wait_for_nobody() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run_virtually(wait_for_nobody(), unregistered)


def test_a_callback_that_raises_fails_the_run() -> None:
    """A listener without a caller raised in every seed of a kind, and each of them was clean."""

    async def listen() -> None:
        listeners: dict[str, str] = {}
        asyncio.get_running_loop().call_later(1.0, listeners.__getitem__, "duly_workflows")
        await asyncio.sleep(2.0)

    with pytest.raises(KeyError):
        run_virtually(listen(), unregistered)


def test_a_run_that_never_ends_is_stuck_though_others_tick() -> None:
    """Two seeds waited for a connection for ever, while every role went on ticking."""

    async def tick() -> None:
        for _ in range(10_000):
            await asyncio.sleep(60.0)

    async def wait_beside() -> None:
        ticking = asyncio.create_task(tick())
        await asyncio.Event().wait()
        await ticking

    with pytest.raises(Stuck):
        run_virtually(wait_beside(), unregistered)


async def test_a_simulated_node_is_told_that_it_asks_for_a_second_connection() -> None:
    """There is one here; the run would wait for itself."""
    cluster: Any = SimpleNamespace(
        turn=asyncio.Lock(), turn_of=None, postgres=SimpleNamespace(url="")
    )
    node: Any = SimpleNamespace(turns=0)
    database = SimulatedDatabase(cluster, node)
    async with database.turn():
        with pytest.raises(AssertionError, match="waits for a connection"):
            async with database.turn():
                pass
    async with database.turn():
        assert node.turns == 1
    assert (node.turns, cluster.turn_of) == (0, None)
