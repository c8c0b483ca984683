"""Explanation of why a task has not run yet: facts of one instant in, sentences out.

The gates are those of dispatch, asked by the same function. After them comes what a task waits for
without a closed gate: parents, its fire time, an owner of its slot, a worker of its pool or, for a
webhook, an executor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from duly.domain.gates import Gate, GateFacts, refusals
from duly.domain.states import TERMINAL, Outcome, State

# Owners report the levels of their buckets every few seconds, except full ones.
LEVEL_FRESH_S = 10.0
ERROR_CHARACTERS_MAX = 200
# Gates that stand whatever is dispatched meanwhile: worth a word before a task is due.
STANDING = frozenset({Gate.PAUSED, Gate.BREAKER, Gate.OWNERSHIP_TRANSFER})


class WaitReason(StrEnum):
    """Reasons to wait beside the gates; the last three apply only once it is due."""

    WAITING_PARENTS = "waiting_parents"
    NOT_DUE = "not_due"
    SLOT_WITHOUT_OWNER = "slot_without_owner"
    NO_LIVE_WORKER = "no_live_worker"
    NO_EXECUTOR = "no_executor"


class LastAttempt(NamedTuple):
    """How the newest attempt on record ended; `state` if that ended the task."""

    outcome: str
    charged: int
    ended_at: datetime
    state: str | None = None
    reason: str | None = None
    error: str | None = None


class RateLevel(NamedTuple):
    """How full a tenant's dispatch bucket was at its owner's last report."""

    tokens: float
    rate: float
    burst: float
    told_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A task and its surroundings. `attempt` includes the one that runs; no `pool` is a webhook."""

    id: UUID
    state: State
    facts: GateFacts
    slot: int
    has_owner: bool
    max_attempts: int
    attempt: int = 0
    due_at: datetime | None = None
    last: LastAttempt | None = None
    holder: str | None = None
    started_at: datetime | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    pool: str | None = None
    workers: int = 0
    # When a worker of the pool was last seen; forgotten some time after that.
    worker_seen_at: datetime | None = None
    has_executor: bool = True
    # Ready tasks of its lane that are due before it; a lower bound from `ahead_max` on.
    ahead: int = 0
    ahead_max: int | None = None
    dispatch_rate: float | None = None
    # When enough of the key's leases end for it to have capacity, unless they are extended.
    key_free_at: datetime | None = None
    # Of a node of a workflow that is not due: what it waits for.
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class ExplainEntry:
    """One thing that a task has to pass."""

    gate: Gate | WaitReason
    is_open: bool
    reason: str | None = None
    until: datetime | None = None
    unblock: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    state: State
    summary: str
    entries: list[ExplainEntry]
    binding: Gate | WaitReason | None
    estimate_at: datetime | None


def explain(situation: Situation) -> Explanation:
    state = situation.state
    if state in TERMINAL:
        return Explanation(state, ended_summary(situation), [], None, None)
    if state is State.RUNNING:
        return running(situation)
    entries = [*gate_entries(situation.facts), *wait_entries(situation)]
    binding = binding_of(state, entries)
    return Explanation(
        state,
        waiting_summary(situation, entries, binding),
        entries,
        None if binding is None else binding.gate,
        estimate(situation, entries),
    )


def gate_entries(facts: GateFacts) -> list[ExplainEntry]:
    """Every gate of dispatch, in its order."""
    return [
        ExplainEntry(gate, is_open=True)
        if refusal is None
        else ExplainEntry(gate, False, refusal.reason, refusal.until, refusal.unblock)
        for gate, refusal in refusals(facts)
    ]


