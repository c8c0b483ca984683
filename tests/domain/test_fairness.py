"""Fair order: shares follow weights, bands keep a minimum, and waiting promotes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.fairness import AGING_S, BandQueue, RoundRobin
from duly.domain.task import HIGH, LOW, NORMAL, band_of

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
    """A tenant that was idle for an hour must not then take an hour's worth of turns."""
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
        queue.push(HIGH, 9, float(number), "high")
        queue.push(NORMAL, 5, float(number), "normal")
        queue.push(LOW, 0, float(number), "low")
    served = Counter(popped[2] for _ in range(500) if (popped := queue.pop(0.0)))
    # Two shares can fall due at one pick; then one of them is a pick late.
    assert abs(served["low"] - 50) <= 1
    assert abs(served["normal"] - 100) <= 1
    assert served["high"] >= 348


def test_waiting_promotes_by_one_band_each_aging_period() -> None:
    """A low task that has waited long enough goes before a fresh high one."""
    queue: BandQueue[str] = BandQueue()
    queue.push(LOW, 0, 0.0, "old low")
    now = 2 * AGING_S + 1
    queue.push(HIGH, 9, now, "fresh high")
    assert queue.pop(now) == (LOW, 0.0, "old low")


def test_what_is_put_back_keeps_its_place() -> None:
    """A refusal by a gate must not send a task to the end of its queue."""
    queue: BandQueue[str] = BandQueue()
    queue.push(NORMAL, 5, 1.0, "first")
    queue.push(NORMAL, 5, 2.0, "second")
    popped = queue.pop(3.0)
    assert popped is not None
    band, due_at, entry = popped
    queue.push_front(band, 5, due_at, entry)
    assert [queue.pop(3.0), queue.pop(3.0), queue.pop(3.0)] == [
        (NORMAL, 1.0, "first"),
        (NORMAL, 2.0, "second"),
        None,
    ]
    assert len(queue) == 0


def test_within_a_band_higher_priorities_go_first_and_then_the_oldest() -> None:
    """Ten priorities were three: an 8 waited behind every 7 that came before it."""
    queue: BandQueue[str] = BandQueue()
    for number, priority in enumerate([7, 9, 8, 9, 7]):
        queue.push(HIGH, priority, float(number), f"{priority} at {number}")
    served = [popped[2] for _ in range(5) if (popped := queue.pop(5.0))]
    assert served == ["9 at 1", "9 at 3", "8 at 2", "7 at 0", "7 at 4"]
    assert queue.pop(5.0) is None


def test_within_a_band_what_waited_long_enough_is_not_overtaken() -> None:
    """Tasks of priority 6 that keep coming would starve those of priority 3 for ever."""
    queue: BandQueue[str] = BandQueue()
    queue.push(NORMAL, 3, 0.0, "old")
    queue.push(NORMAL, 3, 1.0, "next")
    queue.push(NORMAL, 6, AGING_S - 0.5, "fresh")
    assert queue.pop(AGING_S - 0.1) == (NORMAL, AGING_S - 0.5, "fresh")
    queue.push(NORMAL, 6, AGING_S, "fresh")
    assert queue.pop(AGING_S) == (NORMAL, 0.0, "old")
    assert queue.pop(AGING_S) == (NORMAL, AGING_S, "fresh")


def test_a_band_that_rose_by_waiting_serves_what_waited() -> None:
    """A fresh task must not be served in the turn that an old one of its band has earned."""
    queue: BandQueue[str] = BandQueue()
    now = 2 * AGING_S + 1
    queue.push(LOW, 0, 0.0, "old")
    queue.push(LOW, 2, now, "fresh low")
    queue.push(HIGH, 9, now, "fresh high")
    assert queue.pop(now) == (LOW, 0.0, "old")
    assert queue.pop(now) == (HIGH, now, "fresh high")


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=60), st.integers(50, 90))
def test_no_task_is_lost_and_none_goes_before_a_higher_one_of_its_band(
    pushed: list[tuple[int, int]], now: int
) -> None:
    """The order within a band, whatever the bands do among each other."""
    queue: BandQueue[tuple[int, int]] = BandQueue(aging_s=1000.0)
    for priority, due_at in sorted(pushed, key=lambda each: each[1]):
        queue.push(band_of(priority), priority, float(due_at), (priority, due_at))
    assert len(queue) == len(pushed)
    served: dict[int, list[tuple[int, int]]] = {HIGH: [], NORMAL: [], LOW: []}
    while (popped := queue.pop(float(now))) is not None:
        served[popped[0]].append(popped[2])
    for band, entries in served.items():
        of_band = [each for each in pushed if band_of(each[0]) == band]
        assert entries == sorted(of_band, key=lambda each: (-each[0], each[1]))
