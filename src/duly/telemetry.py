"""Logs and metrics: how a process tells what it does. No decision is ever taken here.

Logs are structured: readable on a terminal, one JSON object per line otherwise. Metrics live in a
registry that belongs to one application, so that two of them can share a process in a test.
"""

import logging
import sys
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from duly import __version__

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def configure_logs(level: str, style: Literal["auto", "text", "json"]) -> None:
    """Send every log line, also those of libraries, to standard error in one style."""
    readable = style == "text" or (style == "auto" and sys.stderr.isatty())
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        stamp,
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if readable
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Once per request, and nothing that the metrics and our own lines do not say.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").setLevel("WARNING")


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger


class Metrics:
    """The numbers of one application; each attribute is one Prometheus family."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("duly_build_info", "Version of duly.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        self.role_ticks = Counter(
            "duly_role_ticks_total", "Ticks that ended well.", ["role"], registry=self.registry
        )
        self.role_failures = Counter(
            "duly_role_failures_total", "Ticks that raised.", ["role"], registry=self.registry
        )
        self.role_tick_seconds = Histogram(
            "duly_role_tick_seconds", "Time of one tick.", ["role"], registry=self.registry
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)
