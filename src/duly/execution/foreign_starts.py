"""Statistics of attempts that one process leased out and another settled: behind a load balancer a
worker's calls go to any. How long such an attempt ran is read from its record, a batch a second."""

from duly.execution.worker_leases import WorkerLeases
from duly.store.database import Database
from duly.store.stats import StatsBook, ending_of, read_endings
from duly.telemetry import Metrics

LOOK_EVERY_S = 1.0
BATCH_MAX = 1000


class ForeignStarts:
    """A role: looks only if there are any."""

    name = "foreign_starts"

    def __init__(
        self, database: Database, leases: WorkerLeases, metrics: Metrics, stats: StatsBook
    ) -> None:
        self.database = database
        self.leases = leases
        self.metrics = metrics
        self.stats = stats

    async def tick(self) -> float:
        keys = self.leases.started_elsewhere[:BATCH_MAX]
        if keys:
            found = await read_endings(self.database, keys)
            del self.leases.started_elsewhere[: len(keys)]
            self.metrics.run_time.observe_many(each.run_s for each in found)
            self.stats.note_settled(
                (each.tenant, each.type, ending_of(each.outcome, each.state), each.run_s)
                for each in found
            )
            for each in found:
                end = ending_of(each.outcome, each.state), each.run_s
                self.leases.history.note_settled(each.tenant, each.holder, [end])
        return 0.0 if len(keys) == BATCH_MAX else LOOK_EVERY_S

    async def close(self) -> None:
        """What is not yet read is missing: these numbers decide nothing."""
