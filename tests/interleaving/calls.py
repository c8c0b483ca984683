"""The store's calls as the two sides of a race: each does one thing to a scene, and says in words
what it was answered, without ids and instants, so that answers can be compared.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

from duly.domain.access import Access
from duly.domain.ids import node_id_of, node_number, shard_of
from duly.domain.states import Outcome
from duly.domain.task import Submission
from duly.domain.workflow import WorkflowStop
from duly.environment import Environment
from duly.store.async_webhooks import accept_async
from duly.store.control import TimerChange, cancel_tasks, reschedule_tasks, run_now
from duly.store.database import Database
from duly.store.dead_letters import replay_dead_letters
from duly.store.finish import Released, SettleAnswer, Settlement, finish_unstarted
from duly.store.lease import Beat, extend_leases, lease_tasks
from duly.store.purge import purge_letters, purge_tasks
from duly.store.ready_tickets import lease_tickets
from duly.store.reap import reap_leases
from duly.store.settle import Settler
from duly.store.submit import Submitter
from duly.store.workflow_appends import Append, RefusedAppend, WorkflowAppends
from duly.store.workflow_control import stop_workflow
from duly.store.workflow_handovers import ItemPage, hand_over_page
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_signals import Signal, SignalRefused, send_signal
from duly.store.workflows import NodeStart
from tests.interleaving.scenes import HOLDERS, LEASE_S, SIGNAL, Scene, run_due_timer

SceneCall = Callable[[Database, Scene], Awaitable[str]]
NOTHING = "nothing"
HOUR_S = 3600.0
# Each call draws alike, so that an order can be played again.
SEED = 7


def environment() -> Environment:
    return Environment(random=Random(SEED))


def lease_by(name: str) -> SceneCall:
    async def lease(database: Database, scene: Scene) -> str:
        leases = await lease_tasks(database, environment(), HOLDERS[name], [scene.ticket], LEASE_S)
        scene.grant(leases)
        return f"leased {leases[0].fence}" if leases else NOTHING

    return lease


async def take(database: Database, scene: Scene) -> str:
    """The ticket out of the table and its lease, in one statement."""
    lanes = {scene.lane: 0}
    taken = await lease_tickets(database, environment(), HOLDERS["second"], lanes, 1, LEASE_S)
    scene.grant(taken.leases)
    return f"leased {taken.leases[0].fence}" if taken.leases else NOTHING


async def hand_to_receiver(database: Database, scene: Scene) -> str:
    return "handed over" if await accept_async(database, [(scene.id, scene.fence)]) else NOTHING


async def beat(database: Database, scene: Scene) -> str:
    (answer,) = await extend_leases(database, scene.holder, [Beat(scene.id, scene.fence)], LEASE_S)
    return answer.status.value


def settle_as(outcome: Outcome, error: str | None = None, retry_in_s: float = HOUR_S) -> SceneCall:
    async def settle(database: Database, scene: Scene) -> str:
        end = Settlement(
            scene.id, scene.fence, scene.holder, outcome, error=error, retry_in_s=retry_in_s
        )
        (answer,) = await Settler(database, environment()).settle([end])
        return settled(answer)

    return settle


def settled(answer: SettleAnswer) -> str:
    state = answer.state or ("again" if answer.due_at else "")
    return f"{answer.status} {state}".strip()


async def reap(database: Database, scene: Scene) -> str:
    places = [(scene.tenant, shard_of(scene.id))]
    reaped = await reap_leases(database, environment(), places, limit=10)
    return ", ".join(settled(answer) for _, answer in reaped.lost) or NOTHING


async def complete_sibling(database: Database, scene: Scene) -> str:
    """The other parent of the scene's child ends well."""
    assert scene.sibling is not None
    end = Settlement(scene.sibling.id, scene.sibling.fence, scene.holder, Outcome.COMPLETED)
    (answer,) = await Settler(database, environment()).settle([end])
    return settled(answer)


async def stop(database: Database, scene: Scene) -> str:
    """The whole workflow is cancelled."""
    assert scene.workflow is not None
    reason = WorkflowStop.CANCELLED
    async with database.transaction() as session:
        is_stopped = await stop_workflow(session, scene.tenant, scene.workflow, reason, Released())
    return "stopped" if is_stopped else NOTHING


async def pause(database: Database, scene: Scene) -> str:
    assert scene.workflow is not None
    async with database.transaction() as session:
        is_paused = await pause_workflow(session, scene.tenant, scene.workflow, "operator")
    return "paused" if is_paused else NOTHING


