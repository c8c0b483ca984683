"""Who has how much in flight: tickets before their deadline, and leases, of whatever has a cap.

Told by consumers in this process, corrected from the database. Counting too much only delays; what
could count too little (a new owner that does not know its predecessor's tickets) waits instead.
"""

from typing import NamedTuple
from uuid import UUID

from duly.store.load import Due

# A concurrency key is per tenant.
Key = tuple[int, str]


class Charge(NamedTuple):
    """What one task in flight counts against."""

    fence: int
    tenant: int
    key: Key | None


class Accounts:
    def __init__(self) -> None:
        self.tickets: dict[UUID, Charge] = {}
        self.leases: dict[UUID, Charge] = {}
        self.by_tenant: dict[int, int] = {}
        self.by_key: dict[Key, int] = {}

    def in_flight(self, tenant: int) -> int:
        return self.by_tenant.get(tenant, 0)

    def key_in_flight(self, key: Key) -> int:
        return self.by_key.get(key, 0)

    def ticketed(self, due: Due) -> None:
        charge = Charge(due.fence, due.tenant, key_of(due))
        self.tickets[due.id] = charge
        self.add(charge, 1)

    def taken(self, task_id: UUID, *, is_leased: bool) -> None:
        """A ticket was consumed; it counts on as a lease, or not at all."""
        charge = self.tickets.pop(task_id, None)
        if charge is None:
            return
        if is_leased:
            self.leases[task_id] = charge
        else:
            self.add(charge, -1)

    def settled(self, task_id: UUID) -> Charge | None:
        """The lease is over; answers what became free."""
        charge = self.leases.pop(task_id, None) or self.tickets.pop(task_id, None)
        if charge is not None:
            self.add(charge, -1)
        return charge

    def void(self, task_id: UUID) -> None:
        """The deadline of a ticket passed without news: it can become a lease no more."""
        charge = self.tickets.pop(task_id, None)
        if charge is not None:
            self.add(charge, -1)

    def leased_of(self, tenant: int) -> set[UUID]:
        return {task_id for task_id, charge in self.leases.items() if charge.tenant == tenant}

    def correct(self, before: set[UUID], leased: dict[UUID, Charge]) -> None:
        """The database's word replaces what we were told before it was asked; what we were told
        while it answered stands."""
        for task_id in before - leased.keys():
            self.settled(task_id)
        for task_id, charge in leased.items():
            if task_id not in self.leases and task_id not in self.tickets:
                self.leases[task_id] = charge
                self.add(charge, 1)

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


def key_of(due: Due) -> Key | None:
    return None if due.concurrency_key is None else (due.tenant, due.concurrency_key)
