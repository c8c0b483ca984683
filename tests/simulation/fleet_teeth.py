"""Deliberate bugs of the scheduler, its carriers and its owners, for seeds of fleets to notice."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.scheduler.accounts import Accounts, Charge
from duly.scheduler.board import Board
from duly.scheduler.gatekeeper import Gatekeeper
from duly.store import lease, ownership
from tests.simulation.database import Postgres
from tests.simulation.fleet_plan import replaced
from tests.simulation.fleet_run import run_fleet_seed
from tests.simulation.run import Verdict
from tests.simulation.teeth import Bug


@dataclass(frozen=True)
class Slip:
    """One attribute of one class does something else."""

    name: str
    place: Any
    attribute: str
    wrong: Any

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        assert hasattr(self.place, self.attribute), f"nothing is called {self.attribute} any more"
        with replaced([(self.place, self.attribute, self.wrong)]):
            yield


def correct_all(
    accounts: Accounts, _before: Mapping[UUID, Charge], seen: Mapping[UUID, Charge]
) -> list[Charge]:
    """Also what was told while the database answered."""
    freed = [accounts.remove(task) for task in list(accounts.leases) if task not in seen]
    return [charge for charge in freed if charge is not None]


def free_at_deadline(accounts: Accounts, now: float) -> None:
    """Without asking whether somebody else got the lease in time."""
    while accounts.deadlines and accounts.deadlines[0][0] <= now:
        accounts.remove(accounts.deadlines.popleft()[1])


def do_nothing(*_: object) -> None:
    """What is needed most of the time."""


FLEET_BUGS: list[Bug | Slip] = [
    Bug(
        "a ticket past its deadline becomes a lease",
        lease.SQL,
        "lease_tasks",
        "ticket.deadline > duly.now()",
        "ticket.deadline > timestamptz 'epoch'",
    ),
    Bug(
        "a seat is claimed before its lease ends",
        ownership.SQL,
        "claim_seats",
        "OR ownership.expires_at <= duly.now()",
        "OR ownership.expires_at > timestamptz 'epoch'",
    ),
    Slip("a belief outlives its lease", Coordinator, "is_trusted", True),
    Slip("a hand-over needs no wait", Gatekeeper, "handover_until", lambda *_: None),
    Slip("a correction forgets what was told meanwhile", Accounts, "correct", correct_all),
    Slip("a cap is free at the deadline of a ticket", Accounts, "pass_deadlines", free_at_deadline),
    Slip("a lost ticket counts for ever", Accounts, "pass_deadlines", do_nothing),
    Slip("what is parked stays parked", Board, "unpark", lambda *_: 0),
    Slip("a lost ticket is never published again", Board, "void_tickets", lambda *_: []),
]


def first_caught_by_fleet(
    postgres: Postgres, bug: Bug | Slip, first: int, seeds_max: int
) -> Verdict | None:
    """The first verdict against the bug; None if it lived through all the seeds."""
    with bug.planted():
        for seed in range(first, first + seeds_max):
            verdict = run_fleet_seed(postgres, seed)
            # A role that spins is caught as well, though it broke no promise yet.
            if not verdict.is_clean:
                return verdict
    return None
