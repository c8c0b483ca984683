"""Every scenario that `duly bench` knows. Imports none of them, so that help stays quick.

A new one is a function `run_<name>(stage) -> figures` in a module of this package, and a line here.
What measures a part from inside, without a user in sight, belongs to `benchmarks/` of a checkout.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.bench.stage import ScenarioContext

    Run = Callable[["ScenarioContext"], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Scenario:
    name: str
    module: str
    # How many tasks (or rounds), and how many with --quick.
    size: int
    quick_size: int
    # What is measured, in a line.
    what: str
    # Run when none is named.
    is_usual: bool = False

    def load(self) -> "Run":
        module = importlib.import_module(self.module)
        run: Run = getattr(module, "run_" + self.name.replace("-", "_"))
        return run


USUAL = (
    ("submit-single", "over_http", 40_000, 5_000, "one task a call over HTTP, from 64 callers"),
    ("submit-batch", "over_http", 200_000, 20_000, "batches of 500 over HTTP, from 4 callers"),
    ("end-to-end", "throughput", 200_000, 40_000, "submitted and settled at once, in one process"),
    ("end-to-end-http", "over_http", 50_000, 10_000, "the same over HTTP, run by an SDK worker"),
    ("drain", "throughput", 200_000, 60_000, "a backlog from before the start, worked off"),
    ("webhook", "webhook", 20_000, 5_000, "signed, sent to a receiver, answered, settled"),
    ("lone", "latency", 1_000, 300, "submit to handler start, one task at a time"),
    ("lone-http", "over_http", 500, 100, "the same over HTTP, to the start of an SDK handler"),
    ("herd", "latency", 2_000, 2_000, "start minus fire time of tasks on one instant"),
    ("skew", "latency", 5_000, 2_000, "start minus fire time, 500 a second at random instants"),
    ("waiting", "contrast", 50_000, 10_000, "submit and drain beside millions that wait"),
    ("noisy", "latency", 1_000, 200, "a tenant's wait beside one that submits 50 times as much"),
    ("cron-herd", "cron_herd", 20_000, 400, "schedules due at once, among many that are not"),
    ("pinned-xmin", "contrast", 200_000, 20_000, "end to end while vacuum may remove nothing"),
)
FURTHER = (
    ("growth", "growth", 20_000, 5_000, "submit, drain, skew and bytes as tasks and tenants grow"),
    ("workflow-chain", "workflows", 200, 40, "a chain of 40 nodes, one after another"),
    ("workflow-fan", "workflows", 9_998, 1_000, "one node, thousands after it, and their join"),
    ("workflow-diamonds", "workflows", 40_000, 4_000, "diamonds of 4 nodes, as many as go"),
    ("workflow-chain-http", "workflows_http", 800, 80, "chains of 40 with an SDK worker"),
    ("workflow-fan-http", "workflows_http", 1_000, 1_000, "one node, so many, and their join"),
    ("workflow-diamonds-http", "workflows_http", 4_000, 400, "diamonds from 64 callers"),
    ("workflow-pause", "workflows", 10_000, 1_000, "pause and unpause of a large workflow"),
    ("workflow-resume", "maps", 100_000, 5_000, "a map of which 1 % failed, resumed"),
    ("workflow-signal", "signals", 300, 50, "a signal to the start of the handler behind it"),
    ("workflow-signal-http", "signals", 200, 30, "the same over HTTP, with an SDK worker"),
    ("workflow-pause", "pauses", 20, 3, "pause of a workflow with 10,000 tasks that are due"),
    ("weights", "throughput", 40_000, 20_000, "share of a tenant with weight 3 beside weight 1"),
    ("workflow-map", "maps", 100_000, 10_000, "a task for each number, beside another tenant"),
    ("read", "over_http", 40_000, 5_000, "GET of a task over HTTP, from 64 callers"),
    ("client", "over_http", 50_000, 10_000, "single submits through the SDK, which batches them"),
    ("create-schedules", "schedules", 10_000, 1_000, "one schedule a call over HTTP, 8 callers"),
    ("hand-over", "cluster", 10, 3, "SIGTERM to one of two processes until the other owns all"),
    ("take-over", "cluster", 5, 1, "the same from kill -9"),
    ("reclaim", "reclaim", 100, 20, "kill -9 of a worker until its tasks start elsewhere"),
)


def scenario_of(
    name: str, module: str, size: int, quick_size: int, what: str, *, is_usual: bool
) -> Scenario:
    return Scenario(name, f"duly.bench.{module}", size, quick_size, what, is_usual)


SCENARIOS = {facts[0]: scenario_of(*facts, is_usual=True) for facts in USUAL} | {
    facts[0]: scenario_of(*facts, is_usual=False) for facts in FURTHER
}
