"""Rules of workflows: when nodes run, which graphs are none, and what decides when one ends."""

from random import Random

import pytest

from duly.domain.workflow import (
    DEPTH_MAX,
    EDGES_MAX,
    Graph,
    GraphRefused,
    NodeTime,
    build_graph,
    critical_path,
)


def built(after: dict[str, list[str]]) -> Graph:
    *_, graph = build_graph(after)
    assert graph is not None
    return graph


def problems_of(after: dict[str, list[str]]) -> list[tuple[str, str]]:
    with pytest.raises(GraphRefused) as refused:
        built(after)
    return [(problem.pointer, problem.reason) for problem in refused.value.problems]


def test_parents_and_children_are_numbered_from_one() -> None:
    """An edge that points one node too far releases another one."""
    graph = built({"a": [], "b": ["a"], "c": ["a", "b"]})
    assert graph.parents == [[], [1], [1, 2]]
    assert graph.children == [[2, 3], [3], []]
    assert graph.edges == 3


def test_a_cycle_is_named() -> None:
    """Nodes that wait for each other never run; without names one searches for hours."""
    found = problems_of({"root": [], "a": ["root", "c"], "b": ["a"], "c": ["b"], "tail": ["c"]})
    ((pointer, reason),) = found
    assert pointer.startswith("/nodes/")
    assert reason.startswith("makes a cycle: ")
    names = reason.removeprefix("makes a cycle: ").split(" -> ")
    assert (names[0], sorted(names[1:])) == (names[-1], ["a", "b", "c"])


@pytest.mark.parametrize(
    ("after", "pointer", "words"),
    [
        ({"a": ["a"]}, "/nodes/a/after/0", "the node itself"),
        ({"a": [], "b": ["a", "x"]}, "/nodes/b/after/1", "'x', which is no node"),
        ({"a": [], "b": ["a", "a"]}, "/nodes/b/after/1", "twice"),
        ({"a": ["b"], "b": ["a"]}, "/nodes/a/after", "makes a cycle"),
    ],
)
def test_a_wrong_edge_is_pointed_at(after: dict[str, list[str]], pointer: str, words: str) -> None:
    """A graph that is stored with a dangling edge waits for ever (I7)."""
    ((found, reason), *_) = problems_of(after)
    assert found.split("/after")[0] in (pointer.split("/after")[0], "/nodes/b")
    assert words in reason


def test_a_deep_graph_is_checked_without_recursion() -> None:
    """A chain longer than Python's stack would be a 500 for a request that is allowed."""
    chain = {f"n{number}": [f"n{number - 1}"] if number else [] for number in range(DEPTH_MAX)}
    assert built(chain).edges == DEPTH_MAX - 1
    last = f"n{DEPTH_MAX - 1}"
    assert problems_of(chain | {"one more": [last]}) == [
        ("/nodes", f"are deeper than {DEPTH_MAX} levels")
    ]


def test_one_edge_past_the_bound_is_refused() -> None:
    """Edges without a bound make a small body an hour of work."""
    first = [f"a{number}" for number in range(400)]
    wide: dict[str, list[str]] = {name: [] for name in first} | {
        f"b{number}": first for number in range(250)
    }
    assert built(wide).edges == EDGES_MAX
    assert problems_of(wide | {"c": ["a0"]}) == [
        ("/nodes", f"have more than {EDGES_MAX} edges in all")
    ]


def test_random_graphs_are_told_from_cycles_as_by_another_algorithm() -> None:
    """One cycle that passes is a workflow that never ends."""
    random = Random(5)
    seen = set()
    for _ in range(500):
        count = random.randrange(1, 9)
        names = [f"n{number}" for number in range(count)]
        after = {name: random.sample(names, random.randrange(min(count, 3))) for name in names}
        is_cyclic = any(reaches(name, name, after) for name in names)
        seen.add(is_cyclic)
        try:
            built(after)
        except GraphRefused:
            assert is_cyclic
        else:
            assert not is_cyclic
    assert seen == {True, False}


def reaches(start: str, goal: str, after: dict[str, list[str]]) -> bool:
    found: set[str] = set()
    stack = list(after[start])
    while stack:
        name = stack.pop()
        if name == goal:
            return True
        if name not in found:
            found.add(name)
            stack += after[name]
    return False


def test_the_longest_chain_decides_when_a_workflow_ends() -> None:
    """An estimate from the sum of all nodes, or the shortest chain, promises the wrong hour."""
    nodes = {
        1: NodeTime([], -5.0, 0.0),
        2: NodeTime([1], None, 10.0),
        3: NodeTime([1], None, 2.0),
        4: NodeTime([2, 3], None, 1.0),
    }
    assert critical_path(nodes) == ([1, 2, 4], 11.0)
    assert critical_path({}) == ([], 0.0)
