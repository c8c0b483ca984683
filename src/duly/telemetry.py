"""Logs and metrics: how a process tells what it does. No decision is ever taken here.

Logs are structured: readable on a terminal, one JSON object per line otherwise. Metrics live in a
registry that belongs to one application, so that two of them can share a process in a test.
"""

import logging
import sys
from bisect import bisect_left
from collections import Counter as CountedValues
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from duly import __version__

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Each tenant with a label of its own costs the collector memory for ever; the rest share one.
TENANT_LABELS_MAX = 200
OTHER_TENANTS = "(other)"
# For who may not know the tenants.
ALL_TENANTS = "(all)"
BACKLOG_STATES = ("ready", "scheduled")
BAND_NAMES = ("high", "normal", "low")
WAIT_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 1800.0, 3600.0, 21600.0),
)


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


class BulkHistogram:
    """A Prometheus histogram that takes batches: the library's own costs microseconds a value."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self.name = name
        self.documentation = documentation
        self.counts = [0] * (len(WAIT_BOUNDS_S) + 1)
        self.total_s = 0.0
        registry.register(self)

    def observe(self, value_s: float) -> None:
        self.observe_many((value_s,))

    def observe_same(self, value_s: float, count: int) -> None:
        self.counts[bisect_left(WAIT_BOUNDS_S, value_s)] += count
        self.total_s += value_s * count

    def observe_many(self, values_s: Iterable[float]) -> None:
        counts, total_s = self.counts, 0.0
        for value_s in values_s:
            counts[bisect_left(WAIT_BOUNDS_S, value_s)] += 1
            total_s += value_s
        self.total_s += total_s

    def collect(self) -> Iterator[HistogramMetricFamily]:
        bounds = [*(str(bound) for bound in WAIT_BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(self.counts), strict=True))
        yield HistogramMetricFamily(self.name, self.documentation, buckets, self.total_s)


class KnownGauge:
    """A gauge that is absent while its value is unknown: a zero would say that all is well."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self.name = name
        self.documentation = documentation
        self.read: Callable[[], float | None] = lambda: None
        registry.register(self)

    def set_function(self, read: Callable[[], float | None]) -> None:
        """Asked at every look; None is unknown."""
        self.read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self.name, self.documentation)
        value = self.read()
        if value is not None:
            family.add_metric([], value)
        yield family


