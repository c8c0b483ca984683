"""The actors that move tasks: schedulers, executors with their handlers, heartbeaters, reapers.

They are written against the store as the real roles will be; each call is told to the recorder.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar
from uuid import UUID

from duly.domain.errors import DatabaseUnavailable, StatementRefused
from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.environment import CrashPoint
from duly.store.finish import SettleAnswer, Settlement, finish_unstarted
from duly.store.lease import Beat, HeartbeatStatus, Lease, extend_leases, lease_tasks, read_held
from duly.store.load import Cursor, DueTimer, TimerQueue, list_placements, load_due
from duly.store.reap import reap_leases
from duly.verify.history import CallPhase, LogEntry, Operation
from tests.simulation.cluster import Cluster, Node
from tests.simulation.plan import Actor, FaultKind

Answer = TypeVar("Answer")
OUTCOMES = (
    Outcome.COMPLETED,
    Outcome.FAILED,
    Outcome.REJECTED,
    Outcome.CANCELLED,
    Outcome.RELEASED,
    Outcome.SNOOZED,
)
HEALED_WEIGHTS = (12, 2, 0, 0, 1, 1)
SETTLE_TRIES_MAX = 4
LAST_SHARD = 1023
DRAWER_MAX = 40


async def hear(
    cluster: Cluster,
    asked: list[LogEntry],
    work: Awaitable[Answer],
    refusal: CallPhase = CallPhase.UNKNOWN,
) -> Answer | None:
    """None when no answer came. A refusal is a FAIL only where the whole call is one commit."""
    try:
        return await work
    except DatabaseUnavailable:
        phase = CallPhase.UNKNOWN
    except StatementRefused:
        phase = refusal
    for entry in asked:
        cluster.recorder.answer(entry, phase)
    return None


async def schedule(cluster: Cluster, node: Node) -> None:
    """Find what is due and publish tickets; tickets get lost, repeated, late and reordered."""
    while True:
        await asyncio.sleep(cluster.plan.tick_s * node.random.uniform(0.5, 1.0))
        await hear(cluster, [], load_and_publish(cluster, node))


async def load_and_publish(cluster: Cluster, node: Node) -> None:
    if not node.timer_queues or node.random.random() < 0.15:
        node.timer_queues = await read_timer_queues(cluster, node)
    if not node.timer_queues:
        return
    if node.random.random() < 0.4:
        node.cursors = {}
    cursors = {
        timer_queue: node.cursors.get(timer_queue, Cursor()) for timer_queue in node.timer_queues
    }
    due = await load_due(node.database, cursors, node.random.choice([0.0, 1.0]), cluster.plan.page)
    for timer_queue in node.timer_queues:
        mine = [item for item in due if item.timer_queue == timer_queue]
        if len(mine) == cluster.plan.page:
            node.cursors[timer_queue] = Cursor(mine[-1].due_at, mine[-1].id)
        else:
            node.cursors.pop(timer_queue, None)
    cluster.late = [Ticket(item.id, item.fence) for item in due if item.start_by is not None]
    cluster.publish(spoil(cluster, node, due))


async def read_timer_queues(cluster: Cluster, node: Node) -> list[TimerQueue]:
    """The placements of this seed's tenants, page by page."""
    timer_queues: list[TimerQueue] = []
    for tenant in cluster.plan.tenants:
        after = TimerQueue(tenant, -1, -1)
        while True:
            page = await list_placements(node.database, 0, LAST_SHARD, after)
            mine = [timer_queue for timer_queue in page if timer_queue.tenant == tenant]
            timer_queues += mine
            if not mine or len(mine) < len(page):
                break
            after = mine[-1]
    return timer_queues


def spoil(cluster: Cluster, node: Node, due: list[DueTimer]) -> list[Ticket]:
    tickets = []
    for item in due:
        ticket = Ticket(item.id, item.fence, in_place=stays(item))
        cluster.drawer = [*cluster.drawer, ticket][-DRAWER_MAX:]
        if not cluster.strikes(FaultKind.TICKET_LOST, node):
            tickets.append(ticket)
        if cluster.strikes(FaultKind.TICKET_REPEATED, node):
            tickets.append(ticket)
    if cluster.drawer and cluster.strikes(FaultKind.TICKET_STALE, node):
        tickets.append(stale_ticket(cluster))
    if cluster.plan.has(FaultKind.REORDER):
        cluster.random.shuffle(tickets)
    return tickets


