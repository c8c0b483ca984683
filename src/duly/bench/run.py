"""Running scenarios one after the other, each on a stage of its own, into one report.

| event | what happens |
|---|---|
| SIGINT or SIGTERM | the scenario is cancelled, its stage still opened and closed in order |
| a scenario fails | its stage is cleaned up, the error goes on; the report has those before |
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from duly.bench.catalog import Scenario
from duly.bench.machine import machine_facts
from duly.bench.stage import BenchOptions, Show, open_stage
from duly.environment import Environment
from duly.store.measure import read_server_settings


@dataclass
class ScenarioReport:
    machine: dict[str, Any] = field(default_factory=machine_facts)
    results: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {"machine": self.machine, "results": self.results}


@dataclass(frozen=True)
class Audience:
    """Who is told what is going on."""

    begin: Callable[[Scenario], Show]
    end: Callable[[dict[str, Any]], None]


class Interrupted(Exception):
    """Raised by Ctrl-C: report now; never leaves this module."""


class Interruption:
    """Cancels a scenario and nothing else: a server that is half started cannot be stopped."""

    def __init__(self) -> None:
        self.is_asked = False
        self.scenario: asyncio.Future[dict[str, Any]] | None = None

    def ask(self) -> None:
        """Once is enough, also for those who press Ctrl-C twice: cleaning up is under way."""
        if not self.is_asked and self.scenario is not None:
            self.scenario.cancel()
        self.is_asked = True

    async def guard(self, scenario: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        self.scenario = asyncio.ensure_future(scenario)
        if self.is_asked:
            self.scenario.cancel()
        try:
            return await self.scenario
        except asyncio.CancelledError:
            raise Interrupted from None
        finally:
            self.scenario = None


async def run_scenarios(
    scenarios: Sequence[Scenario],
    order: BenchOptions,
    environment: Environment,
    report: ScenarioReport,
    audience: Audience,
) -> bool:
    """Fills the report; False if it was interrupted."""
    interruption = Interruption()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, interruption.ask)
    for scenario in scenarios:
        tasks = order.tasks or (scenario.quick_size if order.is_quick else scenario.size)
        began_at = environment.clock.now()
        try:
            async with open_stage(tasks, order, environment, audience.begin(scenario)) as stage:
                if not report.machine["postgresql"]:
                    report.machine["postgresql"] = await read_server_settings(
                        stage.target.owner_url
                    )
                figures = await interruption.guard(scenario.load()(stage))
        except Interrupted:
            return False
        took_s = (environment.clock.now() - began_at).total_seconds()
        facts = {"scenario": scenario.name, "at": began_at.isoformat(), "took_s": round(took_s, 1)}
        report.results.append({**facts, "tasks": tasks, "backlog": 0, **figures})
        audience.end(report.results[-1])
    return True
