"""Months that a few live tasks pin: emptied, batch by batch, of what finished long ago."""

from collections.abc import Callable, Sequence
from datetime import date

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.partitions import RETENTION_S
from duly.store.retention import MonthCursor, delete_finished

EXAMINE_MAX = 2000


class PinnedPartitions:
    name = "pinned_partitions"
    period_s = 600.0

    def __init__(
        self,
        database: Database,
        pinned: Callable[[], Sequence[date]],
        retention_s: float = RETENTION_S,
        examine_max: int = EXAMINE_MAX,
    ) -> None:
        self.database = database
        self.pinned = pinned
        self.retention_s = retention_s
        self.examine_max = examine_max
        # Where the present round stands; it ends with the last pinned month, and then rests.
        self.waiting: list[date] = []
        self.cursor = MonthCursor()

    async def run_once(self) -> Report:
        if not self.waiting:
            self.waiting = list(self.pinned())
            self.cursor = MonthCursor()
        if not self.waiting:
            return Report()
        batch = await delete_finished(
            self.database, self.waiting[0], self.cursor, self.examine_max, self.retention_s
        )
        month = self.waiting[0]
        self.cursor = batch.cursor
        if batch.examined < self.examine_max:
            del self.waiting[0]
            self.cursor = MonthCursor()
        note = f"{month:%Y-%m}: {batch.deleted} of {batch.examined}"
        return Report(batch.deleted, bool(self.waiting), note)
