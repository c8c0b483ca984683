"""States and moves: what is terminal stays so, and every live task has exactly one state."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from duly.domain.states import (
    LIVE,
    MOVES,
    SETTLEABLE,
    TERMINAL,
    UNCHARGED,
    Outcome,
    State,
    live_state,
)

NOW = datetime(2026, 1, 15, tzinfo=UTC)
offsets = st.timedeltas(timedelta(days=-400), timedelta(days=400))


def test_every_state_is_either_live_or_terminal() -> None:
    """A state that is neither would be listed nowhere."""
    assert frozenset(State) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    assert MOVES.keys() == frozenset(State)


def test_terminal_states_lead_nowhere() -> None:
    """A task that ended and lives again would run again (I4)."""
    assert [MOVES[state] for state in TERMINAL] == [frozenset()] * len(TERMINAL)


def test_every_live_state_can_end_and_be_cancelled() -> None:
    """A task that nobody can end stays for ever."""
    for state in LIVE:
        assert State.CANCELLED in MOVES[state]
        assert reachable(state) >= TERMINAL - {State.SKIPPED}
    assert State.SKIPPED in MOVES[State.WAITING]


def test_only_a_running_task_completes_or_a_node_without_a_handler() -> None:
    """Completion without a lease would be an effect that nobody recorded."""
    completing = [state for state in State if State.COMPLETED in MOVES[state]]
    assert completing == [State.WAITING, State.RUNNING]
    assert [state for state in State if State.RUNNING in MOVES[state]] == [State.READY]


def reachable(start: State) -> set[State]:
    found, edge = set[State](), {start}
    while edge:
        found |= edge
        edge = {after for state in edge for after in MOVES[state]} - found
    return found


@given(offsets)
def test_a_live_task_has_the_state_its_timer_says(offset: timedelta) -> None:
    """What is due is READY at its very instant, not a moment later."""
    expected = State.READY if offset <= timedelta() else State.SCHEDULED
    assert live_state(NOW + offset, None, NOW) is expected
    assert live_state(NOW + offset, "somebody", NOW) is State.RUNNING
    assert live_state(None, None, NOW) is State.WAITING


def test_a_worker_may_say_all_but_what_only_duly_can_know() -> None:
    """A worker that reports its own lease lost would be charged for being honest."""
    assert frozenset(Outcome) - SETTLEABLE == {
        *(Outcome.LEASE_LOST, Outcome.EXPIRED, Outcome.SKIPPED)
    }
    assert frozenset(Outcome) >= UNCHARGED
    assert not UNCHARGED & {Outcome.COMPLETED, Outcome.FAILED, Outcome.LEASE_LOST}
