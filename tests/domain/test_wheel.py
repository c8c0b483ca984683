"""The timing wheel: whatever is put in comes out once, on its tick, in order."""

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.wheel import SLOTS, SPAN_TICKS, Wheel

STARTS = st.integers(0, 2**40)
DISTANCES = st.one_of(
    st.integers(-5, 3 * SLOTS),
    st.integers(0, SPAN_TICKS - 1),
    st.sampled_from([SLOTS - 1, SLOTS, SLOTS + 1, SLOTS**2 - 1, SLOTS**2, SPAN_TICKS - 1]),
)


@given(STARTS, st.lists(DISTANCES, max_size=40), st.lists(st.integers(1, 2**17), max_size=20))
def test_each_entry_comes_out_once_and_never_early(
    start: int, distances: list[int], steps: list[int]
) -> None:
    """An entry that comes out twice is dispatched twice; one that never does is a lost minute."""
    wheel: Wheel[int] = Wheel(start)
    for number, distance in enumerate(distances):
        wheel.add(start + distance, number)
    seen: set[int] = set()
    now = start
    for step in steps:
        now += step
        due = wheel.advance(now)
        assert not seen & set(due)
        assert len(set(due)) == len(due)
        seen |= set(due)
        expected = {n for n, distance in enumerate(distances) if start + distance <= now}
        assert seen == expected
        assert len(wheel) == len(distances) - len(seen)


@given(STARTS, st.lists(st.integers(1, 5 * SLOTS), min_size=1, max_size=30))
def test_entries_come_out_in_order_of_their_ticks(start: int, distances: list[int]) -> None:
    """A late wake-up must not start the newest task first."""
    wheel: Wheel[int] = Wheel(start)
    for distance in distances:
        wheel.add(start + distance, distance)
    assert wheel.advance(start + 5 * SLOTS) == sorted(distances)


@given(STARTS, st.lists(st.integers(1, 3 * SLOTS), min_size=1, max_size=20))
def test_following_the_next_tick_misses_nothing(start: int, distances: list[int]) -> None:
    """The dispatcher sleeps until the tick that the wheel names: too late would be late for all."""
    wheel: Wheel[int] = Wheel(start)
    for distance in distances:
        wheel.add(start + distance, distance)
    while (tick := wheel.next_tick()) is not None:
        for distance in wheel.advance(tick):
            assert start + distance == tick
    assert len(wheel) == 0


def test_an_empty_wheel_jumps_without_walking() -> None:
    """After an idle week a walk over every tick would freeze the process."""
    wheel: Wheel[int] = Wheel(0)
    assert wheel.advance(10**15) == []
    wheel.add(10**15 + 1, 7)
    assert wheel.advance(10**15 + 1) == [7]
