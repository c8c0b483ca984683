"""The maintenance role: while this process owns it, housekeeping services take turns.

| event | what happens |
|---|---|
| not the owner | nothing is run and no statement is issued |
| ownership is lost during a run | that run ends by itself: every service is safe to run twice |
| a service raises or hangs | logged, counted, tried again later, longer each time; others go on |
| a service has more to do | it comes back soon, after those whose turn it is |
| ownership comes back | every service starts anew, with nothing remembered |
"""

import asyncio
from collections.abc import Callable, Sequence

from duly.backoff import backoff_s
from duly.environment import Environment
from duly.maintenance.backlog import Backlog
from duly.maintenance.expired_rows import make_expired_rows
from duly.maintenance.installation_counts import InstallationCounts
from duly.maintenance.notifications import NotificationBounds, NotificationDelivery
from duly.maintenance.partitions import Partitions
from duly.maintenance.pinned_partitions import PinnedPartitions
from duly.maintenance.ready_queues import ReadyQueues
from duly.maintenance.service import Report, Service
from duly.maintenance.workflow_counts import WorkflowFigures
from duly.store.database import Database
from duly.store.partitions import RETENTION_S
from duly.store.submit import Submitter
from duly.store.task_logs import RETENTION_S as LOG_RETENTION_S
from duly.telemetry import Metrics, get_logger

OWNER_POLL_S = 5.0
# Between two runs, so that a backlog never takes a connection all to itself.
SPACING_S = 0.25
# Between the first runs: a new owner would otherwise ask everything in its first seconds.
FIRST_SPACING_S = 1.0
MORE_S = 1.0
RETRY_FIRST_S = 5.0
RETRY_MAX_S = 300.0
# Below the limit of a tick, so that a hanging service is known by its name.
SERVICE_TIMEOUT_S = 45.0

log = get_logger("duly.maintenance")


def make_services(
    database: Database,
    metrics: Metrics,
    submitter: Submitter,
    retention_s: float = RETENTION_S,
    log_retention_s: float = LOG_RETENTION_S,
) -> list[Service]:
    """Every service, the urgent first."""
    partitions = Partitions(database, retention_s)
    return [
        partitions,
        NotificationDelivery(database, submitter),
        NotificationBounds(database),
        ReadyQueues(database, metrics),
        Backlog(database, metrics),
        InstallationCounts(database, metrics),
        WorkflowFigures(database, metrics),
        PinnedPartitions(database, lambda: partitions.pinned, retention_s),
        *make_expired_rows(database, retention_s, log_retention_s),
    ]


class Turn:
    """When a service is wanted next, by the monotonic clock."""

    def __init__(self, service: Service, due: float) -> None:
        self.service = service
        self.due = due
        self.failures_in_a_row = 0

    def retry_s(self) -> float:
        return backoff_s(self.failures_in_a_row, RETRY_FIRST_S, RETRY_MAX_S)


class Maintenance:
    name = "maintenance"

    def __init__(
        self,
        environment: Environment,
        metrics: Metrics,
        is_owner: Callable[[], bool],
        make: Callable[[], Sequence[Service]],
    ) -> None:
        self.environment = environment
        self.metrics = metrics
        self.is_owner = is_owner
        self.make = make
        self.turns: list[Turn] = []

    async def tick(self) -> float:
        """At most one service; answers when the next one is wanted."""
        if not self.is_owner():
            self.step_down()
            return OWNER_POLL_S
        now = self.environment.clock.monotonic()
        if not self.turns:
            self.turns = [
                Turn(service, now + position * FIRST_SPACING_S)
                for position, service in enumerate(self.make())
            ]
        # The first of equals: the list is in order of urgency.
        turn = min(self.turns, key=lambda each: each.due)
        if turn.due <= now:
            await self.take(turn)
        return self.pause_s()

    def pause_s(self) -> float:
        """No longer than the wait of one who may become the owner: this one may cease to be it."""
        wait_s = min(turn.due for turn in self.turns) - self.environment.clock.monotonic()
        return min(max(wait_s, SPACING_S), OWNER_POLL_S)

    async def take(self, turn: Turn) -> None:
        """Run one service; whatever happens to it, it is not the next one at once."""
        service = turn.service
        turn.failures_in_a_row += 1
        turn.due = self.environment.clock.monotonic() + turn.retry_s()
        try:
            async with asyncio.timeout(SERVICE_TIMEOUT_S):
                report = await service.run_once()
        except Exception as error:
            self.metrics.maintenance_failures.add(1, service.name)
            log.warning(
                "maintenance service failed",
                service=service.name,
                error=repr(error),
                retry_in_s=turn.retry_s(),
            )
            return
        turn.failures_in_a_row = 0
        pause_s = MORE_S if report.has_more else service.period_s
        turn.due = self.environment.clock.monotonic() + pause_s
        self.record(service, report)

    def record(self, service: Service, report: Report) -> None:
        self.metrics.maintenance_runs.add(1, service.name)
        if report.changed:
            self.metrics.maintenance_changes.add(report.changed, service.name)
            log.info(
                "maintenance service done",
                service=service.name,
                changed=report.changed,
                note=report.note,
            )

    def step_down(self) -> None:
        if self.turns:
            self.turns = []
            self.metrics.forget_installation()

    async def close(self) -> None:
        """Nothing to hand over: the next owner starts anew."""
        self.step_down()
