"""What is reused in a workflow that was resumed from another one, and what runs again: the rules
once more, without any code of the engine."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

from duly.verify.check import Violation
from tests.simulation.workflow_facts import Node, Plan, Story, WantedWorkflow, WorkflowTables


def run_again(
    flow: WantedWorkflow,
    earlier: Mapping[int, Node],
    plans: Mapping[int, Plan],
    nodes: Mapping[int, Node],
) -> frozenset[int]:
    """What failed or was cancelled, or what is named; and all that comes after it. What hands over
    the items of a map among these may run again, or its items are those of the earlier run."""
    names = flow.resumed_names
    again = {
        number
        for number, node in earlier.items()
        if (node.state in ("FAILED", "CANCELLED") if names is None else node.name in names)
    }
    while True:
        more = {
            n for n, plan in plans.items() if n in earlier and not again.isdisjoint(plan.parents)
        }
        maps = [plans[n].step.map for n in again | more if n in plans]
        feeding = {each.source for each in maps if each and each.is_paged and each.source}
        more |= {n for n in feeding if n in nodes and nodes[n].source is None}
        if more <= again:
            # What was added since has no earlier run.
            return frozenset(again | (plans.keys() - earlier.keys()))
        again |= more


def judge_resume(story: Story, earlier: Mapping[int, Node]) -> Iterator[str]:
    """What finished is reused and runs no second time; all else runs."""
    assert story.again is not None
    begun = {row["id"] for row in story.starts}
    for number, node in story.nodes.items():
        if (node.source is None) != (number in story.again):
            yield f"{node.name} is {'reused' if node.source else 'run again'}: {story.again}"
            continue
        if node.source is None:
            continue
        before = earlier[number]
        if node.source != (before.source or before.id) or node.state != before.state:
            yield f"{node.name} is {node.state} by {node.source}, and was {before}"
        if node.created_at is not None or node.id in begun:
            yield f"{node.name} is reused, and ran again"


def judge_chains(tables: WorkflowTables) -> Iterator[Violation]:
    """Of a workflow and all that were resumed from it, one lives at a time."""
    rows = {row["id"]: row for row in tables.workflows}
    for row in tables.workflows:
        before = rows.get(row["resumed_from"])
        if before is not None and (before["ended_at"] or row["created_at"]) > row["created_at"]:
            yield Violation("workflow", row["id"], f"was resumed from {before}, which lived")
    chains = defaultdict(list)
    for row in tables.workflows:
        first = row
        while first["resumed_from"] in rows:
            first = rows[first["resumed_from"]]
        chains[first["id"]].append(row)
    for chain in chains.values():
        chain.sort(key=lambda row: row["created_at"])
        for one, next_one in pairwise(chain):
            if one["ended_at"] is None or one["ended_at"] > next_one["created_at"]:
                told = (
                    f"lives from {next_one['created_at']}, and {one['id']} until {one['ended_at']}"
                )
                yield Violation("workflow", next_one["id"], told)
