"""The gates: in their order, each with a reason, and open when nothing binds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from duly.domain.gates import GATES, Gate, GateFacts, first_refusal, refusals

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
OPEN = GateFacts(now=NOW)
CLOSED: dict[Gate, dict[str, object]] = {
    Gate.PAUSED: {"paused_by": "paused by ann: release"},
    Gate.EXPIRED: {"start_by": NOW},
    Gate.BREAKER: {"breaker_open_until": LATER, "breaker_of": "host example.com"},
    Gate.OWNERSHIP_TRANSFER: {"transfer_until": LATER},
    Gate.TENANT_RATE: {"rate_ready_at": LATER},
    Gate.TENANT_IN_FLIGHT: {"in_flight": 3, "in_flight_max": 3},
    Gate.CONCURRENCY_KEY: {"concurrency_key": "k", "key_in_flight": 1, "key_limit": 1},
    Gate.LANE_FULL: {"lane_depth": 10, "lane_depth_max": 10},
}


def test_every_gate_is_in_the_list_once_and_in_order() -> None:
    """A gate that nobody asks is a limit that nobody keeps."""
    assert [gate for gate, _ in GATES] == list(Gate)
    assert CLOSED.keys() == set(Gate)


def test_a_task_that_nothing_binds_may_go() -> None:
    """Dispatch skips the question for plain tasks, which is right only if the answer is None."""
    assert first_refusal(OPEN) is None
    assert first_refusal(replace(OPEN, in_flight=10**6, lane_depth=10**6)) is None


@pytest.mark.parametrize("gate", list(Gate))
def test_each_gate_closes_alone_with_a_reason(gate: Gate) -> None:
    """`explain` shows this sentence to a person who wonders why nothing happens."""
    facts = replace(OPEN, **CLOSED[gate])  # type: ignore[arg-type]
    refusal = first_refusal(facts)
    assert refusal is not None
    assert refusal.gate is gate
    assert refusal.reason
    assert {g for g, answer in refusals(facts) if answer is not None} == {gate}


@pytest.mark.parametrize("gate", [Gate.BREAKER, Gate.OWNERSHIP_TRANSFER, Gate.TENANT_RATE])
def test_a_gate_that_waits_for_an_instant_opens_at_it(gate: Gate) -> None:
    """One tick too late each time would make every rate a little lower than promised."""
    facts = replace(OPEN, **CLOSED[gate])  # type: ignore[arg-type]
    assert first_refusal(replace(facts, now=LATER)) is None
    assert first_refusal(replace(facts, now=LATER - timedelta(microseconds=1))) is not None


def test_the_first_closed_gate_binds() -> None:
    """Two closed gates: the one named is the one to open first."""
    everything: dict[str, object] = {}
    for gate in reversed(list(Gate)):
        everything |= CLOSED[gate]
        refusal = first_refusal(replace(OPEN, **everything))  # type: ignore[arg-type]
        assert refusal is not None
        assert refusal.gate is gate


@pytest.mark.parametrize(
    ("full", "room"),
    [
        ({"in_flight": 3, "in_flight_max": 3}, {"in_flight": 2, "in_flight_max": 3}),
        ({"lane_depth": 9, "lane_depth_max": 9}, {"lane_depth": 8, "lane_depth_max": 9}),
    ],
)
def test_bounds_are_exact(full: dict[str, int], room: dict[str, int]) -> None:
    """A cap of three means three, not two and not four."""
    assert first_refusal(replace(OPEN, **full)) is not None  # type: ignore[arg-type]
    assert first_refusal(replace(OPEN, **room)) is None  # type: ignore[arg-type]
