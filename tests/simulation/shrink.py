"""From a failing seed to the least of it that fails in the same way.

Decides what to leave out next; whoever calls runs the cases, each in a database of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.case import Case, plan_of
from tests.simulation.run import Verdict

Item = TypeVar("Item")
Run = Callable[[Case], Verdict]
# Each run takes a fraction of a second, and what it finds is read by a person who waits.
RUNS_MAX = 80


class Shrinking:
    """A failing case, the runs that are left to make it smaller, and the last verdict on it."""

    def __init__(self, case: Case, verdict: Verdict, run: Run) -> None:
        self.case = replace(case, said=symptom_of(verdict))
        self.verdict = verdict
        self.run = run
        self.runs_left = RUNS_MAX

    def fails(self, case: Case) -> bool:
        """Whether the smaller case shows the same symptom; if so, it is the case from now on."""
        if self.runs_left == 0:
            return False
        self.runs_left -= 1
        verdict = self.run(case)
        if symptom_of(verdict) != self.case.said:
            return False
        self.case, self.verdict = case, verdict
        return True


def shrink(case: Case, verdict: Verdict, run: Run) -> tuple[Case, Verdict]:
    """Kinds of faults and actors first, then requests, then single faults."""
    work = Shrinking(case, verdict, run)
    plan = plan_of(case)
    kinds = sorted(str(kind) for kind in (*plan.rates, *plan.actors))
    least(kinds, lambda kept: work.fails(without(work.case, kinds, kept)))
    submissions = plan_of(work.case).submissions
    while submissions > 1 and work.fails(replace(work.case, submissions=submissions // 2)):
        submissions //= 2
    numbers = list(range(1, len(work.verdict.logs.faults) + 1))
    least(numbers, lambda kept: work.fails(replace(work.case, strikes=tuple(kept))))
    return work.case, work.verdict


def without(case: Case, kinds: list[str], kept: Sequence[str]) -> Case:
    return replace(case, without=tuple(kind for kind in kinds if kind not in kept))


def least(items: list[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Leave out halves, then quarters, and so on, as long as what remains still fails."""
    size = len(items)
    while items and size > 0:
        start = 0
        while start < len(items):
            rest = items[:start] + items[start + size :]
            if fails(rest):
                items = rest
            else:
                start += size
        size //= 2
    return items


def symptom_of(verdict: Verdict) -> str:
    """Which promise was broken, whichever task it was; empty if none was."""
    if verdict.violations:
        return verdict.violations[0].invariant
    return "failure" if verdict.failures else ""