class TenantGauge:
    """A number of each tenant and, where it has one, a second label. Others vanish when it is shown
    anew. Who may not know the tenants sees them merged into one."""

    def __init__(
        self,
        name: str,
        documentation: str,
        merge: Callable[[float, float], float],
        second: str | None = None,
        words: Sequence[str] = ("",),
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.merge = merge
        self.second = second
        self.words = words
        self.values: Mapping[tuple[str, int], float] = {}

    def show(self, values: Mapping[tuple[str, int], float]) -> None:
        self.values = with_bounded_tenants(values, self.merge)

    def clear(self) -> None:
        self.values = {}

    def family(self, *, with_tenants: bool) -> GaugeMetricFamily:
        labels = ["tenant"] if self.second is None else ["tenant", self.second]
        family = GaugeMetricFamily(self.name, self.documentation, labels=labels)
        values = self.values if with_tenants else self.together()
        for (tenant, number), value in values.items():
            family.add_metric([tenant, self.words[number]][: len(labels)], value)
        return family

    def together(self) -> dict[tuple[str, int], float]:
        merged: dict[tuple[str, int], float] = {}
        for (_, number), value in self.values.items():
            pair = (ALL_TENANTS, number)
            merged[pair] = self.merge(merged[pair], value) if pair in merged else value
        return merged


class Families(CollectorRegistry):
    """Those of one look."""

    def __init__(self, families: Iterable[GaugeMetricFamily]) -> None:
        super().__init__()
        self.families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self.families


def with_bounded_tenants(
    values: Mapping[tuple[str, int], float], merge: Callable[[float, float], float]
) -> dict[tuple[str, int], float]:
    """The tenants with the largest values as they are; the others merged into one, band by band."""
    worst: dict[str, float] = {}
    for (tenant, _), value in values.items():
        worst[tenant] = max(value, worst.get(tenant, value))
    ranked = sorted(worst, key=lambda tenant: (-worst[tenant], tenant))
    named = set(ranked[:TENANT_LABELS_MAX])
    bounded: dict[tuple[str, int], float] = {}
    for (tenant, band), value in values.items():
        pair = (tenant if tenant in named else OTHER_TENANTS, band)
        bounded[pair] = merge(bounded[pair], value) if pair in bounded else value
    return bounded


def add(first: float, second: float) -> float:
    return first + second


class Metrics:
    """The numbers of one application; each attribute is one Prometheus family."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("duly_build_info", "Version of duly.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        self.role_ticks = self.counter("duly_role_ticks_total", "Ticks that ended well.", "role")
        self.role_failures = self.counter("duly_role_failures_total", "Ticks that raised.", "role")
        self.role_failing = Gauge(
            "duly_role_failing",
            "Whether the role fails at its ticks, or has stopped ticking.",
            ["role"],
            registry=self.registry,
        )
        self.role_tick_seconds = Histogram(
            "duly_role_tick_seconds", "Time of one tick.", ["role"], registry=self.registry
        )
        self.make_flow_families()
        self.make_gauges()
        self.maintenance_runs = self.counter(
            "duly_maintenance_runs_total", "Housekeeping that ended well.", "service"
        )
        self.maintenance_failures = self.counter(
            "duly_maintenance_failures_total", "Housekeeping that raised.", "service"
        )
        self.maintenance_changes = self.counter(
            "duly_maintenance_changes_total",
            "Rows and tables that housekeeping changed.",
            "service",
        )

    def make_flow_families(self) -> None:
        """What tasks go through, in order; observed in batches by those who do it."""
        self.lag = BulkHistogram(
            "duly_scheduling_lag_seconds",
            "From the fire time of a task to the start of its first attempt.",
            self.registry,
        )
        self.time_in_ready = BulkHistogram(
            "duly_ready_seconds",
            "From the instant an attempt was due to its start, retries included.",
            self.registry,
        )
        self.run_time = BulkHistogram(
            "duly_run_seconds", "From the start of an attempt to its settlement.", self.registry
        )
        self.dispatched = Counter(
            "duly_dispatched_total",
            "Attempts offered to consumers: tickets put into lanes, each attempt once.",
            registry=self.registry,
        )
        self.republished = Counter(
            "duly_republished_total",
            "Tickets put into lanes again, because nobody took the first in time.",
            registry=self.registry,
        )
        self.dead_letters = self.counter(
            "duly_dead_letters_total", "Tasks that failed for good, by reason.", "reason"
        )
        self.refused = self.counter(
            "duly_refused_total", "Due tasks held back, by the gate that did.", "gate"
        )
        self.settled = self.counter("duly_settled_total", "Attempts ended.", "outcome")
        self.leases_lost = Counter(
            "duly_leases_lost_total",
            "Leases whose holder was not heard of in time.",
            registry=self.registry,
        )

        self.occurrences = self.counter(
            "duly_occurrences_total", "Occurrences of schedules, by their verdict.", "verdict"
        )
        self.schedules_rearmed = Counter(
            "duly_schedules_rearmed_total",
            "Schedules whose next instant had to be reckoned anew.",
            registry=self.registry,
        )

    def make_gauges(self) -> None:
        self.oldest_ready = TenantGauge(
            "duly_oldest_ready_seconds",
            "How long the oldest due and unleased task has waited; delayed tasks never count.",
            max,
            "band",
            BAND_NAMES,
        )
        self.lane_depth = TenantGauge(
            "duly_lane_depth", "Tickets in lanes that nobody took yet.", add, "band", BAND_NAMES
        )
        self.backlog = TenantGauge(
            "duly_backlog",
            "Tasks that wait, by state; counting stops at 10,000 of a tenant and state.",
            add,
            "state",
            BACKLOG_STATES,
        )
        self.in_flight = TenantGauge("duly_in_flight", "Attempts that run: leases.", add)
        self.tenant_gauges = (self.oldest_ready, self.lane_depth, self.backlog, self.in_flight)
        self.slots_without_owner = KnownGauge(
            "duly_slots_without_owner", "Slots for which nobody dispatches.", self.registry
        )

    def counter(self, name: str, documentation: str, label: str) -> Counter:
        return Counter(name, documentation, [label], registry=self.registry)

    def show_failing_roles(self, problems: Mapping[str, str | None]) -> None:
        for role, problem in problems.items():
            self.role_failing.labels(role).set(0 if problem is None else 1)

    def show_oldest_ready(self, ages_s: Mapping[tuple[str, int], float]) -> None:
        """All pairs of (tenant, band) that have ready work."""
        self.oldest_ready.show(ages_s)

    def show_lane_depth(self, depths: Mapping[tuple[str, int], float]) -> None:
        """All pairs of (tenant, band) with tickets, pools added up."""
        self.lane_depth.show(depths)

    def show_backlog(self, counts: Mapping[tuple[str, int], float]) -> None:
        """All pairs of (tenant, number of the state) with tasks."""
        self.backlog.show(counts)

    def show_in_flight(self, counts: Mapping[str, int]) -> None:
        self.in_flight.show({(tenant, 0): float(count) for tenant, count in counts.items()})

    def count_dead_letters(self, reasons: Iterable[str | None]) -> None:
        """None ended otherwise."""
        for reason, count in CountedValues(reasons).items():
            if reason is not None:
                self.dead_letters.labels(reason).inc(count)

    def forget_installation(self) -> None:
        """This process no longer measures the installation: an old number would stand for ever."""
        for gauge in (self.oldest_ready, self.backlog, self.in_flight):
            gauge.clear()

    def render(self, *, with_tenants: bool = True) -> bytes:
        families = [gauge.family(with_tenants=with_tenants) for gauge in self.tenant_gauges]
        return generate_latest(self.registry) + generate_latest(Families(families))
