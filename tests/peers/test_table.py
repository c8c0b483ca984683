"""Ratios of the comparison with other systems: which way they point, and who is behind."""

from typing import Any

import pytest
from benchmarks.peers import table
from benchmarks.peers.__main__ import compose
from benchmarks.peers.catalogue import DULY, PEERS

DULY_FIGURES = {
    "single_per_s": 6000.0,
    "bulk_per_s": 50000.0,
    "drain_1_per_s": 20000.0,
    "drain_2_per_s": 30000.0,
    "latency_p50_ms": 2.0,
    "latency_p99_ms": 5.0,
    "herd_p99_ms": 80.0,
}
SLOW = {
    name: value / 4 if name.endswith("_s") else value * 4 for name, value in DULY_FIGURES.items()
}
MACHINE = {
    "processor": "a machine",
    "cores": 2,
    "python": "3.11",
    "commit": "abc",
    "postgresql": {"server_version": "18"},
}


def report(**peers: dict[str, Any]) -> dict[str, Any]:
    duly = {"durable": "yes", "figures": dict(DULY_FIGURES), "problems": {}}
    sizes = {"backlog": 60_000, "rounds": 3}
    return {"machine": MACHINE} | compose(sizes, duly, peers, {"slow": "1.2"})


def measured(durable: str = "yes: disk", **figures: float) -> dict[str, Any]:
    return {"store": "postgres", "durable": durable, "figures": SLOW | figures, "problems": {}}


ABSENT = {"store": "postgres", "durable": "yes: disk", "skipped": "no `node` on the PATH"}


@pytest.mark.parametrize("measure", table.MEASURES, ids=lambda measure: measure.name)
def test_a_ratio_above_one_means_that_duly_is_ahead(measure: table.Measure) -> None:
    """A wait divided the wrong way round would show every defeat as a victory."""
    assert table.ratio(measure, DULY_FIGURES, SLOW) == pytest.approx(4.0)
    assert table.ratio(measure, SLOW, DULY_FIGURES) == pytest.approx(0.25)
    assert table.BEHIND not in table.cell(measure, DULY_FIGURES, SLOW)
    assert table.BEHIND in table.cell(measure, SLOW, DULY_FIGURES)


def test_what_was_not_measured_has_no_ratio() -> None:
    """A missing figure taken for zero would be the best or the worst of all."""
    assert table.ratios(DULY_FIGURES, {"bulk_per_s": 25000.0}) == {"bulk_per_s": 2.0}
    assert table.ratios({}, SLOW) == {}
    assert table.cell(table.MEASURES[0], DULY_FIGURES, {}) == table.NOTHING


def test_a_goal_is_judged_against_the_best_durable_peer() -> None:
    """Against the average, or against a peer that may lose tasks, a goal says nothing."""
    found = report(
        slow=measured(),
        fast=measured(drain_1_per_s=19000.0, herd_p99_ms=100.0),
        careless=measured("no: default", drain_1_per_s=90000.0),
        remote=measured(single_per_s=5000.0) | {"store": "redis"},
    )
    goals = {verdict["goal"]: verdict for verdict in found["goals"]}
    drain = goals["drain, one process each"]
    assert (drain["peer"], drain["is_met"]) == ("fast", False)
    assert drain["ratio"] == pytest.approx(20 / 19)
    # 30,000 with two processes against 19,000 with one: any number of processes.
    assert goals["drain, any number of processes"]["ratio"] == pytest.approx(30 / 19)
    assert goals["drain, any number of processes"]["is_met"]
    assert goals["2,000 on one instant, p99"]["ratio"] == pytest.approx(1.25)
    assert not goals["2,000 on one instant, p99"]["is_met"]
    # Only PostgreSQL counts for this one, and the faster Redis is not it.
    assert goals["single submit, over HTTP"]["ratio"] == pytest.approx(4.0)


def test_a_goal_without_figures_is_not_met() -> None:
    """A comparison without a peer is no success."""
    found = report(absent=ABSENT)
    assert not any(verdict["is_met"] for verdict in found["goals"])


def test_the_page_names_who_was_not_measured_and_what_failed() -> None:
    """A peer that silently drops out of the table looks as if it had been beaten."""
    failed = measured() | {"problems": {"drain_2": "took too long"}}
    page = table.markdown(report(slow=failed, absent=ABSENT))
    assert "| slow 1.2 | yes: disk | 1,500 (4.00x) |" in page
    assert "not measured: no `node` on the PATH" in page
    assert "- slow, drain_2: took too long" in page
    widths = {line.count("|") for line in page.splitlines() if line.startswith("| slow")}
    assert widths == {len(table.headings_of(table.MEASURES)) + 1}


def test_the_page_says_what_the_disk_alone_takes() -> None:
    """A wait in a bad moment of the disk would be taken for the system's own."""
    without = report(slow=measured())
    assert "was not measured" in table.markdown(without)
    figures = {"latency_p50_ms": 0.41, "latency_p99_ms": 3.94}
    page = table.markdown(without | {"disk": {"figures": figures}})
    assert "flushed 50 times a second: p50 0.4, p99 3.9 ms." in page


def test_every_peer_says_whether_it_is_durable_and_how_it_is_set_up() -> None:
    """A figure without its settings cannot be repeated or disputed."""
    for peer in (DULY, *PEERS.values()):
        assert peer.durable.startswith(("yes", "no"))
        assert peer.settings
