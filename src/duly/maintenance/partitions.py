"""Monthly partitions: created ahead for new tasks, dropped when expired."""

from datetime import date

from duly.domain.errors import StatementRefused
from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.partitions import (
    MONTHS_AHEAD,
    RETENTION_S,
    create_partitions,
    drop_month,
    list_months,
)

LOCK_NOT_AVAILABLE = "55P03"
# An installation that was off for years is tidied over several runs.
DROPS_MAX = 12


class Partitions:
    name = "partitions"
    period_s = 3600.0

    def __init__(
        self,
        database: Database,
        retention_s: float = RETENTION_S,
        months_ahead: int = MONTHS_AHEAD,
    ) -> None:
        self.database = database
        self.retention_s = retention_s
        self.months_ahead = months_ahead
        # Kept only because something in them is live; `PinnedPartitions` empties them.
        self.pinned: list[date] = []

    async def run_once(self) -> Report:
        created = await create_partitions(self.database, self.months_ahead)
        months = await list_months(self.database)
        answers: dict[date, str | None] = {}
        for month in months[:DROPS_MAX]:
            answers[month] = await self.try_drop(month)
            if answers[month] == "current":
                break
        self.pinned = [month for month, kept in answers.items() if kept == "live"]
        dropped = [month for month, kept in answers.items() if kept is None]
        note = " ".join(f"{month:%Y-%m}:{kept or 'dropped'}" for month, kept in answers.items())
        # A locked month waits for the next period: each try makes its writers wait in turn.
        return Report(len(created) + len(dropped), note=note)

    async def try_drop(self, month: date) -> str | None:
        """As `drop_month`; `locked` while an open transaction uses the month."""
        try:
            return await drop_month(self.database, month, self.retention_s)
        except StatementRefused as refusal:
            if refusal.facts["code"] != LOCK_NOT_AVAILABLE:
                raise
            return "locked"
