"""The age of the oldest ready work of each tenant and band, shown as a metric."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.load import BEFORE_ALL
from duly.store.metric_queries import PLACES_PAGE, scan_oldest_ready
from duly.telemetry import Metrics


class OldestReady:
    name = "oldest_ready"
    period_s = 15.0

    def __init__(self, database: Database, metrics: Metrics, page: int = PLACES_PAGE) -> None:
        self.database = database
        self.metrics = metrics
        self.page = page
        self.after = BEFORE_ALL
        self.ages: dict[tuple[str, int], float] = {}

    async def run_once(self) -> Report:
        """One page of places; the metric changes when the last page has been seen."""
        found = await scan_oldest_ready(self.database, self.after, self.page)
        for oldest in found.oldest:
            pair = (oldest.tenant, oldest.band)
            self.ages[pair] = max(oldest.age_s, self.ages.get(pair, 0.0))
        if found.last is not None:
            self.after = found.last
            return Report(0, has_more=True)
        self.metrics.show_oldest_ready(self.ages)
        self.after, self.ages = BEFORE_ALL, {}
        return Report()
