"""Whether leases keep their promises: held once at a time (I2), stale calls refused (I3), each one
recorded (I5). Pure; `check.py` runs these with the other invariants.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from uuid import UUID

from duly.domain.states import UNCHARGED, Outcome
from duly.verify.history import AttemptRow, Evidence, Finding, LogEntry, Operation, TimerRow

# Ends that duly finds out by itself; every other record needs a settlement in the log.
FOUND_OUT = frozenset({Outcome.LEASE_LOST, Outcome.EXPIRED})


# I2 --------------------------------------------------------------------------------------------


def held_once_at_a_time(evidence: Evidence) -> Iterator[Finding]:
    """Fences rise at every lease and at every end of one; no two leases overlap."""
    for task, rows in evidence.attempts.items():
        for earlier, later in pairwise(rows):
            if later.fence < earlier.fence + rise_after(earlier):
                yield task, f"fence {later.fence} follows {earlier.fence}, which was a lease"
            begins_at = later.started_at or later.ended_at
            if evidence.is_before(begins_at, earlier.ended_at):
                yield task, f"fence {later.fence} began before fence {earlier.fence} ended"
        timer = evidence.timers.get(task)
        if timer is not None:
            yield from overlaps_with_timer(evidence, rows[-1], timer)
    yield from sleeping_fences(evidence)
    yield from shared_or_shortened(evidence)


def rise_after(row: AttemptRow) -> int:
    """One for the end of a lease, one for what comes next."""
    return 2 if row.holder is not None else 1


def overlaps_with_timer(evidence: Evidence, last: AttemptRow, timer: TimerRow) -> Iterator[Finding]:
    least = last.fence + (1 if timer.holder is None else rise_after(last))
    if timer.fence < least:
        yield timer.id, f"its timer has fence {timer.fence} after an attempt of {last.fence}"
    if timer.holder and timer.started_at and evidence.is_before(timer.started_at, last.ended_at):
        yield timer.id, f"is leased since before fence {last.fence} ended"


def sleeping_fences(evidence: Evidence) -> Iterator[Finding]:
    """A fence rises once for each lease, each end of one that was not the last, and each move."""
    moves = Counter(
        asked.task for asked, answer in evidence.answers(Operation.MOVE) if answer.answer == "moved"
    )
    for task in evidence.tasks:
        rows, timer = evidence.attempts.get(task, []), evidence.timers.get(task)
        leases = [row for row in rows if row.holder is not None]
        rises = len(rows) + sum(1 for row in leases if row.state is None) + moves[task]
        rises += timer is not None and timer.holder is not None
        fence = timer.fence if timer is not None else rows[-1].fence if rows else 0
        if fence < rises:
            yield task, f"its fence is {fence}, and it rose {rises} times"


def shared_or_shortened(evidence: Evidence) -> Iterator[Finding]:
    holders: dict[tuple[UUID, int], set[UUID]] = defaultdict(set)
    granted: dict[tuple[UUID, int], datetime] = {}
    for operation in (Operation.LEASE, Operation.HEARTBEAT):
        for _, answer in evidence.answers(operation):
            if answer.task and answer.fence is not None and answer.holder and answer.lease_until:
                lease = (answer.task, answer.fence)
                holders[lease].add(answer.holder)
                granted[lease] = max(answer.lease_until, granted.get(lease, answer.lease_until))
    for (task, fence), sharing in holders.items():
        if len(sharing) > 1:
            yield task, f"fence {fence} was held by {len(sharing)} holders"
        row = evidence.attempt_of(task, fence)
        if row is not None and row.outcome == Outcome.LEASE_LOST:
            until = granted[task, fence]
            if evidence.is_before(row.ended_at, until):
                yield task, f"fence {fence} was taken away before {until}, until when it was held"


# I3 --------------------------------------------------------------------------------------------


def stale_calls_change_nothing(evidence: Evidence) -> Iterator[Finding]:
    """A refused settlement left no record, and only the holder of a lease extends or ends it."""
    for asked, answer in evidence.answers(Operation.LEASE):
        if answer.answer == "leased" and answer.fence != (asked.fence or 0) + 1:
            yield asked.task, f"a ticket of fence {asked.fence} became the lease {answer.fence}"
    for asked, answer in evidence.answers(Operation.SETTLE):
        if answer.answer == "stale":
            yield from wrongly_refused(evidence, asked, answer)
        else:
            yield from unrecorded(evidence, asked, answer)
    yield from unsettled_records(evidence)
    yield from foreign_heartbeats(evidence)


def unrecorded(evidence: Evidence, asked: LogEntry, answer: LogEntry) -> Iterator[Finding]:
    row = evidence.attempt_of(asked.task, asked.fence)
    if row is None or row.holder != asked.holder or row.outcome != asked.outcome:
        yield asked.task, f"fence {asked.fence} was {answer.answer} as {asked.outcome}, unrecorded"
    elif answer.answer == "settled" and row.state != answer.state:
        yield asked.task, f"fence {asked.fence} was answered {answer.state}, stored {row.state}"


def wrongly_refused(evidence: Evidence, asked: LogEntry, answer: LogEntry) -> Iterator[Finding]:
    """Refused, though the caller's lease began before the question and ended after the answer."""
    assert asked.task is not None
    assert asked.fence is not None
    if evidence.recorded_holder(asked.task, asked.fence) != asked.holder:
        return
    row = evidence.attempt_of(asked.task, asked.fence)
    began_at = evidence.began_at(asked.task, asked.fence)
    was_held_after = row is None or evidence.is_before(answer.at, row.ended_at)
    if was_held_after and began_at is not None and evidence.is_before(began_at, asked.at):
        yield asked.task, f"fence {asked.fence} was called stale while its holder held it"


