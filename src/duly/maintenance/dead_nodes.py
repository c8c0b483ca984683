"""Processes that have been silent for long: every start is a new row."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.ownership import DEAD_NODES_PAGE, delete_dead_nodes

SILENCE_S = 3600.0


class DeadNodes:
    name = "dead_nodes"
    period_s = 600.0

    def __init__(self, database: Database, silence_s: float = SILENCE_S) -> None:
        self.database = database
        self.silence_s = silence_s

    async def run_once(self) -> Report:
        deleted = await delete_dead_nodes(self.database, self.silence_s)
        return Report(deleted, deleted >= DEAD_NODES_PAGE)
