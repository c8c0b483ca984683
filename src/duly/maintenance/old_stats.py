"""Per-minute statistics past their retention."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.stats import delete_old_stats

BITE_ROWS = 5000


class OldStats:
    name = "old_stats"
    period_s = 3600.0

    def __init__(self, database: Database, bite_rows: int = BITE_ROWS) -> None:
        self.database = database
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_old_stats(self.database, self.bite_rows)
        return Report(deleted, deleted >= self.bite_rows)
