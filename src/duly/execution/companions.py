"""The executor's other two loops: what ended at once is settled, and what runs is kept alive,
beside the starting of more. The work itself is the executor's."""

from duly.execution.executor import Executor


class Settling:
    """The executor's second role: what ended at once is settled beside the starting of more."""

    name = "settling"

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    async def tick(self) -> float:
        return await self.executor.settle()

    def stop_waiting(self) -> None:
        self.executor.stop_waiting()

    async def close(self) -> None:
        """The executor settles what is left."""


class Heartbeat:
    """The executor's third role: its leases must live on while its ticks wait for work."""

    name = "heartbeat"

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    async def tick(self) -> float:
        return await self.executor.beat()

    async def close(self) -> None:
        """The executor releases what it holds."""
