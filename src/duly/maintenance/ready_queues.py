"""What is ready, shown as metrics: its age by tenant and band, its number by pool of workers."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.load import BEFORE_ALL
from duly.store.metric_queries import PLACES_PAGE, scan_ready
from duly.telemetry import Metrics


class ReadyQueues:
    name = "ready_queues"
    period_s = 15.0

    def __init__(self, database: Database, metrics: Metrics, page: int = PLACES_PAGE) -> None:
        self.database = database
        self.metrics = metrics
        self.page = page
        self.start_again()

    def start_again(self) -> None:
        self.after = BEFORE_ALL
        self.ages: dict[tuple[str, int], float] = {}
        self.pools: dict[tuple[str, str], float] = {}

    async def run_once(self) -> Report:
        """One page of timer queues; the metrics change when the last page has been seen."""
        found = await scan_ready(self.database, self.after, self.page)
        for queue in found.queues:
            pair = (queue.tenant, queue.band)
            self.ages[pair] = max(queue.age_s, self.ages.get(pair, 0.0))
            if queue.pool is not None:
                pool = (queue.tenant, queue.pool)
                self.pools[pool] = self.pools.get(pool, 0.0) + queue.tasks
        if found.last is not None:
            self.after = found.last
            return Report(0, has_more=True)
        self.metrics.show_oldest_ready(self.ages)
        self.metrics.pool_ready.show(self.pools)
        self.start_again()
        return Report()
