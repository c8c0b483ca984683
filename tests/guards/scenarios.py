"""What must hold, acted out: each scenario raises AssertionError when its invariant is broken."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from duly.domain.access import Access
from duly.domain.errors import StatementRefused
from duly.domain.ids import node_id_of, node_number, shard_of
from duly.domain.lanes import Ticket
from duly.domain.node_spec import MapSpec, NodeSpec
from duly.domain.states import Outcome, State
from duly.domain.task import Policy, Submission
from duly.store import workflow_maps
from duly.store.control import TimerChange, reschedule_tasks
from duly.store.database import Database
from duly.store.lease import Lease, lease_tasks
from duly.store.read import read_attempts, read_task
from duly.store.submit import Mismatch, Replayed, Stored, Submitter
from duly.store.workflow_maps import open_map
from duly.store.workflow_timers import TimerKind, arm
from tests.interleaving.calls import (
    NOTHING,
    add_node,
    beat,
    cancel,
    complete_and_add,
    complete_inside,
    complete_sibling,
    expire,
    go_on,
    hand_over,
    lease_by,
    pause,
    postpone,
    promote,
    purge,
    reap,
    replay,
    settle_as,
    signal,
    stop,
    unpause,
)
from tests.interleaving.nodes import EXPIRE_KEYS, Nodes, delete_keys, request, with_expired_key
from tests.interleaving.orders import Race
from tests.interleaving.pairs import Pair, assert_pair, assert_serial, assert_true
from tests.interleaving.scenes import HOLDERS, LEASE_S, Scene, Stage

Scenario = Callable[[Stage, Race], Awaitable[None]]
NOT_COMPLETED = (Outcome.REJECTED, Outcome.RELEASED, Outcome.CANCELLED)


async def lease_again(stage: Stage, scene: Scene, name: str = "first") -> None:
    """A lease by the ticket of the present fence, which the scene then is about."""
    task = await read_task(stage.database, scene.tenant, scene.id)
    assert task is not None
    tickets = [Ticket(scene.id, task.fence)]
    leases = await lease_tasks(stage.database, stage.environment, HOLDERS[name], tickets, LEASE_S)
    assert leases, f"fence {task.fence} is the present one"
    scene.grant(leases)
    scene.holder, scene.fence = HOLDERS[name], leases[0].fence


async def charged_numbers(stage: Stage, scene: Scene) -> list[int]:
    attempts = await read_attempts(stage.database, scene.tenant, scene.id)
    return [attempt.charged for attempt in attempts if attempt.ended_at is not None]


async def release_now(stage: Stage, scene: Scene) -> None:
    """Hand the task back, due at once."""
    await settle_as(Outcome.RELEASED, retry_in_s=0.0)(stage.database, scene)


async def ends_are_recorded(stage: Stage, race: Race) -> None:
    """Whatever ends a task leaves a record, so it is never neither live nor ended."""
    for outcome in (Outcome.COMPLETED, *NOT_COMPLETED, Outcome.FAILED, Outcome.SNOOZED):
        scene = await stage.running()
        await settle_as(outcome)(stage.database, scene)
        await assert_true(stage, scene)
    for setting, call in ((stage.ready, cancel), (stage.start_by_over, expire)):
        scene = await setting()
        await call(stage.database, scene)
        await assert_true(stage, scene)


async def an_old_batch_revives_nothing(stage: Stage, race: Race) -> None:
    """A batch arrives once more after its task has ended."""
    scene = await stage.empty()
    submitter = Submitter(stage.database, stage.environment)
    asked = Submission(tenant=scene.tenant, type="email", url="https://example.org/")
    entries = await submitter.assign_ids([asked])
    await submitter.store(stage.database, entries)
    scene.id = entries[0].id
    await lease_again(stage, scene)
    await settle_as(Outcome.COMPLETED)(stage.database, scene)
    before = await assert_true(stage, scene)
    with contextlib.suppress(StatementRefused):
        await submitter.store(stage.database, entries)
    assert await assert_true(stage, scene) == before


async def a_live_task_keeps_its_payload(stage: Stage, race: Race) -> None:
    """Erasing waits for the end."""
    for setting in (stage.ready, stage.running):
        scene = await setting()
        assert await purge(stage.database, scene) == NOTHING
        facts = await assert_true(stage, scene)
        assert not facts.tasks[0]["is_blank"]


async def a_letter_is_replayed_once(stage: Stage, race: Race) -> None:
    scene = await stage.dead()
    assert await replay(stage.database, scene) == "replayed"
    assert await replay(stage.database, scene) == NOTHING
    assert len((await assert_true(stage, scene)).tasks) == 2


async def an_old_ticket_is_void(stage: Stage, race: Race) -> None:
    """A ticket that waited in a queue while the task was leased and released, or moved."""
    scene = await stage.running()
    await release_now(stage, scene)
    scene.fence = 0
    assert await lease_by("second")(stage.database, scene) == NOTHING
    scene = await stage.ready()
    assert await promote(stage.database, scene) == "moved"
    assert await lease_by("second")(stage.database, scene) == NOTHING


async def a_held_task_is_not_leased(stage: Stage, race: Race) -> None:
    """The lease ran out but nobody has reaped it: it must end on record before another begins."""
    scene = await stage.expired()
    assert await lease_by("second")(stage.database, scene) == NOTHING
    await assert_true(stage, scene)


async def fences_rise(stage: Stage, race: Race) -> None:
    """Every lease, every end of one, every move and every cancel voids what was known before."""
    scene = await stage.ready()
    fences = [scene.fence]
    for outcome in (Outcome.RELEASED, Outcome.FAILED):
        await lease_again(stage, scene)
        fences.append(scene.fence)
        await settle_as(outcome, retry_in_s=0.0)(stage.database, scene)
        fences.append(await present_fence(stage, scene))
    await assert_true(stage, scene)
    await reschedule_tasks(stage.database, scene.tenant, [TimerChange(scene.id, delay_s=0.0)])
    fences.append(await present_fence(stage, scene))
    await cancel(stage.database, scene)
    fences.append(await present_fence(stage, scene))
    assert fences == sorted(set(fences))


async def present_fence(stage: Stage, scene: Scene) -> int:
    task = await read_task(stage.database, scene.tenant, scene.id)
    assert task is not None
    return task.fence


async def two_leasers_one_lease(stage: Stage, race: Race) -> None:
    leases = {("leased 1", NOTHING), (NOTHING, "leased 1")}
    await assert_pair(
        Pair("", Stage.ready, lease_by("first"), lease_by("second"), leases), stage, race
    )


async def a_stale_fence_changes_nothing(stage: Stage, race: Race) -> None:
    """The same holder has the task again, and speaks of the lease before."""
    for outcome in (Outcome.COMPLETED, *NOT_COMPLETED):
        scene = await stage.running()
        await release_now(stage, scene)
        old = scene.fence
        await lease_again(stage, scene)
        scene.fence = old
        await assert_stale(stage, scene, outcome)


async def a_foreign_holder_changes_nothing(stage: Stage, race: Race) -> None:
    """A caller knows the fence, but the lease is another's."""
    for outcome in (Outcome.COMPLETED, *NOT_COMPLETED):
        scene = await stage.running()
        scene.holder = HOLDERS["second"]
        await assert_stale(stage, scene, outcome)


