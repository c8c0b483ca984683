"""Workers, open breakers and schedules of the whole installation, shown as metrics."""

from duly.domain.breaker import BreakerKind
from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.metric_queries import count_breakers, count_schedules, count_workers
from duly.telemetry import Metrics


class InstallationCounts:
    name = "installation_counts"
    period_s = 15.0

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self.database = database
        self.metrics = metrics

    async def run_once(self) -> Report:
        """Three statements, each bounded."""
        self.metrics.workers.show(await count_workers(self.database))
        breakers = await count_breakers(self.database)
        self.metrics.breakers.set(
            {(kind.value,): float(breakers.get(kind.value, 0)) for kind in BreakerKind}
        )
        schedules = await count_schedules(self.database)
        self.metrics.schedules.set(
            {("active",): float(schedules.active), ("paused",): float(schedules.paused)}
        )
        self.metrics.schedule_overdue.set(schedules.overdue_s)
        return Report()
