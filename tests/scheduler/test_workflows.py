"""The role that does what workflows have to do without a caller, on a real PostgreSQL."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duly.coordinator.ownership import Coordinator
from duly.domain.errors import TooManyPools
from duly.domain.ids import SLOTS, shard_of, slot_of
from duly.domain.task import Callback
from duly.environment import Environment
from duly.events import NodesReleased, TaskEvents
from duly.scheduler import workflows as role_module
from duly.scheduler.workflows import AGAIN_S, WorkflowRole
from duly.store import workflow_timers
from duly.store.notify import WORKFLOWS
from duly.store.policies import encode_callback
from duly.store.submit import Submitter
from duly.store.subworkflows import Subworkflows
from duly.store.workflow_callbacks import WorkflowCallbacks
from tests.store.test_workflows import Flow, begin
from tests.store.world import World

FEW = 3
CALLBACK = encode_callback(Callback("ended", pool="new"))
SPOIL = "UPDATE duly.workflow_timers SET kind = 'cascade', cursor = 'x' WHERE workflow = $1"
LATER = """SELECT tries, extract(epoch FROM due_at - duly.now())::float AS in_s
             FROM duly.workflow_timers WHERE workflow = $1"""


@pytest.fixture
async def world(engine_url: str, owner_url: str) -> AsyncIterator[World]:
    async with World.open(engine_url, owner_url) as world:
        yield world


class NoPools(Submitter):
    async def assign_ids(self, *_: object) -> Any:
        raise TooManyPools(most=1)


def make_role(world: World) -> WorkflowRole:
    slots = SimpleNamespace(owned=range(SLOTS))
    environment = Environment(clock=world.clock)
    submitter = NoPools(world.database, environment)
    return WorkflowRole(
        *(world.database, environment, cast("Coordinator", slots), WorkflowCallbacks(submitter)),
        *(Subworkflows(submitter), TaskEvents(), None),
    )


async def ended(world: World, count: int) -> list[Flow]:
    """Workflows whose end is to be told."""
    flows = [await begin(world, {"a": ()}, callback=CALLBACK) for _ in range(count)]
    for flow in flows:
        await flow.end("a")
    return flows


async def test_what_cannot_be_done_hides_nothing_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callbacks of one tenant that are refused for good would stop the workflows of all others."""
    monkeypatch.setattr(workflow_timers, "TIMERS_AT_ONCE", FEW)
    monkeypatch.setattr(role_module, "TIMERS_AT_ONCE", FEW)
    refused = await ended(world, FEW)
    late = await begin(world, {"a": ()}, deadline_s=60)
    world.advance(61)
    role = make_role(world)
    for _ in range(2):
        await role.tick()
    assert (await late.read()).ended_at is not None
    (row,) = await world.database.fetch(LATER, refused[0].id)
    assert (row["tries"], row["in_s"]) == (1, AGAIN_S)


async def test_what_fails_again_and_again_is_tried_less_often(world: World) -> None:
    """One that fails for good would be tried every few seconds for ever."""
    (flow,) = await ended(world, 1)
    role, waited = make_role(world), []
    for _ in range(12):
        await role.tick()
        (row,) = await world.database.fetch(LATER, flow.id)
        waited.append(row["in_s"])
        world.advance(row["in_s"])
    assert waited[:3] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    assert waited[-1] == waited[-2] == role_module.AGAIN_S_MAX


async def test_a_mistake_of_ours_in_one_timer_stops_no_other(world: World) -> None:
    """A row that makes the code fail would be met first at every look, before all others."""
    spoilt = await begin(world, {"a": ()}, deadline_s=10)
    await world.database.fetch(SPOIL, spoilt.id)
    late = await begin(world, {"a": ()}, deadline_s=60)
    world.advance(61)
    role = make_role(world)
    await role.tick()
    assert (await late.read()).ended_at is not None
    (row,) = await world.database.fetch(LATER, spoilt.id)
    assert row["tries"] == 1


async def test_what_is_to_be_done_now_is_looked_at_now_wherever_it_was_found_out(
    world: World,
) -> None:
    """A step that only the next look finds costs each node with an `if` three seconds."""
    sent: list[tuple[str, list[str]]] = []
    flow = await begin(world, {"a": ()})
    slot = slot_of(shard_of(flow.id))

    def role_of(owned: set[int]) -> WorkflowRole:
        role = make_role(world)
        role.coordinator = cast("Coordinator", SimpleNamespace(owned=owned))
        role.send = lambda channel, hints: sent.append((channel, hints))
        return role

    owner, stranger = role_of({slot}), role_of({(slot + 1) % SLOTS})
    owner.on_released(NodesReleased(workflows=[flow.id]))
    assert owner.wakeup.event.is_set()
    assert sent == []
    owner = role_of({slot})
    stranger.on_released(NodesReleased(workflows=[flow.id]))
    assert not stranger.wakeup.event.is_set()
    ((channel, hints),) = sent
    assert channel == WORKFLOWS
    stranger.on_notify(hints)
    owner.on_notify(["what", "99999", ""])
    assert not owner.wakeup.event.is_set()
    owner.on_notify(hints)
    assert owner.wakeup.event.is_set()
    assert not stranger.wakeup.event.is_set()