async def unpause(database: Database, scene: Scene) -> str:
    """What it sets free is told to the doorbell, and must be what is due."""
    assert scene.workflow is not None
    released = Released()
    async with database.transaction() as session:
        is_unpaused = await unpause_workflow(session, scene.tenant, scene.workflow, released)
    return f"unpaused {len(released.timers)}" if is_unpaused else NOTHING


async def go_on(database: Database, scene: Scene) -> str:
    """What the workflow has to do without a caller: a step, the end of a wait."""
    released = await run_due_timer(database, scene)
    if released is None or released == Released():
        return NOTHING
    return f"{len(released.ended)} ended, {len(released.timers)} set free"


async def cancel_map(database: Database, scene: Scene) -> str:
    """The map alone, by itself."""
    assert scene.workflow is not None
    # The first node is the map, or what hands over its items.
    number = 2 if node_number(scene.id) == 1 else 1
    node = node_id_of(scene.workflow, number)
    return (await cancel_tasks(database, scene.tenant, [node]))[node].value


async def hand_over(database: Database, scene: Scene) -> str:
    """The item behind the first one."""
    released = Released()
    page = ItemPage(scene.tenant, scene.id, scene.fence, "charge", 1, ["2"])
    answer = await hand_over_page(database, page, released)
    return f"{answer.answer} {answer.handed}"


async def complete_inside(database: Database, scene: Scene) -> str:
    """The only task of the workflow that the scene's node has started."""
    assert scene.inner_lease is not None
    lease = scene.inner_lease
    end = Settlement(lease.id, lease.fence, scene.holder, Outcome.COMPLETED)
    (answer,) = await Settler(database, environment()).settle([end])
    return settled(answer)


async def stop_inside(database: Database, scene: Scene) -> str:
    """What a stop of the one around does to it, or its owner by its id."""
    return await stop(database, replace(scene, workflow=scene.inside))


def new_node(scene: Scene) -> Append:
    """One that comes after the scene's node and the child of it."""
    task = Submission(tenant=scene.tenant, type="email", url="https://example.org/")
    return Append(scene.tenant, [NodeStart("added", task)], [["left", "join"]])


def appends_on(database: Database) -> WorkflowAppends:
    known = environment()
    return WorkflowAppends(Submitter(database, known), Settler(database, known))


async def add_node(database: Database, scene: Scene) -> str:
    assert scene.workflow is not None
    async with database.transaction() as session:
        added = await appends_on(database).append(session, scene.workflow, new_node(scene))
    return f"refused {added.why}" if isinstance(added, RefusedAppend) else "added"


async def complete_and_add(database: Database, scene: Scene) -> str:
    end = Settlement(scene.id, scene.fence, scene.holder, Outcome.COMPLETED)
    answer = await appends_on(database).settle(end, new_node(scene))
    return f"refused {answer.why}" if isinstance(answer, RefusedAppend) else settled(answer)


async def signal(database: Database, scene: Scene) -> str:
    """What a node of the workflow may wait for."""
    assert scene.workflow is not None
    sent = Signal(SIGNAL, "1", "key", Access.OPERATOR)
    released = Released()
    async with database.transaction() as session:
        answer = await send_signal(session, scene.tenant, scene.workflow, sent, released)
    if isinstance(answer, SignalRefused):
        return answer.value
    return f"given to {answer.node}, {len(released.timers)} set free"


async def expire(database: Database, scene: Scene) -> str:
    return "expired" if await finish_unstarted(database, [scene.ticket]) else NOTHING


async def cancel(database: Database, scene: Scene) -> str:
    return (await cancel_tasks(database, scene.tenant, [scene.id]))[scene.id].value


async def postpone(database: Database, scene: Scene) -> str:
    move = TimerChange(scene.id, delay_s=HOUR_S)
    return (await reschedule_tasks(database, scene.tenant, [move]))[scene.id].value


async def promote(database: Database, scene: Scene) -> str:
    move = TimerChange(scene.id, priority=9)
    return (await reschedule_tasks(database, scene.tenant, [move]))[scene.id].value


async def hasten(database: Database, scene: Scene) -> str:
    return (await reschedule_tasks(database, scene.tenant, [run_now(scene.id)]))[scene.id].value


async def replay(database: Database, scene: Scene) -> str:
    made = await replay_dead_letters(database, environment(), scene.tenant, [scene.id])
    return "replayed" if made else NOTHING


async def purge_letter(database: Database, scene: Scene) -> str:
    async with database.tenant(scene.tenant) as session:
        purged = await purge_letters(session, scene.tenant, [scene.id], "operator")
    return "purged" if purged else NOTHING


async def purge(database: Database, scene: Scene) -> str:
    purged = await purge_tasks(database, scene.tenant, [scene.id], "officer")
    return "erased" if purged else NOTHING
