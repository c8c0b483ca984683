"""Resume: which nodes of an ended workflow run again, and which are reused. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from duly.domain.limits import Problem
from duly.domain.states import State
from duly.domain.workflow import Decision, ParentCounts, WaitRule, fan_in

RATE_MIN, RATE_MAX = 0.01, 10_000.0
UNFINISHED = frozenset({State.FAILED, State.CANCELLED})


class EndedNode(NamedTuple):
    """A node of the workflow that is resumed, and how it ended."""

    number: int
    name: str
    state: State
    rule: WaitRule
    parents: Sequence[int]
    children: Sequence[int]
    # A map over what its parent handed over: the pages are gone, and that one runs again with it.
    is_paged: bool = False

    @property
    def followers(self) -> Sequence[int]:
        """What runs again where this one does."""
        return [*self.children, *self.parents] if self.is_paged else self.children


class ResumePlan(NamedTuple):
    """Numbers, in their order."""

    again: list[int]
    reused: list[int]

    def told(self, nodes: Mapping[int, EndedNode]) -> list[int]:
        """The reused nodes that have children which run again: these count how they ended."""
        again = frozenset(self.again)
        return [number for number in self.reused if not again.isdisjoint(nodes[number].children)]


def plan_resume(
    nodes: Mapping[int, EndedNode], names: Sequence[str] | None = None
) -> ResumePlan | list[Problem]:
    """What failed or was cancelled, or what is named, and all that is downstream of it. What was
    skipped because of a failure is downstream of that. Else what is wrong with the names."""
    if names is None:
        begin = [node.number for node in nodes.values() if node.state in UNFINISHED]
    else:
        known = {node.name: node for node in nodes.values()}
        problems = list(name_problems(names, known))
        if problems:
            return problems
        begin = [known[name].number for name in names]
    again = set(begin)
    stack = list(begin)
    while stack:
        for follower in nodes[stack.pop()].followers:
            if follower not in again:
                again.add(follower)
                stack.append(follower)
    plan = ResumePlan(sorted(again), sorted(nodes.keys() - again))
    return list(rule_problems(names or (), begin, nodes, again)) or plan


def name_problems(names: Sequence[str], known: Mapping[str, EndedNode]) -> Iterator[Problem]:
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name not in known:
            yield Problem(f"/from/{position}", f"names {name!r}, which is no node")
        elif name in seen:
            yield Problem(f"/from/{position}", f"names {name!r} twice")
        seen.add(name)


def rule_problems(
    names: Sequence[str], begin: Sequence[int], nodes: Mapping[int, EndedNode], again: set[int]
) -> Iterator[Problem]:
    """A named node that is to run after parents which stay as they ended, and do not let it."""
    for position, (name, number) in enumerate(zip(names, begin, strict=False)):
        node = nodes[number]
        counts = ParentCounts(len(node.parents))
        for parent in node.parents:
            if parent not in again:
                counts = counts.after(nodes[parent].state)
        if node.parents and fan_in(node.rule, counts) is Decision.SKIP:
            rule = node.rule.name.lower()
            reason = f"names {name!r}, whose parents do not meet {rule}; name these as well"
            yield Problem(f"/from/{position}", reason)