async def assert_stale(stage: Stage, scene: Scene, outcome: Outcome) -> None:
    before = await assert_true(stage, scene)
    assert await beat(stage.database, scene) == "stale"
    # Other words than those on record, so that it cannot pass for a repetition.
    assert await settle_as(outcome, "late")(stage.database, scene) == "stale"
    assert await assert_true(stage, scene) == before


async def a_stranger_repeats_nothing(stage: Stage, race: Race) -> None:
    """Another holder in the same words is told that it is stale, not that it was heard."""
    scene = await stage.completed()
    scene.holder = HOLDERS["second"]
    assert await settle_as(Outcome.COMPLETED)(stage.database, scene) == "stale"


async def a_heartbeat_ends_with_the_time_limit(stage: Stage, race: Race) -> None:
    scene = await stage.running(Policy(timeout_s=0.0))
    assert await beat(stage.database, scene) == "stale"


async def a_reaper_spares_the_living(stage: Stage, race: Race) -> None:
    """The heartbeat lands between the reaper's look and its blow."""
    told = {(NOTHING, "held"), ("settled again", "stale")}
    await assert_pair(Pair("", Stage.expired, reap, beat, told, True), stage, race)


async def a_reaper_spares_the_living_that_is_to_be_cancelled(stage: Stage, race: Race) -> None:
    told = {(NOTHING, "cancel"), ("settled CANCELLED", "stale")}
    await assert_pair(Pair("", Stage.doomed, reap, beat, told, True), stage, race)


