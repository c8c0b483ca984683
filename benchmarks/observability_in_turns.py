"""`python -m benchmarks.observability_in_turns [--turns N] [--tasks N] [--json]`: what metrics and
traces cost a drain. The goals: 95 % of the pace without metrics, 85 % with traces of 1 %.

A machine's pace drifts within minutes, so each turn runs all three, each in a process of its own,
and medians are compared. `off` has families of metrics that take nothing; `traces` has metrics,
too, and sends its spans to a collector in another process.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from typing import Any

from duly.environment import system_environment
from duly.tracing import OFF, Tracing, open_tracing

MODES = ("off", "metrics", "traces")
GOALS = {"metrics": 0.95, "traces": 0.85}
SAMPLED = 0.01
TURNS = 5
TASKS = 200_000
RUN_S_MAX = 900


def turn_metrics_off() -> None:
    """As if no family were exported; what statistics are made of stays."""
    from duly.metric_families import Buckets, Counts
    from duly.store import task_metrics

    def nothing(*_arguments: Any, **_options: Any) -> None:
        return None

    def only_stats(_metrics: Any, stats: Any, leases: Any) -> None:
        stats.note_started((lease.tenant, lease.type, lease.lag_s) for lease in leases)

    Counts.add = nothing  # type: ignore[method-assign]
    Buckets.observe = Buckets.observe_many = Buckets.observe_same = nothing  # type: ignore[method-assign]
    # Before others import them by name.
    task_metrics.note_started = only_stats  # type: ignore[assignment]
    task_metrics.note_ready_waits = task_metrics.note_ended = nothing


def turn_traces_on(endpoint: str) -> Tracing:
    """What `composition` does with `otlp_endpoint`, and the API with each submit."""
    from duly.bench import drive

    tracing = open_tracing(system_environment(), endpoint, SAMPLED)
    make_task, begin = drive.make_task, drive.Driver.__init__

    def traced_task(*arguments: Any, **facts: Any) -> Any:
        stored = tracing.begin_submit(None)
        return make_task(*arguments, **facts)._replace(traceparent=stored)

    def traced_driver(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        tracing.subscribe(self.engine.parts.events)

    drive.make_task = traced_task
    drive.Driver.__init__ = traced_driver  # type: ignore[method-assign]
    return tracing


def run_mode(mode: str, tasks: int, endpoint: str) -> None:
    if mode == "off":
        turn_metrics_off()
    tracing = turn_traces_on(endpoint) if mode == "traces" else OFF
    from duly.cli.main import run

    code = run(["bench", "--json", "--tasks", str(tasks), "drain"])
    asyncio.run(tracing.close())
    sys.exit(code)


def drained_per_s(mode: str, tasks: int, endpoint: str) -> float:
    command = [sys.executable, "-m", "benchmarks.observability_in_turns", "--mode", mode]
    command += ["--tasks", str(tasks), "--endpoint", endpoint]
    ran = subprocess.run(command, capture_output=True, timeout=RUN_S_MAX, check=True)
    return float(json.loads(ran.stdout)["results"][0]["tasks_per_s"])


def measure(turns: int, tasks: int) -> dict[str, Any]:
    from tests.story.otlp_receiver import otlp_receiver

    found: dict[str, list[float]] = defaultdict(list)
    with otlp_receiver() as receiver:
        for turn in range(turns):
            for mode in MODES[turn % len(MODES) :] + MODES[: turn % len(MODES)]:
                found[mode].append(drained_per_s(mode, tasks, receiver.url))
                sys.stderr.write(f"turn {turn + 1}: {mode} {found[mode][-1]:,.0f} tasks/s\n")
        spans = len(receiver.spans)
    medians = {mode: statistics.median(found[mode]) for mode in MODES}
    shares = {mode: round(medians[mode] / medians["off"], 3) for mode in GOALS}
    return {
        "tasks_per_s": {mode: round(medians[mode]) for mode in MODES},
        "share_of_off": shares,
        "goals": GOALS,
        "is_met": all(shares[mode] >= goal for mode, goal in GOALS.items()),
        "spans_received": spans,
        "samples": {mode: [round(each) for each in found[mode]] for mode in MODES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.observability_in_turns", description=__doc__
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mode:
        run_mode(arguments.mode, arguments.tasks, arguments.endpoint)
    report = measure(arguments.turns, arguments.tasks)
    sys.stdout.write(json.dumps(report, indent=None if arguments.json else 2) + "\n")
    sys.exit(0 if report["is_met"] else 1)


if __name__ == "__main__":
    main()
