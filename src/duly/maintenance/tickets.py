"""Tickets past their deadline that nobody took: void, and in the way of the next."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.ready_queue import BITE, FIRST_SPOT, sweep_tickets


class Tickets:
    name = "tickets"
    period_s = 10.0

    def __init__(self, database: Database, bite: int = BITE) -> None:
        self.database = database
        self.bite = bite
        self.spot = FIRST_SPOT

    async def run_once(self) -> Report:
        """One bite of a walk through all lanes."""
        self.spot, gone = await sweep_tickets(self.database, self.spot, self.bite)
        return Report(gone, self.spot != FIRST_SPOT)
