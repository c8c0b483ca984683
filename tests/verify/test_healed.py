"""After the faults: ownerless slots and unexplained losses are found, and nothing else."""

from datetime import timedelta
from uuid import UUID

from duly.verify.healed import find_ownerless, find_unexplained
from duly.verify.history import AttemptRow, Fault, Logs, SlotHolderRow, Tables
from tests.verify.histories import TASK, WORKER, at

NODE = UUID(int=5)
LOST = AttemptRow(TASK, 1, 1, WORKER, at(10), at(25), "lease_lost")


def test_a_slot_without_an_owner_is_reported() -> None:
    """Its tasks are safe, and nobody will ever run them."""
    slots = [
        SlotHolderRow(0, NODE, at(20)),
        SlotHolderRow(1, None, at(20)),
        SlotHolderRow(2, NODE, at(10)),
    ]
    found = find_ownerless(slots, at(10))
    assert [each.problem for each in found] == ["slot 1 has no owner", "slot 2 has no owner"]


def test_a_lease_that_was_lost_needs_a_fault() -> None:
    """A lease lost on a healthy machine is a heartbeat that somebody forgot to send."""
    tables, second = Tables(attempts=(LOST,)), timedelta(seconds=1)
    assert [each.task for each in find_unexplained(Logs(), tables, second)] == [TASK]
    for instant in (at(9.5), at(12), at(25)):
        assert not find_unexplained(Logs(faults=(Fault("kill", instant),)), tables, second)
    for instant in (at(8), at(26)):
        assert find_unexplained(Logs(faults=(Fault("kill", instant),)), tables, second)
