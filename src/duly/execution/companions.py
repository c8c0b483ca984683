"""The executor's other two loops: what ended at once is settled, and what runs is kept alive,
beside the starting of more. The work itself is the executor's."""

from collections.abc import Callable, Coroutine
from typing import Any

from duly.execution.executor import Executor


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
    return [
        Companion("settling", executor, executor.settle),
        Companion("heartbeat", executor, executor.beat),
    ]
