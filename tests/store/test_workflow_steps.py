"""Steps of workflow nodes in the tables: predicates, waits, and what their ends release."""

import pytest

from duly.domain.node_spec import STAND_IN_TYPES, NodeKind, NodeSpec, WaitSpec
from duly.domain.states import Outcome, State
from duly.domain.task import Submission
from duly.domain.workflow import WaitRule
from duly.store.workflows import NodeStart, Started, WorkflowStart, WorkflowStarter
from tests.store.test_workflows import Edges, Flow, graph_of, run_timers
from tests.store.world import TENANT, World

COMPLETED, FAILED, SKIPPED = State.COMPLETED, State.FAILED, State.SKIPPED
WAITING, READY, CANCELLED = State.WAITING, State.READY, State.CANCELLED
STAND_IN = Submission(TENANT, STAND_IN_TYPES[NodeKind.WAIT])


def when(text: str) -> NodeSpec:
    return NodeSpec(predicate=text)


def waiting(**fields: object) -> NodeSpec:
    return NodeSpec(wait=WaitSpec(**fields))  # type: ignore[arg-type]


async def begin(
    world: World, after: Edges, specs: dict[str, NodeSpec], rules: dict[str, WaitRule] | None = None
) -> Flow:
    nodes = [
        NodeStart(
            node.name,
            STAND_IN if name in specs and specs[name].wait is not None else node.task,
            node.parents,
            node.children,
            node.rule,
            specs.get(name, node.spec),
        )
        for name, node in zip(after, graph_of(after, rules), strict=True)
    ]
    starter = WorkflowStarter(world.database, world.submitter)
    (answer,) = await starter.start([WorkflowStart(TENANT, "invoice.month", nodes)])
    assert isinstance(answer, Started)
    return Flow(world, answer.id, list(after))


async def complete(flow: Flow, name: str, result: str) -> None:
    (lease,) = [lease for lease in await flow.world.lease_all() if lease.id == flow.ids[name]]
    await flow.world.settle(lease, Outcome.COMPLETED, result=result)


IF_FAILED = when('{"node": "a", "path": "/failed", "gt": 0}')


@pytest.mark.parametrize(
    ("result", "state"), [('{"failed": 2}', READY), ('{"failed": 0}', SKIPPED)]
)
async def test_a_predicate_on_a_parents_result_runs_a_node_or_skips_it(
    world: World, result: str, state: State
) -> None:
    """A node that runs against its predicate does what was not asked for."""
    flow = await begin(world, {"a": (), "b": ("a",), "c": ("b",)}, {"b": IF_FAILED})
    await complete(flow, "a", result)
    assert (await flow.states())["b"] is WAITING
    assert await run_timers(world) == 1
    states = await flow.states()
    assert (states["b"], states["c"]) == (state, WAITING if state is READY else SKIPPED)
    if state is SKIPPED:
        assert (await flow.read()).state is COMPLETED
        return
    await flow.end("b")
    await flow.end("c")
    assert (await flow.read()).state is COMPLETED


async def test_a_root_with_a_timer_begins_in_the_transaction_of_its_start(world: World) -> None:
    """A step that only a later statement arms is lost with the process."""
    flow = await begin(world, {"a": (), "b": ("a",)}, {"a": waiting(delay_s=30.0)})
    assert await flow.states() == {"a": WAITING, "b": WAITING}
    assert await run_timers(world) == 1
    world.advance(29)
    assert await run_timers(world) == 0
    world.advance(1)
    assert await run_timers(world) == 1
    assert await flow.states() == {"a": COMPLETED, "b": READY}
