"""Deliberate bugs of the scheduler, its carriers and its owners, for seeds of fleets to notice."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.scheduler.gatekeeper import Gatekeeper
from duly.scheduler.in_flight import Charge, InFlight
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.reaper import Reaper
from duly.store import lease, ownership, ready_tickets
from duly.store.insert import Claim, IdleConsumer, InsertRow, first_lease, insert_tasks
from duly.store.submit import SubmitAnswer, Submitter, stored_at
from tests.teeth.planted import Both, Bug, Slip
from tests.teeth.schedule_bugs import SCHEDULE_BUGS
from tests.teeth.workflow_bugs import WORKFLOW_BUGS


def correct_all(
    counts: InFlight, _before: Mapping[UUID, Charge], seen: Mapping[UUID, Charge]
) -> list[Charge]:
    """Also what was told while the database answered."""
    freed = [counts.remove(task) for task in list(counts.leases) if task not in seen]
    return [charge for charge in freed if charge is not None]


def free_at_deadline(counts: InFlight, now: float) -> None:
    """Without asking whether somebody else got the lease in time."""
    while counts.deadlines and counts.deadlines[0][0] <= now:
        counts.remove(counts.deadlines.popleft()[1])


async def reap_nothing(_reaper: Reaper) -> bool:
    """A lease that ran out is nobody's business."""
    return False


def do_nothing(*_: object) -> None:
    """What is needed most of the time."""


async def hand_first(
    submitter: Submitter, consumer: IdleConsumer, entries: list[InsertRow], claims: Sequence[Claim]
) -> dict[int, SubmitAnswer]:
    """Before the commit, which may fail."""
    now = submitter.environment.clock.now()
    consumer.take([first_lease(entry, consumer, now, now) for entry in entries])
    won, stored_when = await insert_tasks(submitter.database, entries, (), claims, consumer)
    return {entry.ordinal: stored_at(entry, stored_when, is_waited_for=True) for entry in won}


FLEET_BUGS: list[Bug | Slip | Both] = [
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
        "claim_assignments",
        "OR ownership.expires_at <= duly.now()",
        "OR ownership.expires_at > timestamptz 'epoch'",
    ),
    Bug(
        "a ticket past its deadline is taken from the table",
        ready_tickets.SQL,
        "lease_tickets",
        "AND ticket.deadline > duly.now()",
        "AND ticket.deadline > timestamptz 'epoch'",
    ),
    Bug(
        "a dead owner's tickets are ignored",
        ownership.SQL,
        "claim_assignments",
        "ownership.expires_at + make_interval(secs => $6)",
        "timestamptz 'epoch'",
    ),
    Bug(
        "a seat that is handed back leaves no tickets",
        ownership.SQL,
        "release_assignments",
        "greatest(ownership.void_at, duly.now() + make_interval(secs => $5))",
        "least(ownership.void_at, duly.now() + make_interval(secs => $5))",
    ),
    Slip("a ticket is never counted", InFlight, "ticketed", do_nothing),
    Slip("a lease that ran out is left alone", Reaper, "reap", reap_nothing),
    Slip("a belief outlives its lease", Coordinator, "is_trusted", True),
    Slip("a hand-over needs no wait", Gatekeeper, "transfer_until", lambda *_: None),
    Slip("a correction forgets what was told meanwhile", InFlight, "correct", correct_all),
    Slip("a cap is free at the deadline of a ticket", InFlight, "pass_deadlines", free_at_deadline),
    Slip("a lost ticket counts for ever", InFlight, "pass_deadlines", do_nothing),
    Slip("what is parked stays parked", ReadyState, "unpark", lambda *_: 0),
    Slip("a lost ticket is never published again", ReadyState, "void_tickets", lambda *_: []),
    *SCHEDULE_BUGS,
    Slip("a consumer is handed what is not stored yet", Submitter, "store_in", hand_first),
    *WORKFLOW_BUGS,
]