def stays(due: DueTimer) -> bool:
    """Half of all leases are made in place; which, needs no draw."""
    return due.id.bytes[-1] % 2 == 0


def stale_ticket(cluster: Cluster) -> Ticket:
    """An old one, or one that names the fence of a lease that may still run."""
    if cluster.leases and cluster.random.random() < 0.5:
        _, task, fence, _ = cluster.random.choice(cluster.leases[-5:])
        return Ticket(task, fence)
    old = cluster.random.choice(cluster.drawer)
    return Ticket(old.id, old.fence + cluster.random.choice([-1, 0, 0, 1]))


async def execute(cluster: Cluster, node: Node) -> None:
    """Turn tickets into leases, and each lease into a handler."""
    while True:
        while not cluster.ready:
            cluster.ready_bell.clear()
            await cluster.ready_bell.wait()
        tickets = take_tickets(cluster)
        asked = [
            cluster.recorder.ask(
                Operation.LEASE, 0, task=ticket.id, fence=ticket.fence, holder=node.holder
            )
            for ticket in tickets
        ]
        work = lease_tasks(
            node.database, node.environment, node.holder, tickets, cluster.plan.lease_s
        )
        leases = await hear(cluster, asked, work, CallPhase.FAIL)
        if leases is None and node.random.random() < 0.5:
            asked = [
                cluster.recorder.ask(
                    Operation.LEASE, 0, task=ticket.id, fence=ticket.fence, holder=node.holder
                )
                for ticket in tickets
            ]
            leases = await hear(
                cluster, asked, read_held(node.database, node.holder, tickets), CallPhase.FAIL
            )
        if leases is not None:
            begin(cluster, node, asked, leases)


def take_tickets(cluster: Cluster) -> list[Ticket]:
    """Unique by id within one call; the rest of a pair waits for the next one."""
    taken: dict[UUID, Ticket] = {}
    for ticket in list(cluster.ready):
        if len(taken) < cluster.plan.batch and ticket.id not in taken:
            taken[ticket.id] = ticket
            cluster.ready.remove(ticket)
    return list(taken.values())


def begin(cluster: Cluster, node: Node, asked: list[LogEntry], leases: list[Lease]) -> None:
    got = {lease.id: lease for lease in leases}
    for entry in asked:
        lease = got.get(entry.task) if entry.task else None
        if lease is None:
            cluster.recorder.answer(entry, answer="refused")
            continue
        cluster.recorder.answer(
            entry,
            answer="leased",
            fence=lease.fence,
            attempt=lease.attempt,
            started_at=lease.started_at,
            lease_until=lease.lease_until,
        )
        # A repeated ticket may bring the answer of a lease that was executed already.
        if (lease.id, lease.fence) not in node.begun:
            node.begun.add((lease.id, lease.fence))
            cluster.leases.append((lease.tenant, lease.id, lease.fence, node.holder))
            node.held[lease.id, lease.fence] = lease
            node.spawn(handle(cluster, node, lease))
    if leases:
        node.something_held.set()


async def handle(cluster: Cluster, node: Node, lease: Lease) -> None:
    """A handler: takes its time, sometimes far too much of it, and says how it ended."""
    key = (lease.id, lease.fence)
    cluster.recorder.effect(lease.id, lease.fence, node.holder)
    if cluster.strikes(FaultKind.PAUSE, node):
        node.held.pop(key, None)
        await asyncio.sleep(cluster.plan.lease_s * node.random.uniform(0.9, 3.0))
    else:
        await asyncio.sleep(cluster.plan.handler_s * node.random.random())
        node.held.pop(key, None)
    await node.environment.crash_point(CrashPoint.EXECUTION_AFTER_EFFECT)
    if node.told.get(key) == HeartbeatStatus.STALE and node.random.random() < 0.5:
        return
    settlement = choose_settlement(cluster, node, lease)
    for attempt in range(SETTLE_TRIES_MAX):
        answer = await settle_once(cluster, node, lease.tenant, settlement)
        repeats = cluster.strikes(FaultKind.SETTLE_REPEATED, node)
        if repeats and node.random.random() < 0.3:
            settlement = choose_settlement(cluster, node, lease)
        if answer is not None and not repeats:
            return
        await asyncio.sleep(node.random.uniform(0.0, cluster.plan.lease_s * (attempt + 1)))


