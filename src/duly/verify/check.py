"""Invariant checks: whether what happened keeps the promises; one function for each invariant, all
of them pure.

`check` is used by the simulator, by the chaos run and by operators on a live database. Without a
client log, what only a client can know is left unjudged; the tables are judged all the same.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from duly.domain.states import TERMINAL, State
from duly.verify.caps import caps_are_kept
from duly.verify.history import (
    AttemptRow,
    Evidence,
    Finding,
    LoggedCall,
    Logs,
    Operation,
    Tables,
    gather,
)
from duly.verify.leases import (
    every_lease_is_one_attempt,
    held_once_at_a_time,
    stale_calls_change_nothing,
)
from duly.verify.occurrences import occurrences_fire_once
from duly.verify.tenants import tenants_stay_apart
from duly.verify.workflows import nodes_follow_their_parents


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    task: UUID | None
    problem: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.task or ''}: {self.problem}"


def check(logs: Logs, tables: Tables, only: Collection[str] | None = None) -> list[Violation]:
    """`only` names the invariants to judge, where the tables were read for those alone."""
    evidence = gather(logs, tables)
    return [
        Violation(name, task, problem)
        for name, judge in INVARIANTS.items()
        if only is None or name in only
        for task, problem in judge(evidence)
    ]


def find_overdue(tables: Tables, now: datetime, grace: timedelta) -> list[Violation]:
    """After everything healed: tasks past their due time that were not processed."""
    return [
        Violation("liveness", row.id, f"was due at {row.due_at}, and now it is {now}")
        for row in tables.timers
        if row.due_at is not None and row.due_at + grace < now
    ]


# I1 --------------------------------------------------------------------------------------------


def in_exactly_one_place(evidence: Evidence) -> Iterator[Finding]:
    """An acknowledged task is live, or terminal, or purged; and nothing else is stored."""
    for task in evidence.tasks:
        is_live, is_ended = task in evidence.timers, task in evidence.finals
        if is_live and is_ended:
            yield task, "is live and has ended"
        elif not is_live and not is_ended:
            yield task, "is neither live nor ended"
        elif is_live and task in evidence.tombstones:
            yield task, "is live and has been purged"
        elif task in evidence.tombstones and evidence.tasks[task].has_data:
            yield task, "has a tombstone, and still its data"
    for task in evidence.dead_letters:
        if task in evidence.tombstones:
            yield task, "has a tombstone, and a dead letter with its data"
    for task in [*evidence.timers, *evidence.attempts]:
        if task not in evidence.tasks and task not in evidence.tombstones:
            yield task, "has a timer or an attempt, and is not stored"
    for task in acknowledged(evidence):
        if task not in evidence.tasks and task not in evidence.tombstones:
            yield task, "was acknowledged and is not stored"
    yield from misplaced_letters(evidence)
    yield from untraceable(evidence)


def acknowledged(evidence: Evidence) -> set[UUID]:
    stored = {
        answer.task
        for _, answer in evidence.answers(Operation.SUBMIT)
        if answer.answer in ("stored", "replayed")
    }
    replayed = {
        answer.task
        for _, answer in evidence.answers(Operation.REPLAY)
        if answer.answer == "replayed"
    }
    return {task for task in stored | replayed if task is not None}


def misplaced_letters(evidence: Evidence) -> Iterator[Finding]:
    for task in evidence.dead_letters:
        final = evidence.finals.get(task)
        if task in evidence.tasks and (final is None or final.state != State.FAILED):
            yield task, "is a dead letter and did not fail"
    if not evidence.has_client_log and evidence.letters_purged is None:
        return
    purged = {
        call.asked.task
        for operation in (Operation.PURGE, Operation.PURGE_LETTER)
        for call in evidence.of(operation)
    }
    excused = purged | evidence.dead_letters.keys() | evidence.tombstones
    excused |= evidence.letters_purged or frozenset()
    for task, final in evidence.finals.items():
        if final.state == State.FAILED and task not in excused:
            yield task, "failed and is no dead letter"


def untraceable(evidence: Evidence) -> Iterator[Finding]:
    """Every stored task comes from one submit, one occurrence or one replay."""
    originals: Counter[UUID] = Counter()
    for row in evidence.tasks.values():
        if row.replay_of is None:
            continue
        originals[row.replay_of] += 1
        letter = evidence.dead_letters.get(row.replay_of)
        if letter is not None and letter.replayed_as != row.id:
            yield row.id, f"replays {row.replay_of}, whose dead letter does not say so"
        elif (
            letter is not None
            and row.execution_key != letter.execution_key
            and row.id not in evidence.tombstones
        ):
            yield row.id, "is a replay with another execution key"
    for letter in evidence.dead_letters.values():
        if letter.replayed_as is not None and evidence.is_missing(letter.replayed_as):
            yield letter.id, f"was replayed as {letter.replayed_as}, which is not stored"
    for original, replays in originals.items():
        if replays > 1:
            yield original, f"was replayed {replays} times"
    if not evidence.has_client_log:
        return
    known = acknowledged(evidence)
    doubtful = Counter(
        (call.asked.tenant, call.asked.request)
        for call in evidence.of(Operation.SUBMIT)
        if call.is_unknown
    )
    for row in evidence.tasks.values():
        is_made_by_us = row.replay_of is not None or row.occurrence is not None
        if is_made_by_us or row.request is None or row.id in known:
            continue
        if row.id in evidence.tombstones:
            # What was asked for is erased: it could be any call of unknown outcome.
            continue
        if doubtful[row.tenant, row.request] == 0:
            yield row.id, "is stored, but was never submitted"
        doubtful[row.tenant, row.request] -= 1


# I4 --------------------------------------------------------------------------------------------


def terminal_states_stay(evidence: Evidence) -> Iterator[Finding]:
    """Once ended, for good: one final attempt, the last one, and the same for every observer."""
    for task, rows in evidence.attempts.items():
        ends = [row for row in rows if row.state is not None]
        if len(ends) > 1:
            yield task, f"ended {len(ends)} times"
        if ends and ends[0] is not rows[-1]:
            yield task, f"went on after fence {ends[0].fence} ended it"
        if ends and task in evidence.timers:
            yield task, f"has a timer after fence {ends[0].fence} ended it"
    seen: dict[UUID, datetime] = {}
    for task, state, seen_at in observed_ends(evidence):
        seen[task] = min(seen_at, seen.get(task, seen_at))
        final = evidence.finals.get(task)
        stored = None if final is None else final.state
        if task in evidence.tasks and stored != state:
            yield task, f"was seen {state} at {seen_at}, and now is {stored or 'live'}"
    for asked, answer in evidence.answers(Operation.READ):
        if asked.task is None or answer.state in TERMINAL:
            continue
        final = evidence.finals.get(asked.task)
        # Certainly committed: a client had seen it, or no transaction lasts so long.
        ended = [] if final is None else [final.ended_at + timedelta(seconds=evidence.commit_s)]
        ended += [seen[asked.task]] if asked.task in seen else []
        if any(evidence.is_before(instant, asked.at) for instant in ended):
            yield asked.task, f"was seen {answer.state} at {answer.at}, after it had ended"


def observed_ends(evidence: Evidence) -> Iterator[tuple[UUID, str, datetime]]:
    for operation in (Operation.READ, Operation.SETTLE):
        for asked, answer in evidence.answers(operation):
            if asked.task is not None and answer.state in TERMINAL:
                yield asked.task, str(answer.state), answer.at
    for asked, answer in evidence.answers(Operation.CANCEL):
        if asked.task is None:
            continue
        if answer.answer in ("cancelled", "already_cancelled"):
            yield asked.task, State.CANCELLED, answer.at


# I8 --------------------------------------------------------------------------------------------


def one_key_one_task(evidence: Evidence) -> Iterator[Finding]:
    """The same key and request give the same task; another request is refused."""
    tasks: dict[tuple[int, str], set[UUID]] = defaultdict(set)
    stored: Counter[tuple[int, str]] = Counter()
    requests: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    mismatches: dict[tuple[int, str], set[str | None]] = defaultdict(set)
    for asked, answer in evidence.answers(Operation.SUBMIT):
        if asked.key is None or answer.task is None:
            continue
        name = (asked.tenant, asked.key)
        tasks[name].add(answer.task)
        stored[name] += answer.answer == "stored"
        (mismatches if answer.answer == "mismatch" else requests)[name].add(asked.request)
    for row in evidence.keys:
        tasks[row.tenant, row.key].add(row.task)
        if evidence.is_missing(row.task):
            yield row.task, f"key {row.key} stands for a task that is not stored"
        if not row.is_at_home:
            yield row.task, f"key {row.key} stands where no submitter looks for it"
    for name, answers in tasks.items():
        example = min(answers, key=lambda task: task.int)
        if len(answers) > 1:
            yield example, f"key {name[1]} stands for {len(answers)} tasks"
        if stored[name] > 1:
            yield example, f"key {name[1]} was stored {stored[name]} times"
        if len(requests[name]) > 1:
            yield example, f"key {name[1]} was accepted with {len(requests[name])} requests"
        for request in mismatches[name] & (requests[name] or stored_requests(evidence, answers)):
            yield example, f"key {name[1]} was refused for its own request {request}"


def stored_requests(evidence: Evidence, tasks: set[UUID]) -> set[str | None]:
    return {evidence.tasks[task].request for task in tasks if task in evidence.tasks}


# I12 -------------------------------------------------------------------------------------------


def no_early_start(evidence: Evidence) -> Iterator[Finding]:
    """No lease before the instant that was asked for, by the database's own clock."""
    moves: dict[UUID, list[LoggedCall]] = defaultdict(list)
    for call in evidence.of(Operation.MOVE):
        may_have_moved = call.is_unknown or (call.ok is not None and call.ok.answer == "moved")
        if call.asked.task is not None and call.asked.due_at is not None and may_have_moved:
            moves[call.asked.task].append(call)
    promises = {
        (asked.task, asked.fence): answer.due_at
        for asked, answer in evidence.answers(Operation.SETTLE)
        if answer.due_at is not None
    }
    for task in evidence.tasks.values():
        since, earliest, next_fence = None, task.run_at, 1
        for row in [*evidence.attempts.get(task.id, []), evidence.timers.get(task.id)]:
            if row is None or row.started_at is None or row.holder is None:
                continue
            allowed: datetime | None
            if evidence.has_client_log or row.fence == next_fence:
                allowed = moved_instant(
                    evidence, moves.get(task.id, []), since, earliest, row.started_at
                )
            else:
                # Only a move raises the fence between two leases: the row says to when.
                allowed = row.moved_to
            if allowed is not None and evidence.is_before(row.started_at, allowed):
                yield task.id, f"fence {row.fence} began at {row.started_at}, before {allowed}"
            if isinstance(row, AttemptRow):
                since, next_fence = row.ended_at, row.fence + 2
                earliest = promises.get((task.id, row.fence)) or row.ended_at


