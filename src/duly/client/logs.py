"""The worker's log lines: structured, and in the style of the program that it is part of.

A program that configured structlog gets them through it; any other through `logging`, as
`event key=value`. Imported late: a program that only submits never pays for it.
"""

import logging
from typing import Any

from duly.client.clock import monotonic
from duly.client.leased_tasks import LeasedTask

NAME = "duly.worker"
LINES_PER_S_MAX = 10


def get_logger() -> Any:
    import structlog

    if structlog.is_configured():
        return structlog.get_logger(NAME)
    return structlog.wrap_logger(
        logging.getLogger(NAME),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )


class CompletionLog:
    """A line for each completed attempt; of more than so many in a second, one for the others."""

    def __init__(self) -> None:
        self.log = get_logger()
        self.second = 0
        self.count = 0

    def add(self, task: LeasedTask, run_s: float) -> None:
        second = int(monotonic())
        if second != self.second:
            self.sum_up()
            self.second = second
        self.count += 1
        if self.count <= LINES_PER_S_MAX:
            self.log.info(
                "attempt completed",
                task_id=task.id,
                type=task.type,
                attempt=task.attempt,
                fence=task.fence,
                run_s=round(run_s, 3),
            )

    def sum_up(self) -> None:
        if self.count > LINES_PER_S_MAX:
            self.log.info("more attempts completed", count=self.count - LINES_PER_S_MAX)
        self.count = 0


def show_logs() -> None:
    """For a program that is only a worker and said nothing about logs: show them on stderr."""
    import structlog

    if not structlog.is_configured() and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
