"""Maps in the tables: items are made once, few at a time, and count for their map alone."""

import asyncio
import contextlib
import json
from collections import Counter
from typing import Any

import asyncpg
import pytest

from duly.domain.ids import node_number, workflow_of
from duly.domain.map_plan import MADE_AT_ONCE
from duly.domain.node_spec import MapSpec
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome, State
from duly.domain.task import Policy
from duly.domain.workflow import OnFailure, WaitRule
from duly.store.control import cancel_tasks
from duly.store.database import Session
from duly.store.finish import Released
from duly.store.lease import Lease
from duly.store.purge import purge_tasks
from duly.store.verify import verify
from duly.store.workflow_control import run_timer
from duly.store.workflow_pauses import pause_workflow, unpause_workflow
from duly.store.workflow_timers import WorkflowTimer, find_due_timers
from duly.verify.report import Verification
from tests.store.maps import AROUND, begin, over_count, over_list
from tests.store.test_workflows import Edges
from tests.store.world import TENANT, World

COMPLETED, FAILED, SKIPPED = State.COMPLETED, State.FAILED, State.SKIPPED
WAITING, READY, CANCELLED, RUNNING = State.WAITING, State.READY, State.CANCELLED, State.RUNNING


async def no_callback(*_: object) -> Any:
    raise AssertionError("no callback was asked for")


async def test_each_item_of_a_list_becomes_a_task_of_its_own(world: World) -> None:
    """An item that is lost is a customer who is never charged; made twice, one charged twice."""
    flow = await begin(world, over_list("/ids"), AROUND)
    await flow.world.settle(
        await world.lease(flow.ids["list"]),
        Outcome.COMPLETED,
        result='{"ids": [7, "b", {"c": 1.50}]}',
    )
    await flow.step()
    items = await flow.items()
    assert [item["payload"] for item in items] == ["7", '"b"', '{"c": 1.50}']
    assert [item["name"] for item in items] == ["charge[0]", "charge[1]", "charge[2]"]
    assert [item["execution_key"] for item in items] == [f"{flow.id}:charge:{n}" for n in range(3)]
    assert {workflow_of(item["id"]) for item in items} == {flow.id}
    assert await flow.states() == {"list": COMPLETED, "charge": RUNNING, "report": WAITING}
    assert await flow.counts() == {"completed": 1, "ready": 3, "running": 1, "waiting": 1}
    await flow.run_all()
    assert await flow.result() == {"items": 3, "completed": 3, "failed": 0, "cancelled": 0}
    done = await flow.read()
    assert (done.state, done.counts["completed"], done.nodes) == (COMPLETED, 6, 6)
    assert await world.count("timers") == 0
    assert await world.count("workflow_timers") == 0


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("null", "1"),
        ("{}", '{"item":1}'),
        (' { "currency" : "EUR" } ', ' { "currency" : "EUR" ,"item":1}'),
    ],
)
async def test_an_item_is_the_payload_or_beside_that_of_its_map(
    world: World, payload: str, expected: str
) -> None:
    """A payload that is no JSON any more fails every item."""
    flow = await begin(world, over_count(2), payload=payload)
    await flow.step()
    found = (await flow.items())[1]["payload"]
    assert found == expected
    json.loads(found)


@pytest.mark.parametrize("count", [0, 1, MADE_AT_ONCE, MADE_AT_ONCE + 1])
async def test_a_map_over_a_number_has_so_many_items(world: World, count: int) -> None:
    """At the edges of a commit an item is made twice or not at all, and a map of nothing waits for
    ever (I7)."""
    flow = await begin(world, over_count(count))
    await flow.run_all()
    assert [item["map_index"] for item in await flow.items()] == list(range(count))
    assert await flow.result() == {"items": count, "completed": count, "failed": 0, "cancelled": 0}
    assert (await flow.read()).state is COMPLETED


async def test_only_so_many_items_are_open_at_a_time(world: World) -> None:
    """A million timers at once would flood the scheduler; and users ask for a bound."""
    flow = await begin(world, over_count(100, max_parallel=8))
    await flow.step()
    assert await flow.open_items() == 8
    held: list[Lease] = []
    for ended in range(1, 101):
        held += await world.lease_all()
        await flow.settle([held.pop(0)])
        await flow.step()
        assert min(6, 100 - ended) <= await flow.open_items() <= 8, "too many, or it runs dry"
    assert await flow.result() == {"items": 100, "completed": 100, "failed": 0, "cancelled": 0}


