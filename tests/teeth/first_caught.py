"""A deliberate bug against seeds of its own, until one of them notices. Knows no bug by name."""

from collections.abc import Callable

from tests.simulation.database import Postgres
from tests.simulation.fleet_run import run_fleet_seed
from tests.simulation.run import Verdict, run_seed
from tests.teeth.planted import Both, Bug, Slip

# Far from one another, because a seed runs only once in a database.
SEEDS_APART = 1000


def first_caught(
    postgres: Postgres,
    bug: Bug | Slip | Both,
    number: int,
    seeds_max: int,
    run: Callable[[Postgres, int], Verdict] = run_seed,
) -> tuple[int, Verdict] | None:
    """After how many seeds, and the verdict; None if the bug lived through all of them.

    A role that spins or fails is caught as well, though it broke no promise yet.
    """
    first = (number + 1) * SEEDS_APART
    with bug.planted():
        for count, seed in enumerate(range(first, first + seeds_max), start=1):
            verdict = run(postgres, seed)
            if not verdict.is_clean:
                return count, verdict
    return None


def first_caught_by_fleet(
    postgres: Postgres, bug: Bug | Slip | Both, number: int, seeds_max: int
) -> tuple[int, Verdict] | None:
    return first_caught(postgres, bug, number, seeds_max, run_fleet_seed)