async def a_look_at_a_lease_leaves_its_successor_alone(stage: Stage, race: Race) -> None:
    release = settle_as(Outcome.RELEASED)
    told = {(NOTHING, "settled again")}
    await assert_pair(Pair("", Stage.prolonged, reap, release, told, True), stage, race)


async def only_the_unstarted_expire(stage: Stage, race: Race) -> None:
    """Not what runs or ran before, not what has time left, and not by an old ticket."""
    running = await stage.start_by_over()
    await lease_again(stage, running)
    moved = await stage.start_by_over()
    await promote(stage.database, moved)
    handed_back = await stage.start_by_over()
    await lease_again(stage, handed_back)
    await settle_as(Outcome.RELEASED, retry_in_s=0.0)(stage.database, handed_back)
    handed_back.fence += 1
    for scene in (running, await stage.ready(), moved, handed_back):
        before = await assert_true(stage, scene)
        assert await expire(stage.database, scene) == NOTHING
        assert await assert_true(stage, scene) == before


async def only_charged_attempts_count(stage: Stage, race: Race) -> None:
    """Handing back and putting off use up no attempt, however the task goes on."""
    scene = await stage.ready()
    ends = (Outcome.RELEASED, Outcome.SNOOZED, Outcome.FAILED, Outcome.RELEASED, Outcome.COMPLETED)
    for outcome in ends:
        await lease_again(stage, scene)
        await settle_as(outcome, retry_in_s=0.0)(stage.database, scene)
    assert await charged_numbers(stage, scene) == [0, 0, 1, 0, 2]
    doomed = await stage.doomed()
    await settle_as(Outcome.RELEASED)(stage.database, doomed)
    assert await charged_numbers(stage, doomed) == [0]


async def a_key_stands_for_one_request(stage: Stage, race: Race) -> None:
    """Until its time to live is over, and then it is free."""
    scene = await stage.empty()
    submitter = Submitter(stage.database, stage.environment)
    first, other = request(scene, "1"), request(scene, "2")
    (stored,) = await submitter.submit([first])
    assert isinstance(stored, Stored)
    assert await submitter.submit([first]) == [Replayed(stored.id)]
    assert await submitter.submit([other]) == [Mismatch(stored.id)]
    assert len((await stage.facts(scene)).tasks) == 1
    await stage.owner.execute(EXPIRE_KEYS, scene.tenant)
    (later,) = await submitter.submit([other])
    assert isinstance(later, Stored)
    assert later.id != stored.id


async def the_broom_spares_a_key_that_was_taken_over(stage: Stage, race: Race) -> None:
    """The deletion of old keys waits for a take-over, and must look again."""
    told = {("stored", "0 deleted"), ("stored", "1 deleted")}
    pair = Pair("", with_expired_key, Nodes(stage).submit(1), delete_keys, told)
    await assert_pair(pair, stage, race)


