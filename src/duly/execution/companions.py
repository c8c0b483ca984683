"""The executor's other loops: what ended at once is settled, and what runs is kept alive, beside
the starting of more. The work itself is the executor's."""

from collections.abc import Callable, Coroutine
from typing import Any

from duly.execution.executor import Executor

# Settlements on their way at once: one alone would be busy for most of a drain, and what is left
# to it at the end is work for one core.
SETTLE_LOOPS = 2


class Companion:
    """A role of its own, because it must go on while the executor's ticks wait; whatever is held
    is the executor's to hand over."""

    def __init__(
        self, name: str, executor: Executor, tick: Callable[[], Coroutine[Any, Any, float]]
    ) -> None:
        self.name = name
        self.executor = executor
        self.tick = tick

    def stop_waiting(self) -> None:
        self.executor.stop_waiting()

    async def close(self) -> None:
        """The executor settles what is left, and releases what it holds."""


def companions_of(executor: Executor) -> list[Companion]:
    settling = Companion("settling", executor, executor.settle)
    return [*[settling] * SETTLE_LOOPS, Companion("heartbeat", executor, executor.beat)]
