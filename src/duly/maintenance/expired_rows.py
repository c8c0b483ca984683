"""Housekeeping that only deletes: rows past their time, one bounded batch in each run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from duly.maintenance.service import Report
from duly.store.bulk import delete_old_operations
from duly.store.call_idempotency import delete_expired_calls
from duly.store.cluster import delete_silent_workers
from duly.store.database import Database
from duly.store.fire_schedules import delete_old_occurrences
from duly.store.idempotency import delete_expired_keys
from duly.store.keys import delete_expired_nonces
from duly.store.ownership import delete_dead_nodes
from duly.store.partitions import RETENTION_S
from duly.store.retention import delete_closed_breakers
from duly.store.stats import delete_old_stats
from duly.store.submit_throttles import delete_passed_throttles
from duly.store.task_logs import RETENTION_S as LOG_RETENTION_S
from duly.store.task_logs import delete_old_logs
from duly.store.worker_history import delete_old_worker_history
from duly.store.workflows import delete_old_workflows

# A backfill may reach back as far as the default retention. What it relies on not to make a task
# twice is kept for a day longer, also where finished tasks are kept for less.
OCCURRENCES_KEEP_S_MIN = RETENTION_S + 86400.0


@dataclass(frozen=True)
class ExpiredRows:
    """A service: `delete` removes at most `batch_size` rows and answers how many."""

    name: str
    period_s: float
    batch_size: int
    delete: Callable[[Database, int], Awaitable[int]]
    database: Database

    async def run_once(self) -> Report:
        deleted = await self.delete(self.database, self.batch_size)
        return Report(deleted, deleted >= self.batch_size)


def make_expired_rows(
    database: Database, retention_s: float, log_retention_s: float = LOG_RETENTION_S
) -> list[ExpiredRows]:
    occurrences_keep_s = max(retention_s, OCCURRENCES_KEEP_S_MIN)
    delete_workflows = partial(delete_old_workflows, retention_s=retention_s)
    delete_logs = partial(delete_old_logs, retention_s=log_retention_s)
    delete_workers = partial(delete_old_worker_history, retention_s=retention_s)
    delete_occurrences = partial(delete_old_occurrences, retention_s=occurrences_keep_s)
    return [
        ExpiredRows("keys", 60.0, 5000, delete_expired_keys, database),
        ExpiredRows("submit_throttles", 60.0, 5000, delete_passed_throttles, database),
        ExpiredRows("nonces", 60.0, 5000, delete_expired_nonces, database),
        ExpiredRows("remembered_calls", 300.0, 1000, delete_expired_calls, database),
        # A worker's id is chosen by its user; every start of a node is a new row.
        ExpiredRows("silent_workers", 300.0, 1000, delete_silent_workers, database),
        ExpiredRows("dead_nodes", 600.0, 1000, delete_dead_nodes, database),
        ExpiredRows("closed_breakers", 3600.0, 1000, delete_closed_breakers, database),
        ExpiredRows("bulk_operations", 3600.0, 1000, delete_old_operations, database),
        ExpiredRows("old_logs", 600.0, 5000, delete_logs, database),
        ExpiredRows("old_stats", 3600.0, 5000, delete_old_stats, database),
        ExpiredRows("worker_history", 3600.0, 1000, delete_workers, database),
        ExpiredRows("old_occurrences", 3600.0, 5000, delete_occurrences, database),
        # Counted in nodes; the last workflow of a batch goes whole. Their months wait for this.
        ExpiredRows("old_workflows", 3600.0, 5000, delete_workflows, database),
    ]