def choose_settlement(cluster: Cluster, node: Node, lease: Lease) -> Settlement:
    random = node.random
    weights = HEALED_WEIGHTS if cluster.is_healed else cluster.plan.outcome_weights
    (outcome,) = random.choices(OUTCOMES, weights)
    if node.told.get((lease.id, lease.fence)) == HeartbeatStatus.CANCEL and random.random() < 0.6:
        outcome = Outcome.CANCELLED
    return Settlement(
        lease.id,
        lease.fence,
        node.holder,
        outcome,
        result='"done"' if outcome is Outcome.COMPLETED else None,
        error="boom" if outcome in (Outcome.FAILED, Outcome.REJECTED) else None,
        error_kind=random.choice(["", "", "fatal"]) if outcome is Outcome.FAILED else "",
        retry_in_s=random.choice([None, None, 0.0, 2.0]),
    )


async def settle_once(
    cluster: Cluster, node: Node, tenant: int, settlement: Settlement
) -> SettleAnswer | None:
    asked = cluster.recorder.ask(
        Operation.SETTLE,
        tenant,
        task=settlement.id,
        fence=settlement.fence,
        holder=settlement.holder,
        outcome=str(settlement.outcome),
    )
    answer = await hear(cluster, [asked], node.settler.submit(settlement))
    if answer is not None:
        cluster.recorder.answer(
            asked, answer=str(answer.status), state=answer.state, due_at=answer.due_at
        )
    return answer


async def heartbeat(cluster: Cluster, node: Node) -> None:
    """Extend whatever the node believes to hold, in batches."""
    while True:
        await node.something_held.wait()
        is_late = cluster.strikes(FaultKind.BEAT_LATE, node)
        share = node.random.uniform(0.9, 1.5) if is_late else node.random.uniform(0.2, 0.6)
        await asyncio.sleep(cluster.plan.lease_s * share)
        if not node.held:
            node.something_held.clear()
            continue
        held = list(node.held.values())
        for first in range(0, len(held), cluster.plan.batch):
            batch = held[first : first + cluster.plan.batch]
            await beat_once(cluster, node, [Beat(lease.id, lease.fence) for lease in batch])


async def beat_once(
    cluster: Cluster, node: Node, beats: list[Beat], holder: UUID | None = None
) -> None:
    by = holder or node.holder
    asked = [
        cluster.recorder.ask(Operation.HEARTBEAT, 0, task=beat.id, fence=beat.fence, holder=by)
        for beat in beats
    ]
    work = extend_leases(node.database, by, beats, cluster.plan.lease_s)
    answers = await hear(cluster, asked, work, CallPhase.FAIL)
    for entry, beat, answer in zip(asked, beats, answers or [], strict=bool(answers)):
        cluster.recorder.answer(entry, answer=str(answer.status), lease_until=answer.lease_until)
        if by == node.holder:
            node.told[beat.id, beat.fence] = answer.status


async def reap(cluster: Cluster, node: Node) -> None:
    """Take back leases that ran out, and expire what may no longer start."""
    while True:
        await asyncio.sleep(next_look_s(cluster, node))
        timer_queues = sorted(
            {(timer_queue.tenant, timer_queue.shard) for timer_queue in node.timer_queues}
        )
        if timer_queues:
            work = reap_leases(node.database, node.environment, timer_queues, cluster.plan.page)
            await hear(cluster, [], work)
        if Actor.EXPIRER in cluster.plan.actors and cluster.late:
            await hear(cluster, [], finish_unstarted(node.database, cluster.late))


def next_look_s(cluster: Cluster, node: Node) -> float:
    """Mostly at the very instant at which some lease was to end, when heartbeats race with us."""
    wait_s = cluster.plan.tick_s * node.random.uniform(0.5, 1.0)
    now = cluster.database_now()
    ends = [lease.lease_until for other in cluster.nodes.values() for lease in other.held.values()]
    coming = [(end - now).total_seconds() for end in ends if end > now]
    return min([wait_s, *coming]) if node.random.random() < 0.7 else wait_s


WORKERS = [schedule, execute, heartbeat, reap]
