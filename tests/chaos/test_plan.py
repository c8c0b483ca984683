"""The plan of a chaos run: the same for the same seed, and enough of everything."""

from collections import Counter

from tests.chaos.link import LinkFault
from tests.chaos.plan import Kind, make_plan

MINUTES_20 = 1200.0


def test_the_same_seed_breaks_the_same_things() -> None:
    """A failure that cannot be run again cannot be understood."""
    assert make_plan(3, 300.0) == make_plan(3, 300.0)
    assert make_plan(3, 300.0) != make_plan(4, 300.0)


def test_twenty_minutes_break_everything_often_enough() -> None:
    """A long run that hardly broke anything proves nothing; the figures name their least."""
    for seed in range(20):
        counts = Counter(fault.kind for fault in make_plan(seed, MINUTES_20))
        assert counts[Kind.KILL] >= 110
        assert counts[Kind.PAUSE] >= 20
        assert counts[Kind.CRASH_SERVER] + counts[Kind.RESTART_SERVER] >= 10
        assert set(counts) == {*Kind, *LinkFault}


def test_what_is_measured_is_alone() -> None:
    """A recovery that waits for a second fault says nothing about the first."""
    plan = make_plan(5, MINUTES_20)
    for fault in plan:
        if fault.is_alone:
            others = [each for each in plan if not each.is_alone]
            ends_at = fault.at_s + fault.for_s
            assert not [
                each
                for each in others
                if each.at_s < ends_at and each.at_s + each.for_s > fault.at_s
            ]
