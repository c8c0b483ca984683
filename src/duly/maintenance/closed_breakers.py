"""Breakers that closed by themselves and were not opened again."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.retention import delete_closed_breakers

BITE_ROWS = 1000


class ClosedBreakers:
    name = "closed_breakers"
    period_s = 3600.0

    def __init__(self, database: Database, bite_rows: int = BITE_ROWS) -> None:
        self.database = database
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_closed_breakers(self.database, self.bite_rows)
        return Report(deleted, deleted >= self.bite_rows)
