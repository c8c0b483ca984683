"""Numbers of nodes that come later: of the graph, and of those that duly makes itself."""

from duly.store.workflow_nodes import number_generated, number_nodes
from tests.store.test_workflows import begin
from tests.store.world import OTHER_TENANT, TENANT, World


async def test_numbers_of_the_graph_and_of_generated_nodes_each_have_no_gaps(world: World) -> None:
    """Danger: two nodes with one id, or a graph that is read with a million items between."""
    flow = await begin(world, {"a": [], "b": ["a"]})
    async with world.database.transaction() as session:
        assert await number_nodes(session, TENANT, flow.id, 3, 5) == 3
        assert await number_generated(session, TENANT, flow.id, 1000) == 10_001
        assert await number_nodes(session, TENANT, flow.id, 1, 0) == 6
        assert await number_generated(session, TENANT, flow.id, 1, 1) == 11_001
    workflow = await flow.read()
    assert (workflow.nodes, workflow.generated, workflow.edges) == (1007, 1001, 7)
    numbers = (0, 1, 6, 7, 10_000, 10_001, 11_001, 11_002)
    found = [number for number in numbers if workflow.has_node(number)]
    assert found == [1, 6, 10_001, 11_001]


async def test_an_ended_or_foreign_workflow_gives_no_numbers(world: World) -> None:
    """Danger: a node is added to a workflow that has ended, and never counted."""
    flow = await begin(world, {"a": []})
    async with world.database.transaction() as session:
        assert await number_nodes(session, OTHER_TENANT, flow.id, 1, 0) is None
    await flow.end("a")
    async with world.database.transaction() as session:
        assert await number_nodes(session, TENANT, flow.id, 1, 0) is None
    assert (await flow.read()).nodes == 1
