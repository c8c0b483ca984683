"""`python -m tests.teeth`: plants each deliberate bug in turn and runs seeds until one notices.

Bugs are planted in this process, never on disk, so an interrupted run leaves nothing behind.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.servers import ServerOfTheRun
from tests.simulation.__main__ import fresh_database
from tests.simulation.case import Case, Kind, run_case
from tests.simulation.database import Postgres
from tests.simulation.run import Verdict
from tests.teeth.first_caught import first_caught, first_caught_by_fleet
from tests.teeth.fleet_bugs import FLEET_BUGS
from tests.teeth.planted import Both, Bug, Slip
from tests.teeth.store_bugs import BUGS

SEEDS_MAX = 300
# A fleet's seed takes several times as long.
FLEET_SEEDS_MAX = 300
CAUSE_MAX = 70


@dataclass(frozen=True)
class Report:
    """What became of one bug; `seeds` is None if it was not caught."""

    bug: str
    caught_by: str
    seeds: int | None
    cause: str


def cause_of(verdict: Verdict) -> str:
    if verdict.violations:
        return str(verdict.violations[0])[:CAUSE_MAX]
    return verdict.failures[0].strip().splitlines()[-1][:CAUSE_MAX]


def plant_all(
    server: ServerOfTheRun, postgres: Postgres, wanted: re.Pattern[str]
) -> Iterator[Report]:
    for number, bug in enumerate(BUGS):
        if wanted.search(bug.name):
            caught = first_caught(postgres, bug, number, SEEDS_MAX)
            yield judged(server, bug, Kind.STORE, caught)
    for number, of_fleet in enumerate(FLEET_BUGS):
        if wanted.search(of_fleet.name):
            caught = first_caught_by_fleet(postgres, of_fleet, number, FLEET_SEEDS_MAX)
            yield judged(server, of_fleet, Kind.FLEET, caught)


def judged(
    server: ServerOfTheRun, bug: Bug | Slip | Both, kind: Kind, caught: tuple[int, Verdict] | None
) -> Report:
    """A seed that fails without the bug as well has noticed something else."""
    if caught is None:
        return Report(bug.name, "nothing", None, "")
    seeds, verdict = caught
    seed = verdict.plan.seed
    with fresh_database(server) as postgres:
        if not run_case(postgres, Case(kind, seed)).is_clean:
            return Report(
                bug.name, "nothing", None, f"{kind} seed {seed} fails without the bug too"
            )
    return Report(bug.name, f"{kind} seeds", seeds, cause_of(verdict))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.teeth")
    parser.add_argument("--json", action="store_true", help="one object for each bug")
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    options = parser.parse_args()
    # So that its server is stopped with it.
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(prefix="duly-teeth-") as folder:
        server = ServerOfTheRun(Path(folder))
        server.open()
        try:
            with fresh_database(server) as postgres:
                for report in plant_all(server, postgres, options.only):
                    reports.append(report)
                    print(line_of(report, as_json=options.json), flush=True)
        finally:
            server.close()
    missed = [report for report in reports if report.seeds is None]
    if not options.json:
        print(f"{len(reports)} bugs, {len(missed)} not caught")
    return 1 if missed else 0


def line_of(report: Report, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(asdict(report))
    seeds = "-" if report.seeds is None else str(report.seeds)
    return f"{report.bug:52} {report.caught_by:12} {seeds:>4}  {report.cause}"


if __name__ == "__main__":
    sys.exit(main())