async def test_a_map_one_by_one_goes_on_after_each_item(world: World) -> None:
    """With one item at a time, an end that calls for no other strands the map (I7)."""
    flow = await begin(world, over_count(5, max_parallel=1))
    assert await flow.run_all() == 6
    assert (await flow.read()).state is COMPLETED


TOLERANCES: list[tuple[dict[str, Any], int, int, State]] = [
    ({}, 10, 0, COMPLETED),
    ({}, 10, 1, FAILED),
    ({"tolerated": 2}, 10, 2, COMPLETED),
    ({"tolerated": 2}, 10, 3, FAILED),
    ({"tolerated_percent": 30}, 10, 3, COMPLETED),
    ({"tolerated_percent": 30}, 10, 4, FAILED),
    ({"tolerated_percent": 39.9}, 10, 3, COMPLETED),
    ({"tolerated_percent": 39.9}, 10, 4, FAILED),
    ({"tolerated_percent": 100}, 10, 10, COMPLETED),
]


@pytest.mark.parametrize(("spec", "count", "failures", "state"), TOLERANCES)
async def test_failures_are_tolerated_up_to_the_bound_and_not_one_more(
    world: World, spec: dict[str, Any], count: int, failures: int, state: State
) -> None:
    """One failure too many goes unseen, or one that was allowed for stops a month's run."""
    rules = {"report": WaitRule.ALL_DONE}
    flow = await begin(world, over_count(count, **spec), rules=rules)
    await flow.step()
    leases = await world.lease_all()
    await flow.settle(leases[:failures], Outcome.FAILED)
    await flow.step()
    await flow.settle(leases[failures:])
    await flow.step()
    assert (await flow.states())["charge"] is state
    assert await flow.result() == {
        "items": count,
        "completed": count - failures,
        "failed": failures,
        "cancelled": 0,
    }
    assert await flow.run_all() == 1
    done = await flow.read()
    assert done.state is state, "what is tolerated does not fail the workflow"
    assert done.counts["failed"] == failures + (state is FAILED)


async def test_a_map_that_fails_starts_nothing_more(world: World) -> None:
    """After the failure that is too much, a thousand more customers are charged wrongly."""
    flow = await begin(world, over_count(3000, tolerated=1))
    await flow.step()
    leases = await world.lease_all()
    assert len(leases) == 1000
    await flow.settle(leases[:2], Outcome.FAILED)
    await flow.step()
    assert (await flow.states())["charge"] is RUNNING, "998 of its items run"
    assert await world.lease_all() == []
    await flow.settle(leases[2:500])
    await flow.settle(leases[500:], Outcome.FAILED)
    await flow.step()
    expected = {"items": 3000, "completed": 498, "failed": 2, "cancelled": 2500}
    assert await flow.result() == expected
    (attempt,) = await world.attempts(flow.ids["charge"])
    assert (attempt.state, attempt.error) == (
        "FAILED",
        "2 of 3000 items failed, and 1 are tolerated",
    )
    done = await flow.read()
    assert (done.state, (await flow.states())["report"]) == (FAILED, SKIPPED)
    assert (done.counts["cancelled"], len(await flow.items())) == (2500, 3000)


SOURCES = [
    ("", None, "the result of 'list' is null, not a list"),
    ("/ids", '{"id": []}', "the result of 'list' at /ids has nothing at /ids"),
    ("/ids", '{"ids": {}}', "the result of 'list' at /ids is an object, not a list"),
    ("/ids", '{"ids": 5}', "the result of 'list' at /ids is a number, not a list"),
    ("/0/1", "[[0, true]]", "the result of 'list' at /0/1 is true, not a list"),
    ("/0/2", "[[0, true]]", "the result of 'list' at /0/2 has nothing at /0/2"),
    ("/0/x", "[[0, true]]", "the result of 'list' at /0/x has nothing at /0/x"),
    ("/a", '"text"', "the result of 'list' at /a has nothing at /a"),
    ("", "[1, 2, 3, 4]", "there are 4 items, and 3 are the most"),
]