def wait_entries(situation: Situation) -> list[ExplainEntry]:
    entries = {wait: ExplainEntry(wait, is_open=True) for wait in WaitReason}
    if situation.due_at is None:
        reason = "tasks of its workflow that come before it have not completed"
        if situation.waits_for is not None:
            reason = f"it {situation.waits_for}"
        entries[WaitReason.WAITING_PARENTS] = ExplainEntry(
            WaitReason.WAITING_PARENTS, False, reason
        )
    elif situation.facts.now < situation.due_at:
        entries[WaitReason.NOT_DUE] = ExplainEntry(
            WaitReason.NOT_DUE,
            False,
            f"it is not due before {said(situation.due_at)}",
            situation.due_at,
            f"duly tasks run-now {situation.id}",
        )
    if not situation.has_owner:
        entries[WaitReason.SLOT_WITHOUT_OWNER] = slot_entry(situation)
    if situation.pool is not None and not situation.workers:
        entries[WaitReason.NO_LIVE_WORKER] = ExplainEntry(
            WaitReason.NO_LIVE_WORKER,
            False,
            no_worker_words(situation),
            unblock=f'duly worker ... (a Worker with pools=["{situation.pool}"])',
        )
    if situation.pool is None and not situation.has_executor:
        reason = "no live node has the role executor, which calls webhooks"
        entries[WaitReason.NO_EXECUTOR] = ExplainEntry(
            WaitReason.NO_EXECUTOR, False, reason, unblock="duly serve"
        )
    return list(entries.values())


def no_worker_words(situation: Situation) -> str:
    words = f"no worker serves the pool {situation.pool}"
    if situation.worker_seen_at is None:
        return words
    return f"{words} since {said(situation.worker_seen_at)}, when the last one was seen"


def slot_entry(situation: Situation) -> ExplainEntry:
    reason = f"no scheduler owns its slot, number {situation.slot}"
    return ExplainEntry(WaitReason.SLOT_WITHOUT_OWNER, False, reason, unblock="duly serve")


def binding_of(state: State, entries: Iterable[ExplainEntry]) -> ExplainEntry | None:
    """The first that is closed; before a task is due, nothing else is asked."""
    closed = [entry for entry in entries if not entry.is_open]
    if state in (State.WAITING, State.SCHEDULED):
        early = (WaitReason.WAITING_PARENTS, WaitReason.NOT_DUE)
        return next(entry for entry in closed if entry.gate in early)
    return closed[0] if closed else None


def waiting_summary(
    situation: Situation, entries: list[ExplainEntry], binding: ExplainEntry | None
) -> str:
    now = situation.facts.now
    if situation.due_at is None:
        if situation.waits_for is not None:
            return f"it {situation.waits_for}"
        return "it waits for other tasks of its workflow, which must complete first"
    before = attempt_words(situation)
    if now < situation.due_at:
        words = f"it is not due before {said(situation.due_at)}"
        if before:
            words = f"{before}; the next attempt is not due before {said(situation.due_at)}"
        standing = [entry for entry in entries if not entry.is_open and entry.gate in STANDING]
        if standing:
            words += f", and as things stand it will then be held back: {standing[0].reason}"
        return words
    due = f"{before}; it is" if before else "it is"
    due += f" due since {said(situation.due_at)}"
    if binding is None:
        return f"{due}, nothing holds it back, and it is on its way{ahead_words(situation)}"
    others = sum(not entry.is_open for entry in entries) - 1
    return due + held_words(situation, binding) + more_words(others)


def held_words(situation: Situation, binding: ExplainEntry) -> str:
    if binding.gate is Gate.EXPIRED:
        return f", but too late and about to fail as expired: {binding.reason}"
    words = f", and held back: {binding.reason}"
    if binding.until is not None:
        words += f" (until {said(binding.until)})"
    return words + (ahead_words(situation) if binding.gate is Gate.TENANT_RATE else "")


def ahead_words(situation: Situation) -> str:
    ahead = situation.ahead
    if not ahead:
        return ""
    bound = "at least " if situation.ahead_max is not None and ahead >= situation.ahead_max else ""
    return f"; {bound}{counted(ahead, 'task')} of its lane {be(ahead)} ahead of it"


def more_words(others: int) -> str:
    return f"; {counted(others, 'more thing')} would hold it back too" if others else ""


def attempt_words(situation: Situation) -> str:
    """What came before, of a task that is tried again."""
    last = situation.last
    if last is None:
        return ""
    at = said(last.ended_at)
    match last.outcome:
        case Outcome.SNOOZED:
            return f"it was put off by its worker at {at}"
        case Outcome.RELEASED:
            return f"it was handed back by its worker at {at}"
        case Outcome.LEASE_LOST:
            what = f"was lost at {at}: its worker sent no heartbeat"
        case _:
            what = f"failed at {at}{error_words(last)}"
    return f"attempt {last.charged} of {situation.max_attempts} {what}"


