"""`python -m benchmarks.internals [SCENARIO ...] [--quick] [--json]`: parts of duly, each alone.

The store without a scheduler, the timing wheel, cron expressions: what a change of one part costs.
What users notice is measured by `duly bench`. All scenarios run when none is named.
"""

import argparse
import asyncio
import json
import sys

import uvloop

from duly.app import tune_garbage_collector
from duly.bench.catalog import Scenario
from duly.bench.run import Audience, ScenarioReport, run_scenarios
from duly.bench.stage import BenchOptions
from duly.cli.bench import print_report
from duly.environment import system_environment
from duly.logs import configure_logs

STORE, PARTS = "benchmarks.store_alone", "benchmarks.parts_alone"
INTERNALS = (
    Scenario("store-submit-batch", STORE, 200_000, 50_000, "bulk submit, two connections"),
    Scenario("store-submit-single", STORE, 100_000, 20_000, "64 callers who share commits"),
    Scenario("store-drain", STORE, 200_000, 100_000, "load, lease and settle"),
    Scenario("store-end-to-end", STORE, 200_000, 50_000, "submit and drain at once"),
    Scenario("wheel", PARTS, 200_000, 200_000, "memory and rate of entries on the timing wheel"),
    Scenario("next-fires", PARTS, 500_000, 50_000, "the next instant of a cron expression"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.internals", description=__doc__)
    known = [each.name for each in INTERNALS]
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=", ".join(known))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"no scenario {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [each for each in INTERNALS if not given.names or each.name in given.names]
    configure_logs("error", "text")
    tune_garbage_collector()
    report = ScenarioReport()
    silent = Audience(lambda _scenario: lambda _done, _total: None, lambda _result: None)
    options = BenchOptions(is_quick=given.quick)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        is_whole = runner.run(run_scenarios(chosen, options, system_environment(), report, silent))
    if given.as_json:
        json.dump(report.as_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_report(report.as_json())
    sys.exit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
