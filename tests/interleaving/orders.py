"""Every order of the steps of two calls: one order is played, then the next, until none is left.

An order is a list of choices. A side that waits for the other's lock is seen waiting in the server,
never guessed by the clock, and then only the other side can move.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import asyncpg

from duly.store.database import Database
from tests.interleaving.steps import STEPS, Mood, Step, SteppedDatabase

Call = Callable[[Database], Awaitable[str]]
ORDERS_MAX = 3000
SETTLE_DOWN_S = 10.0
WAITS_FOR = "SELECT $2::integer = ANY (pg_blocking_pids($1::integer))"


@dataclass
class Order:
    """Choices to repeat, then the first of whatever is possible; and what was possible."""

    chosen: list[int] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    waits: int = 0

    def choose(self, options: list[tuple[SteppedDatabase, Step]]) -> tuple[SteppedDatabase, Step]:
        position = len(self.taken)
        index = self.chosen[position] if position < len(self.chosen) else 0
        self.taken.append((index, len(options)))
        side, step = options[index]
        self.story.append(f"{side.name} {step}")
        return side, step

    def following(self) -> "Order | None":
        """The next order in depth-first succession; None after the last."""
        taken = list(self.taken)
        while taken:
            index, count = taken.pop()
            if index + 1 < count:
                return Order([earlier for earlier, _ in taken] + [index + 1])
        return None


async def play_every_order(play: Callable[[Order], Awaitable[None]]) -> int:
    """How many orders there were. A failing one tells its story."""
    order: Order | None = Order()
    for played in range(ORDERS_MAX):
        if order is None:
            return played
        try:
            await play(order)
        except BaseException as error:
            error.add_note("in this order: " + ", ".join(order.story))
            raise
        order = order.following()
    raise AssertionError(f"more than {ORDERS_MAX} orders: give the calls fewer statements")


class Race:
    """Two sessions and an observer, used for one order after another."""

    def __init__(self, url: str, connections: list[asyncpg.Connection]) -> None:
        left, right, self.observer = connections
        self.changed = asyncio.Event()
        self.sides = (
            SteppedDatabase("left", url, left, self.changed),
            SteppedDatabase("right", url, right, self.changed),
        )

    async def run(self, order: Order, left: Call, right: Call) -> tuple[str, str]:
        for side in self.sides:
            side.become(Mood.WORKING)
        calls = zip(self.sides, (left, right), strict=True)
        tasks = [asyncio.create_task(side.perform(call)) for side, call in calls]
        try:
            while True:
                order.waits += await self.settle_down()
                if all(side.mood is Mood.DONE for side in self.sides):
                    break
                side, step = order.choose(self.options())
                side.go(step)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return tasks[0].result(), tasks[1].result()

    def options(self) -> list[tuple[SteppedDatabase, Step]]:
        return [(side, step) for side in self.sides for step in STEPS.get(side.mood, ())]

    async def settle_down(self) -> int:
        """Until nobody works, or the one who does waits for the other's lock: 0 or 1."""
        async with asyncio.timeout(SETTLE_DOWN_S):
            while True:
                self.changed.clear()
                working = [side for side in self.sides if side.mood is Mood.WORKING]
                still = [side for side in self.sides if side.is_open and side not in working]
                if not working:
                    return 0
                if len(working) == 1 and still:
                    pids = working[0].pid, still[0].pid
                    is_waiting = await self.observer.fetchval(WAITS_FOR, *pids)
                    if is_waiting and working[0].mood is Mood.WORKING:
                        return 1
                else:
                    await self.changed.wait()
