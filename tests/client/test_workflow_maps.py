"""Maps with the client: written down, run by typed handlers, and fed while their parent runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from duly import AsyncClient, Context, InvalidWorkflow, NotFound, TaskRegistry, Worker
from duly.client.leased_tasks import LeasedTask
from duly.client.map_items import PAGE_BYTES_MAX, pages
from duly.client.workflow_builder import GraphBuilder
from duly.domain.map_plan import PAGE_ITEMS_MAX
from tests.client.conftest import at_work
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0


@pytest.fixture
def tasks(duly: RunningDuly, pool: str) -> TaskRegistry:
    return TaskRegistry(pool=pool, url=duly.url, api_key=duly.ready["api_key"])


@pytest.fixture
def flow() -> GraphBuilder:
    return GraphBuilder("a.flow", {})


def nodes_of(flow: GraphBuilder) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(flow.body())["nodes"]
    return found


async def test_a_map_calls_its_handler_with_each_item(
    tasks: TaskRegistry, make_worker: Callable[..., Worker], client: AsyncClient
) -> None:
    """An item that arrives as something else than its handler takes fails every one of them."""

    @tasks.task("invoice.list")
    async def find(ctx: Context) -> dict[str, list[int]]:
        return {"ids": [3, 4, 5, 6]}

    @tasks.task("invoice.charge", retry={"max_attempts": 1})
    async def charge(ctx: Context, invoice: int) -> str:
        if invoice == 5:
            raise ValueError("no money")
        return f"charged {invoice}"

    @tasks.task("invoice.remind")
    async def remind(ctx: Context, item: int, currency: str) -> str:
        return f"{item} {currency}"

    @tasks.task("invoice.report")
    async def report(ctx: Context) -> dict[str, Any]:
        return {name: parent.value["completed"] for name, parent in ctx.parents.items()}

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("invoice.month") as flow:
            ids = flow.add(find.node())
            charged = flow.map(charge, over=ids["ids"], max_parallel=2, tolerate={"percent": 25})
            reminded = flow.map(remind, {"currency": "EUR"}, over=ids["ids"], name="remind")
            last = flow.add(report.node(), after=[charged, reminded], if_=charged["failed"] > 0)
        started = flow.started
        assert await started.result(last, WAIT_S) == {"invoice.charge": 3, "remind": 4}
        counts = await started.result(charged)
        assert (counts.items, counts.completed, counts.failed, counts.cancelled) == (4, 3, 1, 0)
        failed = [each async for each in started.items(charged, state="FAILED")]
        assert [(each.name, each.index) for each in failed] == [("invoice.charge[2]", 2)]
        items = [each async for each in started.items("remind")]
        tasks_of = [await client.get(each.id) for each in items]
        assert [each.output for each in tasks_of] == ["3 EUR", "4 EUR", "5 EUR", "6 EUR"]
        graph = {node.name: node async for node in started.nodes()}
        found = graph["invoice.charge"].map
        assert found is not None
        assert (found.items, found.made, found.open, found.tolerated) == (4, 4, 0, 1)
        done = await started.wait(WAIT_S)
        assert (done.state, done.node_count) == ("COMPLETED", 12)


@pytest.mark.parametrize("mode", ["async", "async for", "thread"])
async def test_a_handler_hands_over_items_while_it_runs(
    tasks: TaskRegistry, make_worker: Callable[..., Worker], mode: str
) -> None:
    """A list that takes an hour keeps its first item waiting for the last."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def rows() -> AsyncIterator[int]:
        for number in range(1500):
            yield number

    if mode == "thread":

        @tasks.task("customer.list")
        def find(ctx: Context) -> int:
            assert ctx.map_items("charge", range(1500)) == 1500
            asyncio.run_coroutine_threadsafe(begun.wait(), loop).result(WAIT_S)
            return ctx.map_items("charge", ["last"])
    else:

        @tasks.task("customer.list")
        async def find(ctx: Context) -> int:
            items = rows() if mode == "async for" else range(1500)
            assert await ctx.amap_items("charge", items) == 1500
            await asyncio.wait_for(begun.wait(), WAIT_S)
            return await ctx.amap_items("charge", ["last"])

    seen: list[Any] = []

    @tasks.task("customer.charge")
    async def charge(ctx: Context, payload: Any) -> None:
        seen.append(payload)
        begun.set()

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("customer.month") as flow:
            found = flow.add(find.node())
            flow.map(charge, over="pages", after=found, name="charge")
        assert await flow.started.result(found, WAIT_S) == 1501
        assert (await flow.started.wait(WAIT_S)).state == "COMPLETED"
    assert sorted(map(str, seen)) == sorted(map(str, [*range(1500), "last"]))


