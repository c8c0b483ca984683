"""`python -m benchmarks.in_turns BEFORE AFTER [scenario ...]`: two checkouts, measured in turns.

A machine's pace drifts within minutes, so each turn runs every scenario in both checkouts, the one
that begins changing with each turn, and medians are compared. Each checkout has its own `.venv`
(`make install`). Processor time is what PostgreSQL and Python spent, together, on a task.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

SCENARIOS = ("drain", "end-to-end", "end-to-end-http", "submit-batch", "lone", "herd")
PROCESSOR = ("python_us_per_task", "postgresql_us_per_task")
FIGURES = ("tasks_per_s", *PROCESSOR, "p50_ms", "p99_ms", "paced_p50_ms", "paced_p99_ms")
RUN_S_MAX = 600

Samples = dict[tuple[str, str], list[float]]


def measure(checkout: Path, scenarios: list[str], *, quick: bool) -> Samples:
    """The figures of one run of each scenario, by scenario and name."""
    command = [str(checkout / ".venv/bin/duly"), "bench", "--json", *scenarios]
    if quick:
        command.append("--quick")
    ran = subprocess.run(command, capture_output=True, timeout=RUN_S_MAX, check=True, cwd=checkout)
    return figures_of(json.loads(ran.stdout))


def figures_of(report: dict[str, Any]) -> Samples:
    found: Samples = defaultdict(list)
    for result in report["results"]:
        for name in FIGURES:
            if result.get(name) is not None:
                found[result["scenario"], name].append(result[name])
        if all(result.get(name) is not None for name in PROCESSOR):
            both = sum(result[name] for name in PROCESSOR)
            found[result["scenario"], "processor_us_per_task"].append(both)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    checkouts = [asked.before.resolve(), asked.after.resolve()]
    seen: list[Samples] = [defaultdict(list), defaultdict(list)]
    for turn in range(asked.turns):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            found = measure(checkouts[side], list(asked.scenarios), quick=asked.quick)
            for key, values in found.items():
                seen[side][key] += values
        print(f"turn {turn + 1} of {asked.turns}", file=sys.stderr, flush=True)
    print("| scenario | figure | before | after | ratio |\n|---|---|---|---|---|")
    for key in seen[0]:
        before, after = (statistics.median(side[key]) for side in seen)
        ratio = f"{after / before:.3f}" if before else "-"
        print(f"| {key[0]} | {key[1]} | {before:.5g} | {after:.5g} | {ratio} |")


if __name__ == "__main__":
    main()