@pytest.mark.parametrize(("path", "result", "error"), SOURCES)
async def test_a_source_without_a_list_fails_the_map_and_says_why(
    world: World, path: str, result: str | None, error: str
) -> None:
    """A result is what a handler said: a hostile one must decide one node, and crash nothing."""
    flow = await begin(world, over_list(path, max_items=3), AROUND)
    lease = await world.lease(flow.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result=result)
    await flow.step()
    (attempt,) = await world.attempts(flow.ids["charge"])
    assert (attempt.state, attempt.error) == ("FAILED", error)
    letters = await world.database.fetch("SELECT reason, error FROM duly.dead_letters")
    assert [tuple(letter) for letter in letters] == [("invalid_items", error)]
    assert (await flow.read()).state is FAILED
    assert await flow.items() == []


async def test_a_list_that_is_erased_before_all_items_are_made_fails_its_map(
    world: World,
) -> None:
    """Its timer would be tried again for ever, and the map never end."""
    flow = await begin(world, over_list("/ids", max_parallel=1), AROUND)
    lease = await world.lease(flow.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result='{"ids": [1, 2, 3]}')
    await flow.step()
    await purge_tasks(world.database, TENANT, [flow.ids["list"]], "officer")
    await flow.run_all()
    assert await flow.states() == {"list": COMPLETED, "charge": FAILED, "report": SKIPPED}
    assert await flow.result() == {"items": 3, "completed": 1, "failed": 0, "cancelled": 2}
    assert (await flow.read()).state is FAILED


async def test_a_deep_result_fails_one_map(world: World) -> None:
    """A hundred brackets more than a reader can take fail the batch of every tenant."""
    flow = await begin(world, over_list("/0"), AROUND)
    lease = await world.lease(flow.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result="[" * 30_000 + "]" * 30_000)
    await flow.step()
    assert (await flow.states())["charge"] is FAILED


async def test_a_list_of_a_parent_that_did_not_complete_is_none(world: World) -> None:
    """A map that runs after any end has no list to run over."""
    flow = await begin(world, over_list(), AROUND, rules={"charge": WaitRule.ALL_DONE})
    await flow.end("list", Outcome.FAILED)
    await flow.step()
    (attempt,) = await world.attempts(flow.ids["charge"])
    assert attempt.error == "'list' is FAILED: it has no list"


async def test_a_parent_that_ends_after_the_map_began_is_no_item(world: World) -> None:
    """Counted as an item, a second parent closes the map while an item still runs (I7)."""
    after: Edges = {"list": (), "late": (), "charge": ("list", "late"), "report": ("charge",)}
    rules = {"charge": WaitRule.ANY_COMPLETED}
    flow = await begin(world, over_count(2, max_parallel=1), after, rules=rules)
    late = await world.lease(flow.ids["late"])
    await flow.end("list")
    await flow.step()
    await world.settle(late, Outcome.COMPLETED)
    await flow.step()
    timer = await world.timer(flow.ids["charge"])
    assert timer is not None
    assert (timer["parents_pending"], timer["parents_completed"]) == (2, 0)
    await flow.run_all()
    assert await flow.result() == {"items": 2, "completed": 2, "failed": 0, "cancelled": 0}


async def test_an_if_skips_a_map_like_any_other_node(world: World) -> None:
    """A map that runs against its predicate charges ten thousand customers at once."""
    predicate = '{"node": "list", "path": "/wanted", "eq": true}'
    flow = await begin(world, over_count(2), AROUND, predicate=predicate)
    lease = await world.lease(flow.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result='{"wanted": false}')
    await flow.step()
    assert await flow.states() == {"list": COMPLETED, "charge": SKIPPED, "report": SKIPPED}
    assert await world.count("workflow_maps") == 0


