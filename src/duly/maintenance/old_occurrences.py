"""The ledger of schedules past its retention."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.partitions import RETENTION_S
from duly.store.recur import delete_old_occurrences

BITE_ROWS = 5000
# A backfill may reach back as far as the default retention. What it relies on not to make a task
# twice is kept for a day longer, also where finished tasks are kept for less.
KEEP_S_MIN = RETENTION_S + 86400.0


class OldOccurrences:
    name = "old_occurrences"
    period_s = 3600.0

    def __init__(
        self,
        database: Database,
        retention_s: float = RETENTION_S,
        bite_rows: int = BITE_ROWS,
    ) -> None:
        self.database = database
        self.keep_s = max(retention_s, KEEP_S_MIN)
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_old_occurrences(self.database, self.bite_rows, self.keep_s)
        return Report(deleted, deleted >= self.bite_rows)
