"""How much of each tenant is ready, scheduled and running, shown as metrics."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.metric_queries import BEFORE_TENANTS, TENANTS_PAGE, count_backlog
from duly.telemetry import BACKLOG_STATES, Metrics


class Backlog:
    name = "backlog"
    period_s = 15.0

    def __init__(self, database: Database, metrics: Metrics, page: int = TENANTS_PAGE) -> None:
        self.database = database
        self.metrics = metrics
        self.page = page
        self.after = BEFORE_TENANTS
        self.waiting: dict[tuple[str, int], float] = {}
        self.running: dict[str, int] = {}

    async def run_once(self) -> Report:
        """One page of tenants; the metrics change when the last page has been seen."""
        found = await count_backlog(self.database, self.after, self.page)
        for tenant in found:
            for state, count in zip(BACKLOG_STATES, (tenant.ready, tenant.scheduled), strict=True):
                if count:
                    self.waiting[tenant.name, BACKLOG_STATES.index(state)] = float(count)
            if tenant.running:
                self.running[tenant.name] = tenant.running
        if len(found) == self.page:
            self.after = found[-1].id
            return Report(0, has_more=True)
        self.metrics.show_backlog(self.waiting)
        self.metrics.show_in_flight(self.running)
        self.after, self.waiting, self.running = BEFORE_TENANTS, {}, {}
        return Report()
