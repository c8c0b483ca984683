"""The worker's log lines: structured, and in the style of the program that it is part of.

A program that configured structlog gets them through it; any other through `logging`, as
`event key=value`. Imported late: a program that only submits never pays for it.
"""

import logging
from typing import Any

NAME = "duly.worker"


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


def show_logs() -> None:
    """For a program that is only a worker and said nothing about logs: show them on stderr."""
    import structlog

    if not structlog.is_configured() and not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
