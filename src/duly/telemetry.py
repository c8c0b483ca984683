"""Telemetry: Prometheus metrics; logs are in logs.py. No decision is taken here.

They live in a registry that belongs to one application, so that two of them can share a process in
a test.
"""

from collections import Counter as CountedValues
from collections.abc import Collection, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.exposition import choose_encoder

from duly import __version__
from duly.logs import configure_logs as configure_logs
from duly.logs import get_logger as get_logger
from duly.metric_families import (
    CALL_BOUNDS_S,
    SIZE_BOUNDS,
    Counts,
    Families,
    Histogram,
    Histograms,
    PoolGauge,
    ReadGauge,
    TenantGauge,
    add,
)

BACKLOG_STATES = ("ready", "scheduled")
BAND_NAMES = ("high", "normal", "low")
TERMINAL_STATES = ("COMPLETED", "FAILED", "CANCELLED")
FAILURE_REASONS = (
    "exhausted",
    "rejected",
    "non_retryable",
    "expired",
    "poison",
    "items_failed",
    "invalid_items",
)
ALL_ROLES = ("api", "scheduler", "executor", "maintenance")


class Metrics:
    """The numbers of one process; each attribute is one Prometheus family.

    A family is exported by processes with a role that knows it: a counter that could never move
    would say 0 for something that nothing here looks at.
    """

    def __init__(self, roles: Collection[str] = ALL_ROLES) -> None:
        self.roles = frozenset(roles)
        self.registry = CollectorRegistry()
        build = Gauge("duly_build_info", "Version of duly.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)
        ProcessCollector(registry=self.registry)
        self.make_role_families()
        self.make_task_families()
        self.make_dispatch_families()
        self.make_workflow_families()
        self.make_server_families()
        self.make_tenant_gauges()

    def known_to(self, *roles: str) -> CollectorRegistry | None:
        """The registry, in processes with one of these roles."""
        return self.registry if self.roles.intersection(roles) else None

    def make_role_families(self) -> None:
        """What every process knows of itself, and of who owns what."""
        self.role_ticks = self.counter("duly_role_ticks_total", "Ticks that succeeded.", "role")
        self.role_failures = self.counter("duly_role_failures_total", "Ticks that raised.", "role")
        self.role_failing = Gauge(
            "duly_role_failing",
            "Whether the role fails at its ticks, or has stopped ticking.",
            ["role"],
            registry=self.registry,
        )
        self.role_tick_seconds = ClientHistogram(
            "duly_role_tick_seconds", "Time of one tick.", ["role"], registry=self.registry
        )
        self.slots_without_owner = ReadGauge(
            "duly_slots_without_owner", "Slots that no scheduler owns.", self.registry
        )
        self.slots_owned = ReadGauge(
            "duly_slots_owned", "Slots that this process owns.", self.known_to("scheduler")
        )
        self.singleton_role_leader = ReadGauge(
            "duly_singleton_role_leader",
            "Whether this process leads a role that one process of the installation has.",
            self.known_to("maintenance"),
            ["role"],
        )
        self.singleton_role_without_leader = ReadGauge(
            "duly_singleton_role_without_leader",
            "Whether no process leads that role.",
            self.registry,
            ["role"],
        )
        maintenance = self.known_to("maintenance")
        self.maintenance_runs = Counts(
            "duly_maintenance_runs_total",
            "Runs of maintenance services that succeeded.",
            maintenance,
            ["service"],
        )
        self.maintenance_failures = Counts(
            "duly_maintenance_failures_total",
            "Runs of maintenance services that raised.",
            maintenance,
            ["service"],
        )
        self.maintenance_changes = Counts(
            "duly_maintenance_changes_total",
            "Rows and tables changed by maintenance services.",
            maintenance,
            ["service"],
        )

    def make_task_families(self) -> None:
        """What tasks go through, in order; observed in batches by the component that does it."""
        storing = self.known_to("api", "scheduler")
        leasing = self.known_to("api", "executor")
        ending = self.known_to("api", "executor", "scheduler")
        self.submitted = Counts(
            "duly_tasks_submitted_total", "Tasks stored, by callers and schedules.", storing
        )
        self.started = Counts(
            "duly_attempts_started_total", "Attempts leased.", leasing, ["band"], BAND_NAMES
        )
        self.lag = Histograms(
            "duly_scheduling_lag_seconds",
            "From the fire time of a task to the start of its first attempt.",
            leasing,
            ["band"],
            known=BAND_NAMES,
        )
        self.ready_wait = Histograms(
            "duly_ready_wait_seconds",
            "From the instant an attempt was due to its start, retries included.",
            leasing,
            ["band"],
            known=BAND_NAMES,
        )
        self.run_time = Histogram(
            "duly_attempt_run_seconds",
            "From the start of an attempt to its settlement.",
            leasing,
        )
        self.webhook_time = Histograms(
            "duly_webhook_request_seconds",
            "From the start of a webhook request to its whole answer, or its failure.",
            self.known_to("executor"),
            ["result"],
            CALL_BOUNDS_S,
        )
        self.attempts_ended = Counts(
            "duly_attempts_ended_total", "Attempts ended, by outcome.", ending, ["outcome"]
        )
        self.tasks_ended = Counts(
            "duly_tasks_ended_total",
            "Tasks ended, by terminal state.",
            ending,
            ["state"],
            TERMINAL_STATES,
        )
        self.dead_letters = Counts(
            "duly_dead_letters_total",
            "Tasks that failed for good, by reason.",
            ending,
            ["reason"],
            FAILURE_REASONS,
        )

    def make_dispatch_families(self) -> None:
        """Of a scheduler: loading, dispatch, leases that ran out, schedules."""
        scheduler = self.known_to("scheduler")
        self.dispatched = Counts(
            "duly_dispatched_total",
            "Attempts offered to consumers: tickets put into lanes, each attempt once.",
            scheduler,
        )
        self.republished = Counts(
            "duly_republished_total",
            "Tickets put into lanes again, because no consumer took the first in time.",
            scheduler,
        )
        self.refused = Counts(
            "duly_refused_total", "Due tasks held back, by the gate that did.", scheduler, ["gate"]
        )
        self.leases_lost = Counts(
            "duly_leases_lost_total",
            "Leases that ran out without a heartbeat or settlement.",
            scheduler,
        )
        self.timers_in_memory = ReadGauge(
            "duly_timers_in_memory",
            "Timers that this scheduler has loaded: in the wheel, or due and not dispatched.",
            scheduler,
            ["state"],
        )
        self.loader_lag = ReadGauge(
            "duly_loader_lag_seconds",
            "How long the oldest timer queue that should have been loaded has waited for it.",
            scheduler,
        )
        self.occurrences = Counts(
            "duly_occurrences_total",
            "Occurrences of schedules, by verdict.",
            scheduler,
            ["verdict"],
        )
        self.occurrence_lateness = Histogram(
            "duly_occurrence_late_seconds",
            "From the nominal time of an occurrence to the instant at which it was decided.",
            scheduler,
        )
        self.schedules_rearmed = Counts(
            "duly_schedules_rearmed_total",
            "Schedules whose next fire time was computed again.",
            scheduler,
        )

    def make_workflow_families(self) -> None:
        """Of the installation, counted by its maintenance leader."""
        maintenance = self.known_to("maintenance")
        self.workflows_started = Counts(
            "duly_workflows_started_total",
            "Workflows started, by callers, schedules and other workflows.",
            maintenance,
        )
        self.workflows_ended = Counts(
            "duly_workflows_ended_total", "Workflows ended, by their state.", maintenance, ["state"]
        )
        self.workflows = ReadGauge(
            "duly_workflows",
            "Workflows that have not ended; counting stops at 10,000.",
            maintenance,
            ["state"],
        )
        self.workflow_nodes = ReadGauge(
            "duly_workflow_nodes_live",
            "Nodes of these workflows that have not ended.",
            maintenance,
        )
        self.workflow_timers = ReadGauge(
            "duly_workflow_timers",
            "What workflows wait for or have to do, by kind; counting stops at 10,000.",
            maintenance,
            ["kind"],
        )
        self.workflow_timers_failing = ReadGauge(
            "duly_workflow_timers_failing",
            "What workflows have to do and was tried in vain.",
            maintenance,
        )
        self.workflow_overdue = ReadGauge(
            "duly_workflow_overdue_seconds",
            "How long what workflows have had to do longest waits for its scheduler.",
            maintenance,
        )

    def make_server_families(self) -> None:
        """HTTP, database, carrier."""
        self.http_requests = Counts(
            "duly_http_requests_total",
            "HTTP requests answered.",
            self.registry,
            ["method", "route", "status"],
        )
        self.http_time = Histograms(
            "duly_http_request_seconds",
            "From the head of an HTTP request to its answer; waits that were asked for included.",
            self.registry,
            ["route"],
            CALL_BOUNDS_S,
        )
        self.database_connections = ReadGauge(
            "duly_database_connections",
            "Connections of a pool, by state.",
            self.registry,
            ["pool", "state"],
        )
        self.database_waiting = ReadGauge(
            "duly_database_waiting",
            "Statements and transactions that wait for a connection.",
            self.registry,
            ["pool"],
        )
        self.statement_time = Histograms(
            "duly_database_statement_seconds",
            "Time of one statement in a transaction of its own, with the wait for a connection.",
            self.registry,
            ["pool"],
            CALL_BOUNDS_S,
        )
        self.batch_sizes = Histograms(
            "duly_batch_size",
            "Calls that share one statement, by kind of call.",
            self.registry,
            ["batch"],
            SIZE_BOUNDS,
        )
        self.event_failures = Counts(
            "duly_event_listener_failures_total",
            "Listeners that raised when they were called with a task event.",
            self.registry,
            ["event"],
        )
        self.carrier_up = ReadGauge(
            "duly_carrier_up",
            "Whether the carrier of the ready queue takes tickets.",
            self.registry,
        )

    def make_tenant_gauges(self) -> None:
        """Of the installation; known to its maintenance leader, lane depths to each scheduler."""
        self.oldest_ready = TenantGauge(
            "duly_oldest_ready_seconds",
            "How long the oldest due and unleased task has waited; delayed tasks never count.",
            max,
            "band",
            BAND_NAMES,
        )
        self.lane_depth = TenantGauge(
            "duly_lane_depth",
            "Tickets in lanes that no consumer took yet.",
            add,
            "band",
            BAND_NAMES,
        )
        self.backlog = TenantGauge(
            "duly_backlog",
            "Tasks that wait, by state; counting stops at 10,000 of a tenant and state.",
            add,
            "state",
            BACKLOG_STATES,
        )
        self.in_flight = TenantGauge("duly_in_flight", "Attempts that run: leases.", add)
        self.pool_ready = PoolGauge(
            "duly_pool_ready",
            "Ready tasks of a pool; counting stops at 1,000 of each shard and band.",
        )
        self.workers = PoolGauge("duly_workers", "Workers that live, by pool.")
        self.tenant_gauges = (
            self.oldest_ready,
            self.lane_depth,
            self.backlog,
            self.in_flight,
            self.pool_ready,
            self.workers,
        )
        maintenance = self.known_to("maintenance")
        self.breakers = ReadGauge(
            "duly_breakers_open", "Circuit breakers that are open.", maintenance, ["kind"]
        )
        self.schedules = ReadGauge("duly_schedules", "Schedules, by state.", maintenance, ["state"])
        self.schedule_overdue = ReadGauge(
            "duly_schedule_overdue_seconds",
            "How long the occurrence that is due longest has not been decided.",
            maintenance,
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
                self.dead_letters.add(count, reason)

    def forget_installation(self) -> None:
        """This process no longer measures the installation: an old number would stand for ever."""
        for gauge in (
            self.oldest_ready,
            self.backlog,
            self.in_flight,
            self.pool_ready,
            self.workers,
        ):
            gauge.clear()
        for reading in (
            *(self.breakers, self.schedules, self.schedule_overdue, self.workflows),
            *(self.workflow_nodes, self.workflow_timers, self.workflow_timers_failing),
            self.workflow_overdue,
        ):
            reading.set(None)

    def render(self, *, with_tenants: bool = True) -> bytes:
        """In Prometheus' text format."""
        return self.scrape(with_tenants=with_tenants)[0]

    def scrape(self, *, with_tenants: bool = True, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics if the scraper accepts it."""
        encode, content_type = choose_encoder(accept)
        tenants = [gauge.family(with_tenants=with_tenants) for gauge in self.tenant_gauges]
        return encode(Families([*self.registry.collect(), *tenants])), content_type