async def test_an_item_is_tried_again_like_any_task(world: World) -> None:
    """An item that will run again has not ended, and is no failure yet."""
    steady = Policy(retry=RetryPolicy(max_attempts=2, jitter=False, initial_s=10.0))
    flow = await begin(world, over_count(1), policy=steady)
    await flow.step()
    await flow.settle(await world.lease_all(), Outcome.FAILED)
    await flow.step()
    assert (await flow.states())["charge"] is RUNNING
    world.advance(10)
    await flow.run_all()
    assert await flow.result() == {"items": 1, "completed": 1, "failed": 0, "cancelled": 0}


async def test_a_paused_workflow_makes_no_items(world: World) -> None:
    """A pause that a map does not heed goes on charging."""
    flow = await begin(world, over_count(3000))
    (timer,) = await find_due_timers(world.database, range(1024))
    await run_timer(world.database, timer, no_callback)
    async with world.database.tenant(TENANT) as session:
        assert await pause_workflow(session, TENANT, flow.id, "tester")
    await flow.step()
    assert len(await flow.items()) == 1000
    assert await world.lease_all() == []
    released = Released()
    async with world.database.tenant(TENANT) as session:
        assert await unpause_workflow(session, TENANT, flow.id, released)
    assert released.workflows == [flow.id]
    await flow.step()
    assert len(await flow.items()) == 3000
    await flow.run_all()
    assert (await flow.read()).state is COMPLETED


async def test_a_cancel_ends_a_map_and_its_items(world: World) -> None:
    """Items that go on after their workflow was cancelled were not cancelled (I13)."""
    flow = await begin(world, over_count(3000))
    (timer,) = await find_due_timers(world.database, range(1024))
    await run_timer(world.database, timer, no_callback)
    running = await world.lease((await flow.items())[0]["id"])
    await flow.cancel()
    await flow.step()
    assert (await flow.states())["charge"] is CANCELLED
    assert len(await flow.items()) == 1000, "nothing is made after a cancel"
    await flow.settle([running], Outcome.FAILED)
    done = await flow.read()
    assert (done.state, done.counts["cancelled"]) == (CANCELLED, 1002)
    assert await world.count("workflow_timers") == 0


async def test_a_map_that_is_cancelled_alone_takes_its_items_with_it(world: World) -> None:
    """Items of a map that is gone would run on, and count for nothing."""
    flow = await begin(world, over_count(1500), rules={"report": WaitRule.ALL_DONE})
    await flow.step()
    running = [await world.lease(item["id"]) for item in (await flow.items())[-2:]]
    released = Released()
    async with world.database.tenant(TENANT) as session:
        await cancel_tasks(session, TENANT, [flow.ids["charge"]], released)
    assert released.workflows == [flow.id]
    await flow.step()
    assert await flow.states() == {"charge": CANCELLED, "report": READY}
    assert await flow.open_items() == 2
    await flow.settle(running, Outcome.FAILED)
    await flow.run_all()
    done = await flow.read()
    assert done.counts["cancelled"] == 1501
    assert done.state is CANCELLED


async def test_an_item_that_is_cancelled_alone_is_no_failure(world: World) -> None:
    """One customer who is left out on purpose fails the run of all others."""
    flow = await begin(world, over_count(3))
    await flow.step()
    first = (await flow.items())[0]["id"]
    async with world.database.tenant(TENANT) as session:
        await cancel_tasks(session, TENANT, [first])
    await flow.run_all()
    assert await flow.result() == {"items": 3, "completed": 2, "failed": 0, "cancelled": 1}
    assert (await flow.read()).state is COMPLETED


async def test_an_item_that_its_handler_gives_up_is_no_failure(world: World) -> None:
    """A handler may end its attempt as cancelled, unasked: the same as a cancel of that item."""
    flow = await begin(world, over_count(3))
    await flow.step()
    first = await world.lease((await flow.items())[0]["id"])
    await flow.settle([first], Outcome.CANCELLED)
    await flow.run_all()
    assert await flow.result() == {"items": 3, "completed": 2, "failed": 0, "cancelled": 1}
    assert (await flow.read()).state is COMPLETED


