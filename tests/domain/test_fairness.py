"""Fair order: shares follow weights, bands keep a minimum, and waiting promotes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.fairness import AGING_S, BandQueue, RoundRobin
from duly.domain.task import HIGH, LOW, NORMAL

WEIGHTS = st.dictionaries(st.integers(1, 50), st.floats(0.1, 20.0), min_size=1, max_size=8)


@given(WEIGHTS)
def test_backlogged_members_are_served_by_weight(weights: dict[int, float]) -> None:
    """Under saturation the shares must hold within a turn, whatever the weights (I10)."""
    turns: RoundRobin[int] = RoundRobin(weights.__getitem__)
    for member in weights:
        turns.join(member)
    rounds = 40
    picks = int(sum(weights.values()) * rounds)
    served = Counter(turns.pick() for _ in range(picks))
    for member, weight in weights.items():
        assert abs(served[member] - weight * rounds) <= weight + 2


@given(st.integers(2, 6))
def test_a_member_without_work_saves_nothing(members: int) -> None:
    """Whoever was idle for an hour must not then take an hour's worth of everybody's turns."""
    turns: RoundRobin[int] = RoundRobin(lambda _: 1.0)
    for member in range(members):
        turns.join(member)
    for _ in range(members * 100):
        if turns.pick() == 0:
            turns.leave(0)
    turns.join(0)
    served = Counter(turns.pick() for _ in range(members * 10))
    assert served[0] <= 11


def test_leaving_in_the_middle_of_a_turn_passes_it_on() -> None:
    """The turn of one who left must not be spent by its neighbour."""
    turns: RoundRobin[str] = RoundRobin(lambda member: 5.0 if member == "big" else 1.0)
    turns.join("big")
    turns.join("small")
    assert turns.pick() == "big"
    turns.leave("big")
    assert [turns.pick() for _ in range(3)] == ["small"] * 3
    assert "big" not in turns
    turns.leave("big")
    turns.leave("small")
    assert turns.pick() is None


def test_higher_bands_go_first_and_lower_ones_keep_their_share() -> None:
    """Strict priority would starve low tasks for as long as high ones keep coming."""
    queue: BandQueue[str] = BandQueue()
    for number in range(1000):
        queue.push(HIGH, float(number), "high")
        queue.push(NORMAL, float(number), "normal")
        queue.push(LOW, float(number), "low")
    served = Counter(popped[2] for _ in range(500) if (popped := queue.pop(0.0)))
    # Two shares can fall due at one pick; then one of them is a pick late.
    assert abs(served["low"] - 50) <= 1
    assert abs(served["normal"] - 100) <= 1
    assert served["high"] >= 348


def test_waiting_promotes_by_one_band_each_aging_period() -> None:
    """A low task that has waited long enough goes before a fresh high one."""
    queue: BandQueue[str] = BandQueue()
    queue.push(LOW, 0.0, "old low")
    now = 2 * AGING_S + 1
    queue.push(HIGH, now, "fresh high")
    assert queue.pop(now) == (LOW, 0.0, "old low")


def test_what_is_put_back_keeps_its_place() -> None:
    """A refusal by a gate must not send a task to the end of its queue."""
    queue: BandQueue[str] = BandQueue()
    queue.push(NORMAL, 1.0, "first")
    queue.push(NORMAL, 2.0, "second")
    popped = queue.pop(3.0)
    assert popped is not None
    queue.push_front(*popped)
    assert [queue.pop(3.0), queue.pop(3.0), queue.pop(3.0)] == [
        (NORMAL, 1.0, "first"),
        (NORMAL, 2.0, "second"),
        None,
    ]
    assert len(queue) == 0
