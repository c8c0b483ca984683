"""The calls of the real roles, told to the recorder: the store's own functions with a witness."""

import contextlib
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from duly.broker import lease_queue
from duly.broker import postgres as postgres_broker
from duly.domain.errors import DatabaseUnavailable, DulyError, StatementRefused
from duly.domain.ids import slot_of
from duly.domain.lanes import Lane, Ticket
from duly.environment import Environment
from duly.execution import held_leases
from duly.scheduler import workflows as workflow_role
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.ready_state import ReadyTimer
from duly.store import insert, lease, ready_tickets, submit, task_callbacks, workflow_control
from duly.store.database import Database
from duly.store.finish import Released, SettleAnswer, Settlement
from duly.store.insert import IdleConsumer, InsertRow
from duly.store.lease import Beat, HeartbeatResult, Lease
from duly.store.settle import Settler
from duly.store.submit import Submitter
from duly.store.task_callbacks import DueCallback
from duly.store.workflow_control import CallBack
from duly.store.workflow_steps import BeginInner
from duly.store.workflow_timers import WorkflowTimer
from duly.verify.check import Violation
from duly.verify.history import CallPhase, LogEntry, Operation
from tests.simulation.cluster import CURRENT_NODE, Node

Answer = TypeVar("Answer")
# A statement that was rolled back for another, or waited for it in vain.
CONFLICTS = ("40", "55")


def here() -> Node:
    node = CURRENT_NODE.get()
    assert node is not None, "a role runs outside of every node"
    return node


async def lease_tasks_witnessed(
    database: Database,
    environment: Environment,
    holder: UUID,
    tickets: Sequence[Ticket],
    lease_s: float,
) -> list[Lease]:
    asked = ask_leases(holder, tickets)
    work = lease.lease_tasks(database, environment, holder, tickets, lease_s)
    return in_time(tickets, answer_leases(asked, await told(asked, work)))


async def read_held_witnessed(
    database: Database, holder: UUID, tickets: Sequence[Ticket]
) -> list[Lease]:
    asked = ask_leases(holder, tickets)
    return answer_leases(asked, await told(asked, lease.read_held(database, holder, tickets)))


async def lease_tickets_witnessed(
    database: Database,
    environment: Environment,
    holder: UUID,
    lanes: dict[Lane, int],
    count: int,
    lease_s: float,
    left_out: Collection[int],
) -> ready_tickets.TakenTickets:
    """Which tickets are asked for is known only with the answer."""
    taken = await ready_tickets.lease_tickets(
        database, environment, holder, lanes, count, lease_s, left_out
    )
    leased = {made.id: made.fence for made in taken.leases}
    tickets = [
        ticket
        for _, _, ticket in taken.tickets
        if leased.get(ticket.id, ticket.fence + 1) == ticket.fence + 1
    ]
    in_time(tickets, answer_leases(ask_leases(holder, tickets), taken.leases))
    return taken


def first_lease_witnessed(entry: InsertRow, consumer: IdleConsumer, *instants: datetime) -> Lease:
    """Stored in its holder's hands: nothing was asked before it was answered."""
    made = insert.first_lease(entry, consumer, *instants)
    answer_leases(ask_leases(consumer.holder, [Ticket(entry.id, 0)]), [made])
    return made


def in_time(tickets: Sequence[Ticket], leases: list[Lease]) -> list[Lease]:
    """A ticket past its deadline is void: its task may have been published again by somebody."""
    deadlines = {ticket.id: ticket.deadline for ticket in tickets}
    for made in leases:
        deadline = deadlines.get(made.id)
        if deadline is not None and deadline <= made.started_at:
            told = f"a ticket good until {deadline} became a lease at {made.started_at}"
            here().cluster.findings.append(Violation("I10", made.id, told))
    return leases


SOUND_PUBLISH = Dispatcher.publish


async def publish_witnessed(
    dispatcher: Dispatcher, now: float, chosen: Sequence[tuple[Lane, ReadyTimer]]
) -> None:
    fleet = here().cluster
    deadline = datetime.fromtimestamp(now + dispatcher.coordinator.ticket_s, UTC)
    owned = dispatcher.coordinator.owned
    for _, entry in chosen:
        slot = slot_of(entry.due.shard)
        if dispatcher.gatekeeper.is_counted(entry.due) and slot in owned:
            fleet.look_at_tickets(slot, owned[slot].epoch, deadline)
    await SOUND_PUBLISH(dispatcher, now, chosen)