@pytest.mark.parametrize("on_failure", [OnFailure.STOP, OnFailure.FINISH_BRANCHES])
async def test_a_tolerated_failure_stops_nothing(world: World, on_failure: OnFailure) -> None:
    """One item in a thousand that fails, as was allowed for, stops the whole workflow."""
    flow = await begin(world, over_count(4, tolerated=1), on_failure=on_failure)
    await flow.step()
    leases = await world.lease_all()
    await flow.settle(leases[:1], Outcome.FAILED)
    await flow.step()
    await flow.settle(leases[1:])
    await flow.run_all()
    done = await flow.read()
    assert (done.state, done.stop_reason) == (COMPLETED, None)
    assert await flow.states() == {"charge": COMPLETED, "report": COMPLETED}


async def test_a_deadline_stops_a_map(world: World) -> None:
    """A map that goes on after the deadline of its workflow has none."""
    flow = await begin(world, over_count(10, max_parallel=2), deadline_s=60.0)
    await flow.step()
    world.advance(60)
    await flow.step()
    assert (await flow.read()).state is FAILED
    assert (len(await flow.items()), await world.count("timers")) == (2, 0)


class Killed(Exception):
    """The process dies here."""


class DyingSession:
    """Fails before its statement of that number, or before its commit."""

    def __init__(self, session: Session, fatal: int) -> None:
        self.session = session
        self.fatal = fatal
        self.statements = 0

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        self.statements += 1
        if self.statements == self.fatal:
            raise Killed
        return list(await self.session.fetch(statement, *arguments))


class DyingDatabase:
    """Whose transactions die at one of their statements; `None` at the commit."""

    def __init__(self, world: World, fatal: int) -> None:
        self.world = world
        self.fatal = fatal
        self.statements = 0

    @contextlib.asynccontextmanager
    async def transaction(self) -> Any:
        async with self.world.database.transaction() as session:
            dying = DyingSession(session, self.fatal)
            yield dying
            self.statements = dying.statements
            if self.fatal == dying.statements + 1:
                raise Killed


@pytest.mark.parametrize(
    ("spec", "failures"), [(over_count(2500), 0), (over_list("/ids"), 0), (over_count(9), 1)]
)
async def test_a_kill_between_any_two_statements_loses_and_repeats_no_item(
    world: World, spec: MapSpec, failures: int
) -> None:
    """An expander that dies half-way leaves items out, or makes them again."""
    flow = await begin(world, spec, AROUND)
    lease = await world.lease(flow.ids["list"])
    await world.settle(lease, Outcome.COMPLETED, result=json.dumps({"ids": list(range(1200))}))
    kills = 0

    async def step() -> None:
        nonlocal kills
        while timers := await find_due_timers(world.database, range(1024)):
            for timer in timers:
                for fatal in range(1, 30):
                    dying = DyingDatabase(world, fatal)
                    try:
                        await run_timer(dying, timer, no_callback)  # type: ignore[arg-type]
                    except Killed:
                        kills += 1
                        assert await find_due_timers(world.database, range(1024)) == timers
                    else:
                        break

    await step()
    leases = await world.lease_all()
    await flow.settle(leases[:failures], Outcome.FAILED)
    await step()
    await flow.settle(leases[failures:])
    await step()
    while leases := await world.lease_all():
        await flow.settle(leases)
        await step()
    total = 2500 if spec.count == 2500 else 9 if spec.count else 1200
    indices = Counter(item["map_index"] for item in await flow.items())
    assert indices == Counter(range(total))
    assert (await flow.read()).state is (FAILED if failures else COMPLETED)
    assert kills > 20


async def test_two_expanders_at_once_make_each_item_once(world: World) -> None:
    """The old owner of a slot and the new one both go on with a map."""
    flow = await begin(world, over_count(5000))
    while timers := await find_due_timers(world.database, range(1024)):
        both = [timer for timer in timers for _ in range(2)]
        await asyncio.gather(*(run_timer(world.database, each, no_callback) for each in both))
    items = await flow.items()
    assert [item["map_index"] for item in items] == list(range(5000))
    assert sorted(node_number(item["id"]) for item in items) == list(range(10_001, 15_001))