async def nothing_is_leased_early(stage: Stage, race: Race) -> None:
    """Scheduled, waiting for its retry, or postponed: not before the database's clock says so."""
    waiting = await stage.running()
    await settle_as(Outcome.FAILED)(stage.database, waiting)
    postponed = await stage.ready()
    assert await postpone(stage.database, postponed) == "moved"
    for scene in (await stage.scheduled(), waiting, postponed):
        scene.fence = await present_fence(stage, scene)
        assert await lease_by("second")(stage.database, scene) == NOTHING
    assert await stored_in_hands(stage, delay_s=60.0) is State.SCHEDULED


async def stored_in_hands(stage: Stage, delay_s: float) -> State:
    """The state of a task that somebody waited for when it was stored."""
    submitter, tenant = Submitter(stage.database, stage.environment), next(stage.tenants)
    await submitter.submit([Submission(tenant, "first in its place")])
    submitter.find_consumer = lambda _entries: Hasty()
    (answer,) = await submitter.submit([Submission(tenant, "later", delay_s=delay_s)])
    task = await read_task(stage.database, tenant, answer.id)
    assert task is not None
    return task.state


class Hasty:
    """A consumer that takes whatever it is handed."""

    holder, lease_s = HOLDERS["first"], LEASE_S

    def take(self, leases: list[Lease]) -> None:
        assert not leases


async def after_a_cancel_there_is_no_retry(stage: Stage, race: Race) -> None:
    """Not after a failure, a release or a lost lease; and it is called CANCELLED, not FAILED."""
    for outcome in (Outcome.FAILED, Outcome.SNOOZED, *NOT_COMPLETED):
        scene = await stage.doomed()
        assert await settle_as(outcome)(stage.database, scene) == "settled CANCELLED"
        await assert_true(stage, scene)
    scene = await stage.doomed()
    assert await reap(stage.database, scene) == "settled CANCELLED"
    await assert_true(stage, scene)


async def a_retry_and_a_cancel_agree(stage: Stage, race: Race) -> None:
    told = {("settled CANCELLED", "cancel_requested"), ("settled again", "cancelled")}
    pair = Pair("", Stage.running, settle_as(Outcome.FAILED), cancel, told)
    await assert_pair(pair, stage, race)


async def a_lease_and_a_cancel_agree(stage: Stage, race: Race) -> None:
    told = {("leased 1", "cancel_requested"), (NOTHING, "cancelled")}
    await assert_pair(Pair("", Stage.ready, lease_by("second"), cancel, told), stage, race)


# I7 ---------------------------------------------------------------------------------------------


async def a_node_ends_under_the_lock_of_its_workflow(stage: Stage, race: Race) -> None:
    """An end takes a node and then its children, a cancel of the whole takes all of them."""
    for setting, call in (
        (Stage.node, settle_as(Outcome.COMPLETED)),
        (Stage.node, settle_as(Outcome.REJECTED)),
        (Stage.free_node, cancel),
    ):
        pair = Pair("an end and a cancel of the whole", setting, call, stop, set())
        seen, _ = await assert_serial(pair, stage, race)
        assert all("refused" not in answer for answers in seen for answer in answers), seen


async def nothing_starts_in_a_pause(stage: Stage, race: Race) -> None:
    """What is tried again meanwhile is held, also where its statement began before the pause."""
    release = settle_as(Outcome.RELEASED, retry_in_s=0.0)
    answers = {("settled again", "paused"), ("settled", "paused")}
    pair = Pair("a retry and a pause", Stage.node, release, pause, answers)
    await assert_pair(pair, stage, race)


async def what_a_pause_holds_is_due_afterwards(stage: Stage, race: Race) -> None:
    scene = await stage.held_node()
    assert await unpause(stage.database, scene) == "unpaused 1"
    await lease_again(stage, scene)
    await assert_true(stage, scene)


