"""`python -m tests.simulation`: runs seeds on a PostgreSQL of its own and says what it saw."""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.servers import ServerOfTheRun
from tests.simulation.case import Case, Kind, keep, read_case, run_case
from tests.simulation.database import Postgres, shorten_cascades
from tests.simulation.fleet_plan import FleetPlan
from tests.simulation.run import Verdict, prepare, tell_story
from tests.simulation.shrink import shrink
from tests.simulation.story import tell

PROGRESS_EVERY_S = 5.0
VIOLATIONS_TOLD_MAX = 5
STORY_LINES_MAX = 120
EITHER = "either"
# A bug that fails many seeds is understood from one.
SHRUNK_MAX = 1


class Summary:
    def __init__(self) -> None:
        self.seeds = 0
        self.statements = 0
        self.virtual_s = 0.0
        self.operations: Counter[str] = Counter()
        self.node_ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.crash_points: Counter[str] = Counter()
        self.failing: list[str] = []
        self.began = time.monotonic()

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.statements += verdict.statements
        self.virtual_s += verdict.virtual_s
        self.operations += verdict.operations
        self.node_ends += verdict.node_ends
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
            ("nodes of workflows", self.node_ends),
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


def kind_of(seed: int, kind: str) -> Kind:
    """Where either is asked for: odd numbers the one, even numbers the other."""
    if kind == EITHER:
        return Kind.FLEET if seed % 2 == 0 else Kind.STORE
    return Kind(kind)


@contextlib.contextmanager
def told_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C or SIGTERM: the seed that runs is finished, and what was seen so far is told."""
    told: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [
        signal.signal(number, lambda signum, _frame: told.append(signum)) for number in numbers
    ]
    try:
        yield lambda: bool(told)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def run_seeds(server: ServerOfTheRun, cases: list[Case]) -> Summary:
    summary = Summary()
    told_at = summary.began
    with fresh_database(server) as postgres, told_to_stop() as is_told:
        for case in cases:
            if is_told():
                print(f"stopped before seed {case.seed}")
                break
            verdict = run_case(postgres, case)
            summary.add(verdict)
            if not verdict.is_clean:
                tell_failure(verdict)
                if len(summary.failing) <= SHRUNK_MAX:
                    shrink_and_keep(server, case, verdict)
            if time.monotonic() - told_at > PROGRESS_EVERY_S:
                told_at = time.monotonic()
                print(
                    f"seed {case.seed}: {summary.seeds} of {len(cases)} done, "
                    f"{summary.rate:.1f}/s, {len(summary.failing)} failing",
                    flush=True,
                )
    return summary


@contextlib.contextmanager
def fresh_database(server: ServerOfTheRun) -> Iterator[Postgres]:
    with server.database() as name:
        shorten_cascades(server.url(name))
        postgres = Postgres(server.engine_url(name))
        prepare(postgres)
        try:
            yield postgres
        finally:
            postgres.close()


def shrink_and_keep(server: ServerOfTheRun, case: Case, verdict: Verdict) -> None:
    def run(smaller: Case) -> Verdict:
        with fresh_database(server) as postgres:
            return run_case(postgres, smaller)

    smallest, told = shrink(case, verdict, run)
    print(f"the least of it that fails:\n{smallest}")
    print("\n".join(tell(told)))
    print(f"kept in {keep(smallest)}; the suite runs it from now on", flush=True)


def with_own_server(cases: list[Case]) -> Summary:
    with tempfile.TemporaryDirectory(prefix="duly-simulation-") as folder:
        server = ServerOfTheRun(Path(folder))
        server.open()
        try:
            return run_seeds(server, cases)
        finally:
            server.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kind", choices=[*Kind, EITHER], default=EITHER)
    parser.add_argument(
        "--case", type=lambda text: read_case(Path(text)), help="the file of a kept case"
    )
    options = parser.parse_args()
    first, count = options.first, options.seeds
    seeds = [options.seed] if options.seed is not None else list(range(first, first + count))
    cases = [Case(kind_of(seed, options.kind), seed) for seed in seeds]
    summary = with_own_server([options.case] if options.case else cases)
    summary.tell()
    return 1 if summary.failing else 0


if __name__ == "__main__":
    sys.exit(main())