async def test_a_handler_hears_that_its_items_were_refused(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """Items that go nowhere without a word are never charged."""
    heard: list[str] = []

    @tasks.task("customer.list", retry={"max_attempts": 1})
    async def find(ctx: Context) -> None:
        try:
            await ctx.amap_items("nothing", [1])
        except NotFound as error:
            heard.append(str(error))

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        async with tasks.workflow("customer.month") as flow:
            flow.add(find.node())
        assert (await flow.started.wait(WAIT_S)).state == "COMPLETED"
    assert "map over pages" in heard[0]


def test_items_need_a_worker() -> None:
    """In a unit test, or in a process of its own, items would go nowhere."""
    task = LeasedTask(
        id="1",
        fence=1,
        attempt=1,
        max_attempts=1,
        type="a",
        scheduled_for=None,  # type: ignore[arg-type]
        started_at=None,  # type: ignore[arg-type]
        lease_until=None,  # type: ignore[arg-type]
        timeout_s=1.0,
        execution_key="k",
    )
    with pytest.raises(RuntimeError, match="by a worker"):
        Context(task).map_items("charge", [1])


def test_a_map_is_written_as_the_api_has_it(flow: GraphBuilder) -> None:
    """A builder that leaves something out starts another map than was written."""
    ids = flow.task("list", name="ids")
    flow.map("a", over=ids["x/y"][0], name="part", tolerate={"count": 3})
    flow.map("b", {"k": 1}, over=ids, name="whole", max_items=7, max_parallel=2, priority=9)
    flow.map("c", over=5, name="number")
    flow.map("d", over="pages", after=ids, name="pages")
    nodes = nodes_of(flow)
    assert nodes["part"]["map"] == {
        "over": {"node": "ids", "path": "/x~1y/0"},
        "tolerate": {"count": 3},
    }
    assert nodes["whole"]["map"] == {
        "over": {"node": "ids", "path": ""},
        "max_items": 7,
        "max_parallel": 2,
    }
    assert (nodes["whole"]["payload"], nodes["whole"]["priority"]) == ({"k": 1}, 9)
    assert nodes["number"]["map"] == {"over": {"count": 5}}
    assert nodes["pages"]["map"] == {"over": "pages"}
    assert {name: node.get("after", []) for name, node in nodes.items()} == {
        "ids": [],
        "part": ["ids"],
        "whole": ["ids"],
        "number": [],
        "pages": ["ids"],
    }


def test_a_list_of_the_programs_own_is_refused_where_it_is_given(flow: GraphBuilder) -> None:
    """The server refused the whole graph, at the end of the block, as "expected str | object"."""
    with pytest.raises(InvalidWorkflow, match="add a node for each"):
        flow.map("item.charge", over=["tea", "cup"])  # type: ignore[arg-type]


def test_options_of_a_handle_that_a_node_has_not_are_refused(flow: GraphBuilder) -> None:
    """An option that is dropped without a word fails at night."""

    @TaskRegistry().task("a")
    def charge(ctx: Context, item: int) -> None:
        """Charges."""

    with pytest.raises(InvalidWorkflow, match="unique"):
        flow.map(charge.options(unique={"period_s": 1}), over=1)


@pytest.mark.parametrize(
    ("items", "sizes"),
    [
        ([], []),
        (range(PAGE_ITEMS_MAX), [PAGE_ITEMS_MAX]),
        (range(PAGE_ITEMS_MAX + 1), [PAGE_ITEMS_MAX, 1]),
        (["x" * 60_000] * 9, [8, 1]),
    ],
)
def test_pages_are_full_and_within_their_bounds(items: Any, sizes: list[int]) -> None:
    """A page that is too long is refused, with all items in it."""
    found: Iterator[list[bytes]] = pages(items)
    contents = list(found)
    assert [len(page) for page in contents] == sizes
    assert all(sum(map(len, page)) <= PAGE_BYTES_MAX for page in contents)
