"""Items that a running parent hands over start while it runs, once each, for its lease alone."""

import asyncio

import pytest

from duly.domain.map_plan import PAGE_ITEMS_MAX
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.domain.workflow import WaitRule
from duly.store.control import cancel_tasks
from duly.store.lease import Lease
from duly.store.verify import verify
from duly.store.workflow_handovers import HandedOver, HandOver
from duly.verify.report import Verification
from tests.store.maps import AROUND, Mapped, begin, over_count, over_pages
from tests.store.test_workflows import ONCE
from tests.store.world import OTHER_TENANT, TENANT, World

COMPLETED, FAILED, CANCELLED = State.COMPLETED, State.FAILED, State.CANCELLED
WAITING, RUNNING, SKIPPED = State.WAITING, State.RUNNING, State.SKIPPED
STEADY = Policy(retry=RetryPolicy(max_attempts=3, jitter=False, initial_s=0.0))


async def running(world: World, policy: Policy = ONCE, **fields: object) -> tuple[Mapped, Lease]:
    flow = await begin(world, over_pages(**fields), AROUND, policy=policy)
    return flow, await world.lease(flow.ids["list"])


async def test_items_run_while_their_parent_still_hands_over_more(world: World) -> None:
    """A parent that lists for an hour would keep all of its items waiting for the last."""
    flow, lease = await running(world, tolerated_percent=50)
    assert await flow.hand(lease, 0, ["a", "b"]) == HandedOver(HandOver.TAKEN, 2)
    await flow.step()
    assert await flow.states() == {"list": RUNNING, "charge": RUNNING, "report": WAITING}
    assert [item["payload"] for item in await flow.items()] == ['"a"', '"b"']
    first = await world.lease((await flow.items())[0]["id"])
    await flow.settle([first], Outcome.FAILED)
    await flow.step()
    assert (await flow.states())["charge"] is RUNNING, "half of how many is not known yet"
    assert await flow.hand(lease, 2, ["c"]) == HandedOver(HandOver.TAKEN, 3)
    await world.settle(lease, Outcome.COMPLETED)
    await flow.run_all()
    assert await flow.result() == {"items": 3, "completed": 2, "failed": 1, "cancelled": 0}
    assert (await flow.read()).state is COMPLETED
    assert await world.count("workflow_map_pages") == 0


async def test_a_map_over_pages_waits_for_more_when_all_of_its_items_have_ended(
    world: World,
) -> None:
    """A map that closes between two pages leaves the second out (I7)."""
    flow, lease = await running(world)
    for first in range(3):
        await flow.hand(lease, first, [first])
        await flow.step()
        await flow.settle(await world.lease_all())
        await flow.step()
        assert (await flow.states())["charge"] is RUNNING
    await world.settle(lease, Outcome.COMPLETED)
    await flow.step()
    assert await flow.result() == {"items": 3, "completed": 3, "failed": 0, "cancelled": 0}


async def test_a_parent_that_hands_over_nothing_has_an_empty_map(world: World) -> None:
    """A map that waits for a first page which never comes (I7)."""
    flow, lease = await running(world)
    await world.settle(lease, Outcome.COMPLETED)
    await flow.run_all()
    assert await flow.result() == {"items": 0, "completed": 0, "failed": 0, "cancelled": 0}
    assert (await flow.read()).state is COMPLETED


async def test_a_parent_that_fails_without_a_page_skips_its_map(world: World) -> None:
    """As any node whose rule can no longer be met."""
    flow, lease = await running(world)
    await world.settle(lease, Outcome.FAILED)
    assert (await flow.states())["charge"] is SKIPPED


async def test_a_parent_that_fails_half_way_fails_its_map(world: World) -> None:
    """Half of the customers are charged, and the map says that it completed."""
    flow, lease = await running(world)
    await flow.hand(lease, 0, list(range(5)))
    await flow.step()
    (item,) = [await world.lease((await flow.items())[0]["id"])]
    await world.settle(lease, Outcome.FAILED)
    await flow.step()
    assert (await flow.states())["charge"] is RUNNING
    await flow.settle([item])
    await flow.step()
    assert await flow.result() == {"items": 5, "completed": 1, "failed": 0, "cancelled": 4}
    (attempt,) = await world.attempts(flow.ids["charge"])
    assert attempt.error == "'list', which handed over its items, is FAILED"


async def test_a_second_attempt_says_again_what_the_first_one_said(world: World) -> None:
    """A worker that died half-way would make every item again; with another's fence, a worker that
    is back from a pause would hand over items for an attempt that is over (I3)."""
    flow, first = await running(world, policy=STEADY)
    await flow.hand(first, 0, ["a", "b"])
    await flow.step()
    await world.settle(first, Outcome.FAILED)
    await flow.step()
    second = await world.lease(flow.ids["list"])
    assert await flow.hand(first, 2, ["x"]) == HandedOver(HandOver.STALE)
    assert await flow.hand(second, 0, ["a"]) == HandedOver(HandOver.TAKEN, 2)
    assert await flow.hand(second, 1, ["b", "c"]) == HandedOver(HandOver.TAKEN, 3)
    await world.settle(second, Outcome.COMPLETED)
    assert await flow.hand(second, 3, ["d"]) == HandedOver(HandOver.STALE)
    await flow.run_all()
    assert [item["payload"] for item in await flow.items()] == ['"a"', '"b"', '"c"']
    assert (await flow.read()).state is COMPLETED