def unsettled_records(evidence: Evidence) -> Iterator[Finding]:
    """A record of a settlement that was never sent, or was refused, comes from a stale call.

    Only where settlements were logged: a log of submits alone cannot tell.
    """
    if not evidence.of(Operation.SETTLE):
        return
    made = {
        (call.asked.task, call.asked.fence, call.asked.holder, call.asked.outcome)
        for call in evidence.of(Operation.SETTLE)
        if call.is_unknown
        or (call.ok is not None and call.ok.answer != "stale")
        # A purge erased the words, so a repetition cannot be known again and is called stale.
        or call.asked.task in evidence.tombstones
    }
    for task, rows in evidence.attempts.items():
        for row in rows:
            if row.holder is None or row.outcome in FOUND_OUT:
                continue
            if (task, row.fence, row.holder, row.outcome) not in made:
                yield task, f"fence {row.fence} is recorded {row.outcome}, which was not settled"


def foreign_heartbeats(evidence: Evidence) -> Iterator[Finding]:
    refused_at: dict[tuple[UUID, int, UUID], datetime] = {}
    for asked, answer in evidence.answers(Operation.HEARTBEAT):
        if asked.task is None or asked.fence is None or asked.holder is None:
            continue
        beat = (asked.task, asked.fence, asked.holder)
        if answer.answer == "stale":
            began_at = evidence.began_at(asked.task, asked.fence)
            # A guess that was refused before the lease began says nothing about the lease.
            if began_at is not None and evidence.is_before(began_at, asked.at):
                refused_at[beat] = min(answer.at, refused_at.get(beat, answer.at))
            continue
        if evidence.recorded_holder(asked.task, asked.fence) != asked.holder:
            yield asked.task, f"another holder's heartbeat extended fence {asked.fence}"
        row = evidence.attempt_of(asked.task, asked.fence)
        if row is not None and evidence.is_before(row.ended_at, asked.at):
            yield asked.task, f"fence {asked.fence} was extended after it had ended"
        if beat in refused_at and evidence.is_before(refused_at[beat], asked.at):
            yield asked.task, f"fence {asked.fence} was extended after it was called stale"


# I5 --------------------------------------------------------------------------------------------


def every_lease_is_one_attempt(evidence: Evidence) -> Iterator[Finding]:
    """Each lease is recorded once, with its outcome; charged numbers are 1..n in fence order."""
    for task, rows in evidence.attempts.items():
        for fence, times in Counter(row.fence for row in rows).items():
            if times > 1:
                yield task, f"fence {fence} is recorded {times} times"
        yield from miscounted(evidence, task, rows)
    for task in evidence.timers.keys() - evidence.attempts.keys():
        yield from miscounted(evidence, task, [])
    for _, answer in evidence.answers(Operation.LEASE):
        if answer.answer == "leased":
            yield from unaccounted(evidence, answer)
    for effect in evidence.effects:
        if evidence.recorded_holder(effect.task, effect.fence) != effect.holder:
            yield effect.task, f"was executed with fence {effect.fence}, which is not recorded"
    executions = Counter((effect.task, effect.fence) for effect in evidence.effects)
    for (task, fence), times in executions.items():
        if times > 1:
            yield task, f"was executed {times} times with fence {fence}"


def miscounted(evidence: Evidence, task: UUID, rows: list[AttemptRow]) -> Iterator[Finding]:
    charged = 0
    for row in rows:
        is_charged = row.holder is not None and row.outcome not in UNCHARGED
        charged += is_charged
        if row.charged != (charged if is_charged else 0):
            yield task, f"fence {row.fence} ({row.outcome}) is charged as number {row.charged}"
    timer, asked = evidence.timers.get(task), evidence.tasks.get(task)
    if timer is not None and timer.attempt != charged:
        yield task, f"its timer counts {timer.attempt} attempts, and {charged} are recorded"
    if asked is not None and charged > asked.max_attempts:
        yield task, f"was tried {charged} times, and {asked.max_attempts} is the most"


def unaccounted(evidence: Evidence, lease: LogEntry) -> Iterator[Finding]:
    assert lease.task is not None
    assert lease.fence is not None
    if evidence.recorded_holder(lease.task, lease.fence) != lease.holder:
        yield lease.task, f"its lease with fence {lease.fence} is neither recorded nor held"
    rows = evidence.attempts.get(lease.task, [])
    before = sum(1 for row in rows if row.fence < lease.fence and row.charged > 0)
    if lease.attempt != before + 1:
        yield (
            lease.task,
            f"fence {lease.fence} was called attempt {lease.attempt}, not {before + 1}",
        )
