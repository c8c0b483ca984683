"""Answers to calls with an idempotency key whose time to live is over."""

from duly.maintenance.service import Report
from duly.store.calls import delete_expired_calls
from duly.store.database import Database

BITE_ROWS = 1000


class RememberedCalls:
    name = "remembered_calls"
    period_s = 300.0

    def __init__(self, database: Database, bite_rows: int = BITE_ROWS) -> None:
        self.database = database
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_expired_calls(self.database, self.bite_rows)
        return Report(deleted, deleted >= self.bite_rows)
