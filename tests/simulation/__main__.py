"""`python -m tests.simulation`: runs seeds on a PostgreSQL of its own and says what it saw."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from enum import StrEnum
from pathlib import Path

from duly.environment import Environment
from duly.settings import Settings
from duly.store.place import Place, open_place, prepare_place
from tests.simulation.database import Postgres
from tests.simulation.fleet_plan import FleetPlan
from tests.simulation.fleet_run import run_fleet_seed
from tests.simulation.run import Verdict, prepare, run_seed, tell_story

PROGRESS_EVERY_S = 5.0
VIOLATIONS_TOLD_MAX = 5
STORY_LINES_MAX = 120


class Summary:
    def __init__(self) -> None:
        self.seeds = 0
        self.statements = 0
        self.virtual_s = 0.0
        self.operations: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.crash_points: Counter[str] = Counter()
        self.failing: list[str] = []
        self.began = time.monotonic()

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.statements += verdict.statements
        self.virtual_s += verdict.virtual_s
        self.operations += verdict.operations
        self.faults += verdict.faults
        self.crash_points += verdict.crash_points
        if not verdict.is_clean:
            self.failing.append(name_of(verdict))

    @property
    def rate(self) -> float:
        return self.seeds / (time.monotonic() - self.began)

    def tell(self) -> None:
        for title, counts in (
            ("operations", self.operations),
            ("faults", self.faults),
            ("crash points", self.crash_points),
        ):
            print(f"{title}: {sum(counts.values())}")
            for name, count in sorted(counts.items()):
                print(f"  {count:8d}  {name}")
        print(
            f"{self.seeds} seeds, {self.statements} statements, {self.virtual_s:.0f} virtual "
            f"seconds, {self.rate:.1f} seeds/s, {len(self.failing)} with violations"
        )
        if self.failing:
            print("failing seeds, to be repeated with make simulate:")
            print("\n".join(self.failing))


def name_of(verdict: Verdict) -> str:
    kind = Kind.FLEET if isinstance(verdict.plan, FleetPlan) else Kind.STORE
    return f"KIND={kind} SEED={verdict.plan.seed}"


def tell_failure(verdict: Verdict) -> None:
    print(f"\n{name_of(verdict)} FAILED\n{verdict.plan}")
    for fault in verdict.logs.faults:
        print(f"  fault {fault.at} {fault.kind} {fault.node}")
    for failure in verdict.failures:
        print(failure)
    for violation in verdict.violations[:VIOLATIONS_TOLD_MAX]:
        print(f"VIOLATION {violation}")
        for line in tell_story(verdict, violation.task)[-STORY_LINES_MAX:]:
            print(f"    {line}")


class Kind(StrEnum):
    """What a seed runs: actors on the store, or a fleet of nodes with the real scheduler."""

    STORE = "store"
    FLEET = "fleet"
    # Odd numbers the one, even numbers the other.
    EITHER = "either"


def run_one(postgres: Postgres, seed: int, kind: Kind) -> Verdict:
    is_fleet = seed % 2 == 0 if kind is Kind.EITHER else kind is Kind.FLEET
    return run_fleet_seed(postgres, seed) if is_fleet else run_seed(postgres, seed)


def run_seeds(url: str, seeds: list[int], kind: Kind) -> Summary:
    postgres = Postgres(url)
    try:
        prepare(postgres)
        summary = Summary()
        told_at = summary.began
        for seed in seeds:
            verdict = run_one(postgres, seed, kind)
            summary.add(verdict)
            if not verdict.is_clean:
                tell_failure(verdict)
            if time.monotonic() - told_at > PROGRESS_EVERY_S:
                told_at = time.monotonic()
                print(
                    f"seed {seed}: {summary.seeds} of {len(seeds)} done, {summary.rate:.1f}/s, "
                    f"{len(summary.failing)} failing",
                    flush=True,
                )
        return summary
    finally:
        postgres.close()


async def with_own_server(seeds: list[int], kind: Kind) -> Summary:
    environment = Environment()
    with tempfile.TemporaryDirectory(prefix="duly-simulation-") as folder:
        settings = Settings(data_dir=str(Path(folder) / "data"))
        async with open_place(settings, environment) as place:
            await prepare_place(place, settings, environment)
            return await asyncio.to_thread(run_on, place, seeds, kind)


def run_on(place: Place, seeds: list[int], kind: Kind) -> Summary:
    return run_seeds(place.engine_url, seeds, kind)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kind", type=Kind, choices=list(Kind), default=Kind.EITHER)
    options = parser.parse_args()
    first, count = options.first, options.seeds
    seeds = [options.seed] if options.seed is not None else list(range(first, first + count))
    summary = asyncio.run(with_own_server(seeds, options.kind))
    summary.tell()
    return 1 if summary.failing else 0


if __name__ == "__main__":
    sys.exit(main())