def running(situation: Situation) -> Explanation:
    """It passed every gate. Once its lease is over it needs an owner again, to be tried again."""
    assert situation.started_at is not None
    assert situation.lease_until is not None
    attempt = f"attempt {situation.attempt} of {situation.max_attempts}"
    since, until = said(situation.started_at), said(situation.lease_until)
    if situation.facts.now < situation.lease_until:
        words = f"{attempt} runs since {since}, held by {situation.holder}, lease until {until}"
        if situation.cancel_requested:
            words += "; a cancel was requested; its holder learns of it at its next heartbeat"
        return Explanation(State.RUNNING, words, [], None, None)
    words = (
        f"{attempt} runs since {since}, but its holder {situation.holder} sent no heartbeat, and "
        f"the lease ended at {until}"
    )
    if situation.has_owner:
        return Explanation(State.RUNNING, f"{words}: it counts as lost now", [], None, None)
    entry = slot_entry(situation)
    words += f"; it cannot be tried again, because {entry.reason}"
    return Explanation(State.RUNNING, words, [entry], WaitReason.SLOT_WITHOUT_OWNER, None)


def ended_summary(situation: Situation) -> str:
    last = situation.last
    assert last is not None, "a task that has ended has an attempt that says so"
    at = said(last.ended_at)
    match situation.state:
        case State.COMPLETED:
            return f"it has ended: attempt {last.charged} completed at {at}"
        case State.CANCELLED:
            return f"it has ended: cancelled at {at}"
        case _:
            attempts = counted(situation.attempt, "attempt")
            words = f"it has ended: failed at {at} after {attempts}, {last.reason}"
            replay = f"to run it again: duly dead-letters replay {situation.id}"
            return f"{words}{error_words(last)}; {replay}"


def estimate(situation: Situation, entries: Iterable[ExplainEntry]) -> datetime | None:
    """The estimated start if nothing changes; None if that depends on a person's decision."""
    now = situation.facts.now
    if situation.due_at is None:
        return None
    closed = [
        entry for entry in entries if not entry.is_open and entry.gate is not WaitReason.NOT_DUE
    ]
    if now < situation.due_at:
        closed = [entry for entry in closed if entry.gate in STANDING]
    instants = [opens_at(situation, entry) for entry in closed]
    known = [instant for instant in instants if instant is not None]
    return max(now, situation.due_at, *known) if len(known) == len(instants) else None


def opens_at(situation: Situation, entry: ExplainEntry) -> datetime | None:
    if entry.gate is Gate.CONCURRENCY_KEY:
        return situation.key_free_at
    if entry.gate is Gate.TENANT_RATE and entry.until is not None and situation.dispatch_rate:
        # Each of those ahead takes a token as well.
        return entry.until + timedelta(seconds=situation.ahead / situation.dispatch_rate)
    return entry.until


def next_token_at(
    level: RateLevel | None, now: datetime, due_at: datetime, ahead: int
) -> datetime | None:
    """When the tenant's bucket has a token again, from its last known level.

    A full bucket is not reported. If it was empty while tasks were waiting, they took the
    tokens that came in since; else no task did.
    """
    if level is None:
        return None
    passed_s = max(0.0, (now - level.told_at).total_seconds())
    if passed_s > LEVEL_FRESH_S or level.tokens >= 1.0:
        return None
    tokens = min(level.burst, level.tokens + passed_s * level.rate)
    if ahead or due_at <= level.told_at:
        tokens %= 1.0
    return now + timedelta(seconds=max(0.0, 1.0 - tokens) / level.rate)


def said(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def error_words(last: LastAttempt) -> str:
    """The first line of the error, cut to what fits in a sentence."""
    line = next(iter((last.error or "").strip().splitlines()), "")
    if len(line) > ERROR_CHARACTERS_MAX:
        line = f"{line[:ERROR_CHARACTERS_MAX]}..."
    return f" ({line})" if line else ""


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def be(number: int) -> str:
    return "is" if number == 1 else "are"
