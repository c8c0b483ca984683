"""Nonces of signed requests that are too old to be used again."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.keys import delete_expired_nonces

BITE_ROWS = 5000


class Nonces:
    name = "nonces"
    period_s = 60.0

    def __init__(self, database: Database, bite_rows: int = BITE_ROWS) -> None:
        self.database = database
        self.bite_rows = bite_rows

    async def run_once(self) -> Report:
        deleted = await delete_expired_nonces(self.database, self.bite_rows)
        return Report(deleted, deleted >= self.bite_rows)
