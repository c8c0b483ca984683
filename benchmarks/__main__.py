"""`python -m benchmarks [SCENARIO...] [--quick] [--json]`: figures with the facts they depend on.

Starts its own durable PostgreSQL in a temporary folder, and removes it afterwards.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import cluster, engine, heart, over_http, webhook
from benchmarks.machine import machine_facts
from duly.app import calm_collector
from duly.environment import Environment
from duly.settings import Settings
from duly.store.database import Database
from duly.store.place import open_place, prepare_place
from duly.telemetry import configure_logs

POOL_CONNECTIONS = 20
SCENARIOS = {
    **heart.SCENARIOS,
    **engine.SCENARIOS,
    **webhook.SCENARIOS,
    **over_http.SCENARIOS,
    **cluster.SCENARIOS,
}


async def run(names: list[str], *, quick: bool, repeat: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        settings = Settings(data_dir=folder)
        async with open_place(settings, Environment()) as place:
            await prepare_place(place, settings, Environment())
            database = await Database.open(place.engine_url, POOL_CONNECTIONS)
            try:
                results = [
                    await run_one(name, database, place.owner_url, quick=quick)
                    for name in names * repeat
                ]
                facts = await machine_facts(place.owner_url)
            finally:
                await database.close()
    return {"machine": facts, "results": results}


async def run_one(name: str, database: Database, owner_url: str, *, quick: bool) -> dict[str, Any]:
    """A scenario of the store alone, of the whole engine, or of several processes; each starts with
    no live task."""
    _, tasks_full, tasks_quick = SCENARIOS[name]
    tasks = tasks_quick if quick else tasks_full
    with Progress(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task(name, total=tasks)

        def show(done: int, total: int) -> None:
            bar.update(line, completed=done, total=total)

        if name in heart.SCENARIOS:
            figures = await heart.SCENARIOS[name][0](heart.Heart(database, owner_url, show), tasks)
        elif name in webhook.SCENARIOS:
            figures = await webhook.SCENARIOS[name][0](database, show, tasks)
        elif name in over_http.SCENARIOS:
            figures = await over_http.SCENARIOS[name][0](show, tasks)
        elif name in cluster.SCENARIOS:
            scenario = cluster.SCENARIOS[name][0]
            return {"scenario": name, **await scenario(owner_url, database.url, show, tasks)}
        else:
            bench = engine.Bench(database, owner_url, show)
            figures = await engine.SCENARIOS[name][0](bench, tasks)
    return {"scenario": name, "tasks": tasks, **figures}


def print_table(report: dict[str, Any]) -> None:
    table = Table(title=f"duly on {report['machine']['processor']}")
    for heading in ("scenario", "tasks", "tasks/s", "p50 ms", "p99 ms", "more"):
        table.add_column(heading, justify="left" if heading in ("scenario", "more") else "right")
    shown = {"scenario", "tasks", "tasks_per_s", "p50_ms", "p99_ms"}
    for result in report["results"]:
        more = {key: rounded(value) for key, value in result.items() if key not in shown}
        table.add_row(
            result["scenario"],
            f"{result['tasks']:,}" if "tasks" in result else "",
            f"{result['tasks_per_s']:,.0f}" if "tasks_per_s" in result else "",
            f"{result['p50_ms']:.2f}" if "p50_ms" in result else "",
            f"{result['p99_ms']:.2f}" if "p99_ms" in result else "",
            ", ".join(f"{key} {value}" for key, value in more.items()),
        )
    Console().print(table)


def rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--quick", action="store_true", help="smaller, each in under 15 s")
    parser.add_argument("--repeat", type=int, default=1, help="run the list this many times")
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    unknown = set(arguments.scenarios) - SCENARIOS.keys()
    if unknown:
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}")
    names = arguments.scenarios or list(SCENARIOS)
    calm_collector()
    configure_logs("error", "text")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(run(names, quick=arguments.quick, repeat=arguments.repeat))
    if arguments.as_json:
        json.dump(report, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print_table(report)


if __name__ == "__main__":
    main()