async def a_late_worker_adds_no_nodes(stage: Stage, race: Race) -> None:
    """Its lease ended, and another holds the node; or none does."""
    for again in (False, True):
        scene = await stage.node(LEASE_S)
        late = scene.fence
        await settle_as(Outcome.RELEASED, retry_in_s=0.0)(stage.database, scene)
        if again:
            await lease_again(stage, scene, "second")
        scene.fence, scene.holder = late, HOLDERS["first"]
        before = await stage.facts(scene)
        assert await complete_and_add(stage.database, scene) == "stale"
        assert await stage.facts(scene) == before


async def added_nodes_join_as_their_parents_stand(stage: Stage, race: Race) -> None:
    """One comes after a parent that has ended and one that has not."""
    scene = await stage.node(LEASE_S)
    await settle_as(Outcome.COMPLETED)(stage.database, scene)
    assert await add_node(stage.database, scene) == "added"
    await assert_true(stage, scene)
    assert await waiting_for(stage, scene) == {3: (1, 1), 4: (1, 1)}
    await complete_sibling(stage.database, scene)
    assert await waiting_for(stage, scene) == {3: (None, None), 4: (1, 1)}
    assert scene.workflow is not None
    scene.id, scene.fence = node_id_of(scene.workflow, 3), 0
    await lease_again(stage, scene)
    await settle_as(Outcome.COMPLETED)(stage.database, scene)
    assert await waiting_for(stage, scene) == {4: (None, None)}


async def a_signal_meets_the_wait_that_begins(stage: Stage, race: Race) -> None:
    """A signal that sees no waiting node, and a node that sees no signal, miss each other."""
    pair = Pair("a signal and a beginning", Stage.unbegun_wait, signal, go_on, set())
    await assert_serial(replace(pair, right_may_pass=True), stage, race)


async def a_signal_is_for_one_node_that_wants_its_sender(stage: Stage, race: Race) -> None:
    """Kept before two nodes wait for it, and sent while they do."""
    for roles, last in (((Access.PRODUCER,) * 2, 2), ((Access.ADMIN, Access.PRODUCER), 1)):
        for is_kept in (True, False):
            scene = await stage.waits(*roles)
            calls = [go_on, go_on]
            for call in [signal, *calls] if is_kept else [*calls, signal]:
                await call(stage.database, scene)
            facts = await assert_true(stage, scene)
            assert [node_number(row["id"]) for row in facts.timers] == [last]
            assert [row["consumed_by"] for row in facts.signals] == [3 - last]


async def what_completed_is_undone_once_and_the_last_first(stage: Stage, race: Race) -> None:
    """Of three nodes, the third failed: the second is undone, then the first, then nothing."""
    scene = await stage.undone_workflow()
    assert scene.workflow is not None
    for number, undone in ((10_001, 2), (10_002, 1)):
        await go_on(stage.database, scene)
        facts = await assert_true(stage, scene)
        due = [node_number(row["id"]) for row in facts.timers if row["may_start"]]
        assert due == [number], "one at a time"
        made = replace(scene, id=node_id_of(scene.workflow, number), granted=set())
        assert await undone_by(stage, made) == undone
        await lease_again(stage, made)
        await settle_as(Outcome.COMPLETED)(stage.database, made)
    await go_on(stage.database, scene)
    facts = await assert_true(stage, scene)
    (ended,) = facts.workflows
    assert (ended["state"], ended["compensated"], ended["generated"]) == ("FAILED", 2, 2)


async def undone_by(stage: Stage, scene: Scene) -> int:
    found: int = await stage.owner.fetchval(
        "SELECT compensates FROM duly.workflow_nodes WHERE id = $1", scene.id
    )
    return found


async def a_cancel_stops_what_undoes(stage: Stage, race: Race) -> None:
    """Before the first of it, and while that runs."""
    for setting, undone in ((stage.undone_workflow, 0), (stage.undoing_node, 1)):
        scene = await setting()
        await stop(stage.database, scene)
        if undone:
            await settle_as(Outcome.COMPLETED)(stage.database, scene)
        await go_on(stage.database, scene)
        facts = await assert_true(stage, scene)
        (ended,) = facts.workflows
        assert (ended["state"], ended["compensated"]) == ("CANCELLED", undone)


