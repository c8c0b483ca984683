"""Workers that have been silent for long: their ids are their users' choice, and may be many."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.operators import delete_silent_workers

BITE_ROWS = 1000


class SilentWorkers:
    name = "silent_workers"
    period_s = 300.0

    def __init__(self, database: Database, bite_rows: int = BITE_ROWS) -> None:
        self.database = database
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_silent_workers(self.database, self.bite_rows)
        return Report(deleted, deleted >= self.bite_rows)
