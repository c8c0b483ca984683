"""Resumed maps: items that completed stand for the new ones, and only the others run."""

import json
from collections import Counter
from collections.abc import Sequence

from duly.domain.states import Outcome, State
from duly.store.lease import Lease
from duly.store.workflow_control import run_timer
from duly.store.workflow_timers import find_due_timers
from duly.store.workflows import read_items
from tests.store.maps import ALONE, AROUND, Mapped, begin, over_count, over_list
from tests.store.test_workflow_maps import DyingDatabase, Killed, no_callback, verified
from tests.store.test_workflow_resumes import resume as resume_flow
from tests.store.world import TENANT, World

COMPLETED, FAILED, CANCELLED = State.COMPLETED, State.FAILED, State.CANCELLED


async def resume(flow: Mapped, names: Sequence[str] | None = None, **fields: object) -> Mapped:
    again = await resume_flow(flow, names, **fields)
    made = Mapped(flow.world, again.id, list(flow.ids))
    await made.step()
    return made


async def play(flow: Mapped, failing: Sequence[int]) -> list[Lease]:
    """To its end; items at these places fail. What ran, in its order."""
    ran: list[Lease] = []
    while True:
        leases = await flow.world.lease_all()
        ran += leases
        bad = [each for each in leases if place_of(each) in failing]
        await flow.settle([each for each in leases if each not in bad])
        await flow.settle(bad, Outcome.FAILED)
        if not await flow.step() and not leases:
            return ran


def place_of(lease: Lease) -> int | None:
    place = lease.execution_key.rpartition(":")[2]
    return int(place) if place.isdecimal() else None


def places(leases: Sequence[Lease]) -> list[int]:
    return sorted(place for each in leases if (place := place_of(each)) is not None)


async def settle_first(flow: Mapped, completed: int, failed: int) -> None:
    """Of the items that are open; then the map gives up, or goes on."""
    leases = sorted(await flow.world.lease_all(), key=lambda each: place_of(each) or 0)
    await flow.settle(leases[:completed])
    await flow.settle(leases[completed : completed + failed], Outcome.FAILED)
    await flow.settle(leases[completed + failed :], Outcome.CANCELLED)
    await flow.step()


async def test_only_items_that_did_not_complete_run_again(world: World, engine_url: str) -> None:
    """A resume of a map that charges every customer a second time."""
    first = await begin(world, over_count(10), ALONE)
    await first.step()
    await settle_first(first, completed=6, failed=1)
    assert (await first.read()).state is FAILED
    again = await resume(first)
    assert await verified(engine_url) == []
    assert (await again.counts())["completed"] == 6
    ran = await play(again, failing=[])
    assert places(ran) == [6, 7, 8, 9]
    assert ran[0].execution_key == f"{first.id}:charge:6", "the receiver would charge twice"
    assert await again.result() == {"items": 10, "completed": 10, "failed": 0, "cancelled": 0}
    done = await again.read()
    assert (done.state, done.counts["completed"], done.nodes) == (COMPLETED, 12, 12)
    assert await verified(engine_url) == []
    items = await read_items(world.database, TENANT, again.ids["charge"], 0, 20)
    assert [each.map_index for each in items] == list(range(10))
    assert [each.source is not None for each in items] == [True] * 6 + [False] * 4
    assert {each.state for each in items} == {COMPLETED}


async def test_a_chain_of_resumes_runs_each_item_to_its_end_once(
    world: World, engine_url: str
) -> None:
    """The third run must know what the first and the second did."""
    flow = await begin(world, over_list("/ids", max_parallel=4), AROUND)
    list_lease = await world.lease(flow.ids["list"])
    await world.settle(list_lease, Outcome.COMPLETED, result=json.dumps({"ids": [*"abcdefgh"]}))
    await flow.step()
    completed: Counter[str] = Counter()
    for failing in ([2], [5], []):
        ran = await play(flow, failing)
        items = [each for each in ran if place_of(each) is not None]
        completed.update(each.payload or "" for each in items if place_of(each) not in failing)
        assert await verified(engine_url) == []
        if failing:
            assert (await flow.read()).state is FAILED
            flow = await resume(flow)
    assert completed == Counter(f'"{each}"' for each in "abcdefgh")
    assert (await flow.read()).state is COMPLETED
    assert await flow.result() == {"items": 8, "completed": 8, "failed": 0, "cancelled": 0}


async def test_tolerated_failures_run_again_when_their_map_is_named(world: World) -> None:
    """A map that completed with some failures has what is left to do."""
    first = await begin(world, over_count(10, tolerated_percent=30), ALONE)
    await first.step()
    await play(first, failing=[3, 8])
    assert (await first.read()).state is COMPLETED
    again = await resume(first, ["charge"])
    assert places(await play(again, [])) == [3, 8]
    assert await again.result() == {"items": 10, "completed": 10, "failed": 0, "cancelled": 0}


async def test_a_map_that_completed_whole_runs_whole_when_it_is_named(world: World) -> None:
    """Named, it is to run again, and not to do nothing."""
    first = await begin(world, over_count(3), ALONE)
    await first.step()
    await play(first, [])
    assert places(await play(await resume(first, ["charge"]), [])) == [0, 1, 2]


async def test_with_another_input_no_item_is_reused(world: World) -> None:
    """The third item of another list is another customer; and a new payload is for all of them."""
    first = await begin(world, over_list("/ids"), AROUND)
    lease = await world.lease(first.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result='{"ids": [1, 2, 3]}')
    await first.step()
    await settle_first(first, completed=2, failed=1)
    paid = await resume(first, payloads={2: '{"currency": "EUR"}'})
    leases = await world.lease_all()
    assert [each.payload for each in leases] == [
        f'{{"currency": "EUR","item":{number}}}' for number in (1, 2, 3)
    ]
    await paid.settle(leases[:1], Outcome.FAILED)
    await paid.settle(leases[1:])
    await paid.step()
    other = await resume(first, ["list"])
    lease = await world.lease(other.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result='{"ids": [4, 5]}')
    await other.step()
    assert [each.payload for each in await world.lease_all()] == ["4", "5"]


async def test_a_kill_between_any_two_statements_reuses_each_item_once(
    world: World, engine_url: str
) -> None:
    """An expander that dies half-way counts an item twice, or runs one that has completed."""
    total, failing = 2300, [7, 1500]
    first = await begin(world, over_count(total, tolerated=1), ALONE)
    await first.step()
    await play(first, failing)
    again = Mapped(world, (await resume_flow(first)).id, list(first.ids))
    assert (await first.read()).state is FAILED
    done = (await first.result())["completed"]
    kills = 0
    while timers := await find_due_timers(world.database, range(1024)):
        for timer in timers:
            for fatal in range(1, 30):
                try:
                    await run_timer(DyingDatabase(world, fatal), timer, no_callback)  # type: ignore[arg-type]
                except Killed:
                    kills += 1
                else:
                    break
    assert kills > 20
    assert await verified(engine_url) == []
    assert len(places(await play(again, []))) == total - done
    assert (await again.result())["completed"] == total
    assert await verified(engine_url) == []