async def a_node_ends_with_the_workflow_inside(stage: Stage, race: Race) -> None:
    """Not before it, whether a cancel comes, or a look that is too early; and once it has ended."""
    for call in (cancel, stop, look):
        scene = await stage.begun_inner()
        await call(stage.database, scene)
        live = {row["id"] for row in (await assert_true(stage, scene)).timers}
        assert scene.id in live, f"the node has ended before the workflow inside: {call}"
        await complete_inside(stage.database, scene)
        await go_on(stage.database, scene)
        live = {row["id"] for row in (await assert_true(stage, scene)).timers}
        assert scene.id not in live, f"the node lives on after the workflow inside: {call}"


async def look(database: Database, scene: Scene) -> str:
    """Whether the workflow inside has ended."""
    assert scene.workflow is not None
    async with database.transaction() as session:
        asked = scene.tenant, scene.workflow, TimerKind.CHILD
        await arm(session, *asked, node=node_number(scene.id))
    return await go_on(database, scene)


async def a_late_parent_hands_over_no_items(stage: Stage, race: Race) -> None:
    """Its lease has ended: it is given back, or another one holds it."""
    for again in (False, True):
        scene = await stage.paged_map()
        late = scene.fence
        await settle_as(Outcome.RELEASED, retry_in_s=0.0)(stage.database, scene)
        scene.fence = late + 1
        if again:
            await lease_again(stage, scene, "second")
            scene.fence = late
        before = await stage.facts(scene)
        assert await hand_over(stage.database, scene) == "stale 0"
        assert await stage.facts(scene) == before


async def a_map_begins_once_its_parents_let_it(stage: Stage, race: Race) -> None:
    """Not twice, and not before, unless its only parent hands over items."""
    scene = await stage.unopened_map()
    assert scene.workflow is not None
    spec = MapSpec(count=4, max_items=10)
    assert await open_map(stage.database, scene.id, spec, 4, None)
    before = await stage.facts(scene)
    assert not await open_map(stage.database, scene.id, spec, 4, None)
    assert await stage.facts(scene) == before
    paged = await stage.paged_map()
    assert paged.workflow is not None
    assert not await open_map(stage.database, node_id_of(paged.workflow, 2), spec, None, None)
    waiting = await stage.node(LEASE_S, NodeSpec(map=spec))
    assert waiting.workflow is not None
    for total in (4, None):
        join = node_id_of(waiting.workflow, 3)
        assert not await open_map(stage.database, join, spec, total, None)


async def a_map_is_closed_and_fails_once(stage: Stage, race: Race) -> None:
    """An item less is waited for with each close; and the first reason stands."""
    scene = await stage.open_map()
    assert scene.workflow is not None
    shard, node = shard_of(scene.workflow), node_id_of(scene.workflow, 1)
    closed = await stage.database.fetch(workflow_maps.SQL.close_map, shard, node)
    noted = await stage.database.fetch(
        workflow_maps.SQL.note_failure, shard, node, "items_failed", "first"
    )
    assert (len(closed), len(noted)) == (1, 1)
    before = await stage.facts(scene)
    await stage.database.fetch(workflow_maps.SQL.close_map, shard, node)
    await stage.database.fetch(
        workflow_maps.SQL.note_failure, shard, node, "invalid_items", "second"
    )
    assert await stage.facts(scene) == before


async def waiting_for(stage: Stage, scene: Scene) -> dict[int, tuple[int | None, int | None]]:
    """Of each unleased node, by number, how many of its parents are pending, and how many
    completed."""
    facts = await stage.facts(scene)
    return {
        node_number(row["id"]): (row["parents_pending"], row["parents_completed"])
        for row in facts.timers
        if row["holder"] is None
    }
