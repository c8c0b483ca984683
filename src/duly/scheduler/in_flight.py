"""In-flight counts: tickets before their deadline, and leases, of everything that has a cap.

Updated by events of this and other processes, corrected from the database. Counting too much only
delays; what could count too little waits instead.

| event | what happens |
|---|---|
| a ticket is published | it counts until its deadline, also if publishing failed or the entry was dropped |
| its consumer here got the lease | it counts as a lease |
| its consumer here got none | it counts until its deadline: a copy of the ticket may still become a lease |
| its deadline passed | a copy, or a consumer elsewhere, may have got it: it counts as a lease until the database says otherwise |
| its lease was settled, here or where we hear of it | it counts no more; the word of another fence changes nothing |
| the database is asked | its word replaces what we knew before we asked |
| the slot is lost | it counts for the next owner |
"""  # noqa: E501 (a table row is one line)

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from duly.store.load import DueTimer

# A concurrency key is per tenant.
Key = tuple[int, str]


class Charge(NamedTuple):
    """What one task in flight counts against. The fence is the ticket's; its lease has the next."""

    fence: int
    tenant: int
    key: Key | None
    deadline: float = 0.0


class InFlight:
    def __init__(self) -> None:
        self.tickets: dict[UUID, Charge] = {}
        # Leases, and tickets of which we do not know that they became none.
        self.leases: dict[UUID, Charge] = {}
        self.deadlines: deque[tuple[float, UUID]] = deque()
        self.by_tenant: dict[int, int] = {}
        self.by_key: dict[Key, int] = {}

    def in_flight(self, tenant: int) -> int:
        return self.by_tenant.get(tenant, 0)

    def key_in_flight(self, key: Key) -> int:
        return self.by_key.get(key, 0)

    def find(self, task_id: UUID) -> Charge | None:
        return self.leases.get(task_id) or self.tickets.get(task_id)

    def ticketed(self, due: DueTimer, deadline: float) -> None:
        """Count a published task: once, also if it was published before under an earlier fence."""
        known = self.find(due.id)
        if known is not None and known.fence > due.fence:
            # The row has moved on: this ticket is stale before it is read.
            return
        self.remove(due.id)
        self.tickets[due.id] = charge = Charge(due.fence, due.tenant, key_of(due), deadline)
        self.deadlines.append((deadline, due.id))
        self.add(charge, 1)

    def leased(self, task_id: UUID, fence: int) -> None:
        """A ticket became a lease in this process."""
        charge = self.tickets.get(task_id)
        if charge is not None and charge.fence == fence:
            self.leases[task_id] = self.tickets.pop(task_id)

    def settled(self, task_id: UUID, lease_fence: int) -> Charge | None:
        """The lease ended; answers the charge that became free."""
        charge = self.find(task_id)
        return self.remove(task_id) if charge and charge.fence + 1 == lease_fence else None

    def pass_deadlines(self, now: float) -> None:
        """Count tickets past their deadline as leases until the database is asked."""
        while self.deadlines and self.deadlines[0][0] <= now:
            _, task_id = self.deadlines.popleft()
            charge = self.tickets.get(task_id)
            if charge is not None and charge.deadline <= now:
                self.leases[task_id] = self.tickets.pop(task_id)

    def correct(self, before: Mapping[UUID, Charge], seen: Mapping[UUID, Charge]) -> list[Charge]:
        """Replace the counts known `before` the database was asked by what it answered; changes
        that came meanwhile stand. Answers what became free."""
        freed = []
        for task_id, charge in before.items():
            if task_id not in seen and self.leases.get(task_id) is charge:
                self.remove(task_id)
                freed.append(charge)
        for task_id, charge in seen.items():
            known = self.find(task_id)
            if known is None or known.fence <= charge.fence:
                self.remove(task_id)
                self.leases[task_id] = charge
                self.add(charge, 1)
        return freed

    def forget(self, is_lost: Callable[[UUID, int], bool]) -> None:
        """Drop charges for which `is_lost(task, tenant)` holds."""
        counted = (*self.tickets.items(), *self.leases.items())
        for task_id in [i for i, charge in counted if is_lost(i, charge.tenant)]:
            self.remove(task_id)

    def remove(self, task_id: UUID) -> Charge | None:
        charge = self.leases.pop(task_id, None) or self.tickets.pop(task_id, None)
        if charge is not None:
            self.add(charge, -1)
        return charge

    def add(self, charge: Charge, change: int) -> None:
        count = self.by_tenant.get(charge.tenant, 0) + change
        if count > 0:
            self.by_tenant[charge.tenant] = count
        else:
            self.by_tenant.pop(charge.tenant, None)
        if charge.key is not None:
            of_key = self.by_key.get(charge.key, 0) + change
            if of_key > 0:
                self.by_key[charge.key] = of_key
            else:
                self.by_key.pop(charge.key, None)


def key_of(due: DueTimer) -> Key | None:
    return None if due.concurrency_key is None else (due.tenant, due.concurrency_key)
