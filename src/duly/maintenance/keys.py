"""Idempotency keys whose time to live is over."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.idempotency import delete_expired_keys

BITE_ROWS = 5000


class Keys:
    name = "keys"
    period_s = 60.0

    def __init__(self, database: Database, bite_rows: int = BITE_ROWS) -> None:
        self.database = database
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_expired_keys(self.database, self.bite_rows)
        return Report(deleted, deleted >= self.bite_rows)
