"""What must be true once every fault has healed, and what only a fault may explain. Pure.

A harness asks these after its run; `check.py` asks what must hold at every instant.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from duly.domain.states import Outcome
from duly.verify.check import Violation
from duly.verify.history import Logs, SlotHolderRow, Tables


def find_ownerless(slots: Iterable[SlotHolderRow], now: datetime) -> list[Violation]:
    """Slots without a live owner: their tasks would not be dispatched."""
    return [
        Violation("liveness", None, f"slot {slot.number} has no owner")
        for slot in slots
        if slot.holder is None or slot.expires_at <= now
    ]


def find_unexplained(logs: Logs, tables: Tables, slack: timedelta) -> list[Violation]:
    """Leases that were lost though nothing was broken while they were held.

    Only for a harness whose holders never fall silent by themselves. `slack` is how long a fault
    goes on working after the instant that the log gives it.
    """
    return [
        Violation("unexplained", row.id, f"fence {row.fence} was lost, and no fault explains it")
        for row in tables.attempts
        if row.outcome == Outcome.LEASE_LOST
        and row.started_at is not None
        and not any(row.started_at - slack <= fault.at <= row.ended_at for fault in logs.faults)
    ]
