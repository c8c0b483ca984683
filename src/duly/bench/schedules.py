"""Schedule scenarios: what schedules cost besides firing: to define them over HTTP, and to reckon
when they are due."""

from datetime import timedelta

import msgspec

from duly.bench.children import duly_up
from duly.bench.figures import Figures
from duly.bench.over_http import Caller, many_callers
from duly.bench.stage import ScenarioContext

CALLERS = 8
ZONE = "Europe/Berlin"
YEAR = timedelta(days=365)
# A daily one, one by office hours, the end of the month, a rhythm, and one with seconds.
EXPRESSIONS = (
    "30 2 * * *",
    "*/15 9-17 * * MON-FRI",
    "0 0 L * *",
    "*/5 * * * *",
    "20 0 6 * * *",
)


async def run_create_schedules(stage: ScenarioContext) -> Figures:
    async def ask(caller: Caller, number: int) -> None:
        await caller.ask("POST", "/v1/schedules", definition(f"measured {number}", number))

    async def warm_up(caller: Caller, number: int) -> None:
        await caller.ask("POST", "/v1/schedules", definition(f"before {number}", number))

    async with duly_up(stage) as running:
        await many_callers(stage, running, CALLERS, stage.tasks // 10, warm_up)
        asked = await many_callers(stage, running, CALLERS, stage.tasks, ask)
    return {**asked.figures(), "all_created_s": asked.meter.passed_s}


def definition(name: str, number: int) -> bytes:
    """Each at a minute of the day, as people define them."""
    return msgspec.json.encode(
        {
            "name": name,
            "cron": f"{number % 60} {number // 60 % 24} * * *",
            "timezone": ZONE,
            "task": {"type": "bench.noop", "payload": {"data": "x" * 180}},
            "overlap": "skip",
        }
    )