def ask_leases(holder: UUID, tickets: Sequence[Ticket]) -> list[LogEntry]:
    recorder = here().cluster.recorder
    return [
        recorder.ask(Operation.LEASE, 0, task=ticket.id, fence=ticket.fence, holder=holder)
        for ticket in tickets
    ]


def answer_leases(asked: list[LogEntry], leases: list[Lease]) -> list[Lease]:
    recorder = here().cluster.recorder
    got = {made.id: made for made in leases}
    for entry in asked:
        made = got.get(entry.task) if entry.task else None
        if made is None:
            recorder.answer(entry, answer="refused")
            continue
        recorder.answer(
            entry,
            answer="leased",
            fence=made.fence,
            attempt=made.attempt,
            started_at=made.started_at,
            lease_until=made.lease_until,
        )
    return leases


async def extend_leases_witnessed(
    database: Database, holder: UUID, beats: Sequence[Beat], lease_s: float
) -> list[HeartbeatResult]:
    recorder = here().cluster.recorder
    asked = [
        recorder.ask(Operation.HEARTBEAT, 0, task=beat.id, fence=beat.fence, holder=holder)
        for beat in beats
    ]
    answers = await told(asked, lease.extend_leases(database, holder, beats, lease_s))
    for entry, answer in zip(asked, answers, strict=True):
        recorder.answer(entry, answer=str(answer.status), lease_until=answer.lease_until)
    return answers


class WitnessedSettler(Settler):
    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        recorder = here().cluster.recorder
        asked = [
            recorder.ask(
                Operation.SETTLE,
                0,
                task=item.id,
                fence=item.fence,
                holder=item.holder,
                outcome=str(item.outcome),
            )
            for item in settlements
        ]
        # Several statements: one that is refused may follow one that was committed.
        answers = await told(asked, super().settle(settlements), CallPhase.UNKNOWN)
        for entry, answer in zip(asked, answers, strict=True):
            recorder.answer(
                entry, answer=str(answer.status), state=answer.state, due_at=answer.due_at
            )
        return answers


async def told(
    asked: list[LogEntry], work: Awaitable[Answer], refusal: CallPhase = CallPhase.FAIL
) -> Answer:
    """The answer; a failure is written down, and goes on to the role that asked."""
    try:
        return await work
    except (DatabaseUnavailable, StatementRefused) as error:
        phase = CallPhase.UNKNOWN if isinstance(error, DatabaseUnavailable) else refusal
        for entry in asked:
            here().cluster.recorder.answer(entry, phase)
        raise


# Where the roles find these functions.
async def run_timer_witnessed(
    database: Database, timer: WorkflowTimer, call_back: CallBack, begin_inner: BeginInner
) -> tuple[Released, Callable[[], Awaitable[None]] | None]:
    with mistakes_told(str(timer)):
        return await workflow_control.run_timer(database, timer, call_back, begin_inner)


async def store_callbacks_witnessed(
    database: Database, submitter: Submitter, due: Sequence[DueCallback]
) -> Callable[[], Awaitable[None]]:
    with mistakes_told(str(due)):
        return await task_callbacks.store_callbacks(database, submitter, due)


@contextlib.contextmanager
def mistakes_told(what: str) -> Iterator[None]:
    """The role goes on with other timers, whatever becomes of one: our mistakes are told here."""
    try:
        yield
    except Exception as error:
        is_refused = isinstance(error, StatementRefused)
        code = str(error.facts.get("code")) if isinstance(error, StatementRefused) else ""
        is_world = isinstance(error, DulyError | TimeoutError) and not is_refused
        if not is_world and not code.startswith(CONFLICTS):
            here().cluster.failures.append(f"{what}: {traceback.format_exc()}")
        raise


WITNESSED: list[tuple[Any, str, Any]] = [
    (lease_queue, "lease_tasks", lease_tasks_witnessed),
    (lease_queue, "read_held", read_held_witnessed),
    (postgres_broker, "lease_tickets", lease_tickets_witnessed),
    (submit, "first_lease", first_lease_witnessed),
    (held_leases, "extend_leases", extend_leases_witnessed),
    (Dispatcher, "publish", publish_witnessed),
    (workflow_role, "run_timer", run_timer_witnessed),
    (workflow_role, "store_callbacks", store_callbacks_witnessed),
]
