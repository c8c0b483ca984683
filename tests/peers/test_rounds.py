"""Turns of the comparison: who goes when, which figure counts, and what is not asked again."""

from collections.abc import Iterator

import pytest
from benchmarks.peers import rounds
from benchmarks.peers.driver import PeerFailed
from benchmarks.peers.rounds import ROWS, TURNS, measure_in_turns

# Everybody's rows of one round, with those that are measured more than once.
TURNS_A_ROUND = sum(TURNS.get(row, 1) for row in ROWS)


class Scripted:
    """A system whose figures are known: the n-th time a row is measured, the n-th of them."""

    rows: tuple[str, ...] = ROWS

    def __init__(
        self,
        name: str,
        log: list[str],
        values: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    ) -> None:
        self.name = name
        self.log = log
        self.values: dict[str, Iterator[float]] = {row: iter(values) for row in ROWS}
        self.failing: dict[str, Exception] = {}

    async def measure(self, row: str) -> dict[str, float]:
        self.log.append(f"{row} {self.name}")
        if row in self.failing:
            raise self.failing[row]
        return {f"{row}_per_s": next(self.values[row])}


def quietly(_text: str) -> None:
    """A show without output."""


async def test_systems_follow_each_other_row_by_row_and_take_turns_in_going_first() -> None:
    """Measured in another minute, a ratio is one of the machine's speeds."""
    log: list[str] = []
    await measure_in_turns([Scripted("ours", log), Scripted("theirs", log)], 2, quietly)
    assert log[:4] == ["single ours", "single theirs", "drain_1 ours", "drain_1 theirs"]
    half = TURNS_A_ROUND * 2
    assert log[half : half + 2] == ["single theirs", "single ours"]
    assert len(log) == half * 2


async def test_only_the_rows_that_are_asked_for_are_measured() -> None:
    """Who looks at one row again should not wait half an hour for the others."""
    log: list[str] = []
    await measure_in_turns([Scripted("ours", log)], 2, quietly, ["herd"])
    assert log == ["herd ours", "herd ours"]


async def test_waits_are_measured_more_often_in_turns_with_the_others() -> None:
    """A disk that stalls for a second is in the slowest hundredth of whoever is measured then."""
    log: list[str] = []
    systems = [Scripted("ours", log), Scripted("theirs", log)]
    await measure_in_turns(systems, 1, quietly, ["latency"])
    assert log == ["latency ours", "latency theirs"] * 2


async def test_nobody_is_asked_for_a_row_that_it_does_not_have() -> None:
    """The disk alone runs no tasks."""
    log: list[str] = []
    system = Scripted("disk", log)
    system.rows = ("latency",)
    await measure_in_turns([system], 1, quietly)
    assert set(log) == {"latency disk"}


async def test_the_median_counts_and_every_sample_is_kept() -> None:
    """One lucky moment, or one hiccup, must not be what is cited."""
    ours = Scripted("ours", [], (9.0, 1.0, 2.0))
    measured = await measure_in_turns([ours], 3, quietly, ["herd"])
    assert measured["ours"]["figures"]["herd_per_s"] == 2.0
    assert measured["ours"]["samples"]["herd_per_s"] == [9.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("error", "text"),
    [(PeerFailed("no such table"), "no such table"), (TimeoutError(), "took too long")],
)
async def test_a_row_that_fails_says_why_and_is_not_tried_again(
    error: Exception, text: str
) -> None:
    """Fifteen minutes until it is known again that it never ends, for every round."""
    log: list[str] = []
    system = Scripted("theirs", log)
    system.failing["drain_2"] = error
    measured = await measure_in_turns([system], 3, quietly)
    assert measured["theirs"]["problems"] == {"drain_2": text}
    assert log.count("drain_2 theirs") == 1
    assert log.count("herd theirs") == 3


async def test_what_takes_long_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that drains a hundred a second would hold the comparison up for hours."""
    monkeypatch.setattr(rounds, "SLOW_S", -1.0)
    log: list[str] = []
    measured = await measure_in_turns([Scripted("theirs", log)], 3, quietly)
    assert len(log) == len(ROWS)
    assert measured["theirs"]["figures"]["single_per_s"] == 1.0
