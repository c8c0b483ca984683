"""Two databases on one server, measured in turn: a bare one, and one that is full or pinned.

Each turn of the one stands beside a turn of the other, and who goes first changes, so that a
machine that warms up or slows down favours neither.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from duly.bench.drive import submit_and_settle, submit_then_drain
from duly.bench.figures import Figures, Meter, mean_rate, series
from duly.bench.stage import PAYLOAD, TENANT, ScenarioContext
from duly.store.measure import fill_waiting, pinned_xmin, read_task_bytes

WAITING = 5_000_000
WAITING_QUICK = 200_000
TURNS = 6
TURNS_QUICK = 2
TURNS_PINNED = 10
TURNS_PINNED_QUICK = 2
WARM_UP_TASKS = 1_000

Measured = TypeVar("Measured")


async def in_turn(
    bare: ScenarioContext,
    other: ScenarioContext,
    turns: int,
    measure: Callable[[ScenarioContext], Awaitable[Measured]],
) -> tuple[list[Measured], list[Measured]]:
    measured: dict[int, list[Measured]] = {0: [], 1: []}
    for turn in range(turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            measured[which].append(await measure((bare, other)[which]))
    return measured[0], measured[1]


async def warm_up(*stages: ScenarioContext) -> None:
    for stage in stages:
        await submit_then_drain(stage, min(WARM_UP_TASKS, stage.tasks))


async def run_waiting(stage: ScenarioContext) -> Figures:
    waiting = stage.order.waiting or (WAITING_QUICK if stage.order.is_quick else WAITING)
    turns = TURNS_QUICK if stage.order.is_quick else TURNS
    async with stage.beside("full") as full:
        empty_bytes = await read_task_bytes(full.target.owner_url)
        await fill_waiting(
            full.target.owner_url, TENANT, PAYLOAD, waiting, lambda done: stage.show(done, waiting)
        )
        filled_bytes = await read_task_bytes(full.target.owner_url)
        await warm_up(stage, full)
        before, after = await in_turn(
            stage, full, turns, lambda each: submit_then_drain(each, stage.tasks)
        )
    submit_empty, drain_empty = (mean_rate([pair[n] for pair in before]) for n in (0, 1))
    submit_full, drain_full = (mean_rate([pair[n] for pair in after]) for n in (0, 1))
    return {
        "tasks_per_s": drain_full,
        "submit_tasks_per_s": submit_full,
        "empty_tasks_per_s": drain_empty,
        "empty_submit_tasks_per_s": submit_empty,
        "drain_ratio": drain_full / drain_empty,
        "submit_ratio": submit_full / submit_empty,
        "bytes_per_waiting_task": (filled_bytes - empty_bytes) / waiting,
        "series": joined([pair[1] for pair in after]),
        "backlog": waiting,
    }


async def run_pinned_xmin(stage: ScenarioContext) -> Figures:
    """The snapshot stays open over all turns, so that what dies piles up and a fall would show."""
    turns = TURNS_PINNED_QUICK if stage.order.is_quick else TURNS_PINNED
    tasks = max(stage.tasks // turns, 1)
    async with stage.beside("pinned") as other:
        await warm_up(stage, other)
        async with pinned_xmin(other.target.owner_url):
            free, pinned = await in_turn(
                stage, other, turns, lambda each: submit_and_settle(each, tasks)
            )
    rate, free_rate = mean_rate(pinned), mean_rate(free)
    return {
        "tasks_per_s": rate,
        "free_tasks_per_s": free_rate,
        "ratio": rate / free_rate,
        "turns_tasks_per_s": [round(meter.rate) for meter in pinned],
        "free_turns_tasks_per_s": [round(meter.rate) for meter in free],
        "series": joined(pinned),
    }


def joined(meters: list[Meter]) -> Figures:
    """One after the other, without what lay between them."""
    buckets = [count for meter in meters for count in meter.buckets]
    return series(buckets, sum(meter.passed_s for meter in meters))