async def test_a_page_is_refused_where_it_does_not_belong(world: World) -> None:
    """Another tenant's items, or a gap that nothing will ever fill."""
    flow, lease = await running(world)
    assert await flow.hand(lease, 0, [1], tenant=OTHER_TENANT) == HandedOver(HandOver.UNKNOWN)
    assert await flow.hand(lease, 1, [1]) == HandedOver(HandOver.GAP, 0)
    counted = await begin(world, over_count(1), AROUND)
    other = await world.lease(counted.ids["list"])
    assert await counted.hand(other, 0, [1]) == HandedOver(HandOver.UNKNOWN)
    assert await flow.hand(other, 0, [1]) == HandedOver(HandOver.UNKNOWN)
    assert await world.count("workflow_map_pages") == 0


@pytest.mark.parametrize(("pages", "is_taken"), [([3], True), ([2, 1], True), ([4], False)])
async def test_a_map_over_pages_takes_its_most_and_not_one_more(
    world: World, pages: list[int], is_taken: bool
) -> None:
    """A parent in a loop hands over items for ever."""
    flow, lease = await running(world, max_items=3)
    first = 0
    for count in pages:
        answer = await flow.hand(lease, first, list(range(count)))
        first += count
    assert answer.answer is (HandOver.TAKEN if is_taken else HandOver.OVER)
    if is_taken:
        answer = await flow.hand(lease, first, ["one more"])
    assert (answer.answer, answer.detail) == (
        HandOver.OVER,
        "there are more items than 3, which are the most",
    )
    assert (await flow.hand(lease, first, [1])).answer is HandOver.OVER
    await world.settle(lease, Outcome.COMPLETED)
    await flow.run_all()
    (attempt,) = await world.attempts(flow.ids["charge"])
    assert attempt.state == "FAILED"
    assert (await flow.read()).state is FAILED


async def test_pages_of_any_size_become_the_same_items(world: World) -> None:
    """At the edges of pages and commits items are left out."""
    flow, lease = await running(world, max_parallel=700)
    sizes = [1, 999, 1000, 1, 1, 498]
    for place, size in enumerate(sizes):
        first = sum(sizes[:place])
        await flow.hand(lease, first, list(range(first, first + size)))
        if place % 2:
            await flow.step()
            await flow.settle(await world.lease_all())
    await world.settle(lease, Outcome.COMPLETED)
    await flow.run_all()
    payloads = [int(item["payload"]) for item in await flow.items()]
    assert payloads == list(range(sum(sizes)))
    assert sum(sizes) == 2 * PAGE_ITEMS_MAX + PAGE_ITEMS_MAX // 2
    assert await world.count("workflow_map_pages") == 0


async def test_a_cancelled_map_takes_no_more_items(world: World) -> None:
    """Items of a map that is gone would wait for ever, and their parent would not know."""
    flow, lease = await running(world)
    await flow.hand(lease, 0, [1])
    async with world.database.tenant(TENANT) as session:
        await cancel_tasks(session, TENANT, [flow.ids["charge"]])
    await flow.step()
    answer = await flow.hand(lease, 1, [2])
    assert (answer.answer, answer.detail) == (HandOver.OVER, "the map has ended")
    assert (await flow.states())["charge"] is CANCELLED


async def test_pages_end_and_expansion_at_once(world: World, engine_url: str) -> None:
    """A page that is stored as its parent ends is left out, or closes the map twice (I7)."""
    for _ in range(10):
        flow, lease = await running(world)
        await flow.hand(lease, 0, [1])
        _, answer, _ = await asyncio.gather(
            flow.step(), flow.hand(lease, 1, [2, 3]), world.settle(lease, Outcome.COMPLETED)
        )
        await flow.run_all()
        items = 3 if answer.answer is HandOver.TAKEN else 1
        assert (await flow.result())["completed"] == items
        assert (await flow.read()).state is COMPLETED
    verification = Verification(10)
    await verify(engine_url, verification)
    assert [each.problem for each in verification.violations] == []


async def test_a_map_over_pages_begins_by_no_other_rule(world: World) -> None:
    """A parent whose failure releases the map has no items to hand over."""
    flow = await begin(world, over_pages(), AROUND, rules={"charge": WaitRule.ALL_DONE})
    await flow.end("list", Outcome.FAILED)
    await flow.run_all()
    assert (await flow.result())["items"] == 0
