"""Breadth-first search through every reachable state of a small protocol. Knows no protocol.

States are hashable values. The way to the first state that breaks a promise is kept: no shorter
one exists, so it is the story to read.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
# A model that grows past this takes minutes: give it smaller bounds.
STATES_MAX = 2_000_000


@dataclass(frozen=True)
class Found(Generic[State]):
    """What was reached; for each broken promise, the shortest way there."""

    states: frozenset[State]
    stories: dict[str, list[State]]

    @property
    def violations(self) -> set[str]:
        return set(self.stories)


def search(
    first: State,
    steps: Callable[[State], Iterable[State]],
    violation: Callable[[State], str | None],
    until: str | None = None,
) -> Found[State]:
    """Every reachable state; stops early at the violation asked for, and goes beyond none."""
    before: dict[State, State | None] = {first: None}
    waiting = deque([first])
    stories: dict[str, list[State]] = {}
    while waiting and until not in stories:
        state = waiting.popleft()
        problem = violation(state)
        if problem is not None:
            stories.setdefault(problem, way_to(state, before))
            continue
        for following in steps(state):
            if following not in before:
                before[following] = state
                waiting.append(following)
        assert len(before) <= STATES_MAX, "the model is too large to be searched"
    return Found(frozenset(before), stories)


def way_to(state: State, before: dict[State, State | None]) -> list[State]:
    way = [state]
    while (earlier := before[way[-1]]) is not None:
        way.append(earlier)
    return way[::-1]
