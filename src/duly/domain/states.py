"""Task states, attempt outcomes, and which moves are legal. Values only."""

from datetime import datetime
from enum import StrEnum


class State(StrEnum):
    WAITING = "WAITING"
    SCHEDULED = "SCHEDULED"
    READY = "READY"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    # Of workflow nodes only: the rule by which it waited for its parents could no longer be met.
    SKIPPED = "SKIPPED"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.SKIPPED})
LIVE = frozenset(State) - TERMINAL

# From each state, where a task may go next. Terminal states lead nowhere: replay makes a new task.
MOVES: dict[State, frozenset[State]] = {
    # Nodes that no handler runs wait until they end.
    State.WAITING: frozenset({State.SCHEDULED, State.READY, *TERMINAL}),
    State.SCHEDULED: frozenset({State.READY, State.CANCELLED, State.SCHEDULED, State.FAILED}),
    State.READY: frozenset({State.RUNNING, State.SCHEDULED, State.CANCELLED, State.FAILED}),
    State.RUNNING: frozenset({State.SCHEDULED, State.READY, *TERMINAL - {State.SKIPPED}}),
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
    State.SKIPPED: frozenset(),
}


class Outcome(StrEnum):
    """How one attempt ended, or why a task ended without one."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    RELEASED = "released"
    SNOOZED = "snoozed"
    LEASE_LOST = "lease_lost"
    EXPIRED = "expired"
    SKIPPED = "skipped"


# Handing a task back, or putting it off, is not a failure and uses up no attempt.
UNCHARGED = frozenset({Outcome.RELEASED, Outcome.SNOOZED, Outcome.EXPIRED, Outcome.SKIPPED})
# What a worker may say of an attempt; the rest are found out by duly itself.
SETTLEABLE = frozenset(Outcome) - {Outcome.LEASE_LOST, Outcome.EXPIRED, Outcome.SKIPPED}


class FailureReason(StrEnum):
    """Why a task is a dead letter."""

    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    NON_RETRYABLE = "non_retryable"
    EXPIRED = "expired"
    POISON = "poison"
    # Of maps: more items failed than it tolerates; or its source has no items, or too many.
    ITEMS_FAILED = "items_failed"
    INVALID_ITEMS = "invalid_items"
    # Of a node that stands for a workflow: that failed, or could not be started.
    WORKFLOW_FAILED = "workflow_failed"


def live_state(due_at: datetime | None, holder: object | None, now: datetime) -> State:
    """The state of a task that has a timer."""
    if due_at is None:
        return State.WAITING
    if holder is not None:
        return State.RUNNING
    return State.READY if due_at <= now else State.SCHEDULED