def moved_instant(
    evidence: Evidence,
    moves: list[LoggedCall],
    since: datetime | None,
    earliest: datetime,
    started_at: datetime,
) -> datetime:
    """The first allowed instant; what happened in doubtful order counts in the task's favour."""
    if not moves:
        return earliest
    relevant = [
        call
        for call in moves
        if not evidence.is_before(started_at, call.asked.at)
        and (since is None or call.ok is None or not evidence.is_before(call.ok.at, since))
    ]
    if not relevant:
        return earliest
    instants = [call.asked.due_at for call in relevant if call.asked.due_at is not None]
    (move, *others) = relevant
    is_certain = (
        not others
        and move.ok is not None
        and evidence.is_before(move.ok.at, started_at)
        and (since is None or evidence.is_before(since, move.asked.at))
    )
    return instants[0] if is_certain else min(earliest, *instants)


# I11 -------------------------------------------------------------------------------------------


def every_timer_is_found(evidence: Evidence) -> Iterator[Finding]:
    """Schedulers load from recorded places only: a timer in another place is as good as lost."""
    for timer in evidence.timers.values():
        if not timer.is_placed:
            yield timer.id, "waits in a place that no scheduler looks at"


# I13 -------------------------------------------------------------------------------------------


def cancel_is_kept(evidence: Evidence) -> Iterator[Finding]:
    """Cancelled: no later attempt. Requested: no later retry, and no failure instead."""
    for asked, answer in evidence.answers(Operation.CANCEL):
        task = asked.task
        if task is None or answer.answer not in ("cancelled", "cancel_requested"):
            continue
        timer, final = evidence.timers.get(task), evidence.finals.get(task)
        starts = [row.started_at for row in evidence.attempts.get(task, []) if row.started_at]
        if timer is not None and timer.holder is not None and timer.started_at is not None:
            starts.append(timer.started_at)
        for started_at in starts:
            if evidence.is_before(answer.at, started_at):
                yield task, f"began at {started_at}, after {answer.answer} at {answer.at}"
        if answer.answer == "cancelled" and timer is not None:
            yield task, f"is live after it was cancelled at {answer.at}"
        elif timer is not None and not timer.cancel_requested:
            yield task, f"has forgotten the cancel requested at {answer.at}"
        if final is not None and final.state == State.FAILED:
            yield task, f"failed after {answer.answer} at {answer.at}"


INVARIANTS: dict[str, Callable[[Evidence], Iterator[Finding]]] = {
    "I1": in_exactly_one_place,
    "I2": held_once_at_a_time,
    "I3": stale_calls_change_nothing,
    "I4": terminal_states_stay,
    "I5": every_lease_is_one_attempt,
    "I6": occurrences_fire_once,
    "I7": nodes_follow_their_parents,
    "I8": one_key_one_task,
    "I9": tenants_stay_apart,
    "I10": caps_are_kept,
    "I11": every_timer_is_found,
    "I12": no_early_start,
    "I13": cancel_is_kept,
}
