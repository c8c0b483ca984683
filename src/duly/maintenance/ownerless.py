"""Slots for which nobody dispatches, shown as a metric."""

from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.gauges import count_ownerless_slots
from duly.telemetry import Metrics


class OwnerlessSlots:
    name = "ownerless_slots"
    period_s = 15.0

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self.database = database
        self.metrics = metrics

    async def run_once(self) -> Report:
        slots = await count_ownerless_slots(self.database)
        self.metrics.slots_without_owner.set(slots)
        return Report(note=f"{slots} without owner" if slots else "")