async def test_items_end_while_more_are_made(world: World) -> None:
    """A count that is read before the other's commit loses an end: the map waits for ever (I7)."""
    flow = await begin(world, over_count(400, max_parallel=20))

    async def expand() -> None:
        while not (await flow.read()).ended_at:
            await flow.step()

    async def work() -> None:
        while not (await flow.read()).ended_at:
            for lease in await world.lease_all():
                await flow.settle([lease])

    async with asyncio.timeout(60):
        await asyncio.gather(expand(), work(), expand())
    assert await flow.result() == {"items": 400, "completed": 400, "failed": 0, "cancelled": 0}


async def test_a_timer_that_comes_late_changes_nothing(world: World) -> None:
    """A process that was paused goes on with a map that has ended meanwhile."""
    flow = await begin(world, over_count(1))
    await flow.run_all()
    number = node_number(flow.ids["charge"])
    shard = (await world.database.fetch("SELECT shard FROM duly.workflows"))[0]["shard"]
    late = WorkflowTimer(shard, TENANT, flow.id, "map", number, 0, None, world.now(), 0.0)
    released, _ = await run_timer(world.database, late, no_callback)
    assert released == Released()
    assert len(await flow.items()) == 1


async def test_the_last_number_of_a_workflow_is_not_exceeded(world: World) -> None:
    """Behind the last number, ids of items would be those of other nodes."""
    flow = await begin(world, over_count(11, max_parallel=10))
    await flow.step()
    generated = 2**24 - 1 - 10_000
    await world.database.fetch(
        "UPDATE duly.workflows SET generated = $1, nodes = $1 + 2, completed = $1 - 10", generated
    )
    await flow.run_all()
    (attempt,) = await world.attempts(flow.ids["charge"])
    assert attempt.error == "the workflow has as many items as there are numbers"


MAP_DAMAGES = {
    "an item that is not counted": (
        "UPDATE duly.timers SET parents_pending = parents_pending - 1 WHERE items_mark IS NOT NULL",
        "waits for 3 items, and 4 are live",
    ),
    "an item is missing": (
        """INSERT INTO duly.workflow_nodes
           SELECT (jsonb_populate_record(node, jsonb_build_object(
                      'id', duly.node_id(duly.workflow_of(node.id), 20000), 'map_index', 17))).*
             FROM duly.workflow_nodes AS node WHERE map_index = 3""",
        "has no item in some place, or two",
    ),
    "a map that ended before its items": (
        """WITH gone AS (DELETE FROM duly.timers WHERE items_mark IS NOT NULL RETURNING *)
           INSERT INTO duly.attempts (shard, charged, fence, tenant, id, started_at, ended_at,
                                      outcome, state)
           SELECT shard, 0, 1, tenant, id, started_at, started_at, 'completed', 'COMPLETED'
             FROM gone""",
        "has ended, and 4 of its items have not",
    ),
}


@pytest.mark.parametrize("name", MAP_DAMAGES)
async def test_a_damaged_map_is_found(
    world: World, engine_url: str, owner: asyncpg.Connection, name: str
) -> None:
    """A map that waits for an item which is gone looks like one that waits (I7)."""
    statement, words = MAP_DAMAGES[name]
    flow = await begin(world, over_count(9, max_parallel=4, tolerated=2))
    await flow.step()
    assert await verified(engine_url) == []
    await owner.execute(statement)
    assert any(words in each for each in await verified(engine_url))


async def test_maps_are_clean_at_each_stage(world: World, engine_url: str) -> None:
    """A checker that cries wolf is switched off."""
    flow = await begin(world, over_count(9, max_parallel=4, tolerated=2), AROUND)
    await flow.end("list")
    assert await verified(engine_url) == []
    await flow.step()
    leases: list[Lease] = []
    for outcome in (Outcome.FAILED, Outcome.COMPLETED, Outcome.FAILED, Outcome.FAILED):
        assert await verified(engine_url) == []
        leases.extend(await world.lease_all())
        await flow.settle([leases.pop()], outcome)
        assert await verified(engine_url) == []
        await flow.step()
    await flow.settle(leases)
    await flow.run_all()
    assert await verified(engine_url) == []
    assert (await flow.read()).state is FAILED


async def verified(engine_url: str) -> list[str]:
    verification = Verification(100)
    await verify(engine_url, verification)
    return [each.problem for each in verification.violations if each.invariant in ("I1", "I7")]
