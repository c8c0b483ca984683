"""Whether tenants stay apart (I9): all rows of a task are of one tenant, and no caller was answered
about another's. Pure; `check.py` runs this with the other invariants.
"""

from collections.abc import Iterator

from duly.verify.history import (
    AttemptRow,
    DeadLetterRow,
    Evidence,
    Finding,
    Operation,
    TimerRow,
)

# Calls of one tenant about one task, and the answers that gave them what they asked for. Leases are
# not among them: an executor works for all tenants.
ASKED_BY_TENANTS = (
    Operation.SUBMIT,
    Operation.CANCEL,
    Operation.MOVE,
    Operation.REPLAY,
    Operation.READ,
)
GRANTED = frozenset(
    {"stored", "replayed", "cancelled", "cancel_requested", "already_cancelled", "moved", "seen"}
)


def tenants_stay_apart(evidence: Evidence) -> Iterator[Finding]:
    """One tenant in task, timer, attempts, dead letter and key; and in every answered call."""
    rows: list[tuple[str, TimerRow | AttemptRow | DeadLetterRow]] = [
        *(("timer", row) for row in evidence.timers.values()),
        *(("attempt", row) for group in evidence.attempts.values() for row in group),
        *(("dead letter", row) for row in evidence.dead_letters.values()),
    ]
    for kind, row in rows:
        task = evidence.tasks.get(row.id)
        if task is not None and row.tenant not in (None, task.tenant):
            yield row.id, f"belongs to tenant {task.tenant}, and its {kind} to {row.tenant}"
    for key in evidence.keys:
        task = evidence.tasks.get(key.task)
        if task is not None and task.tenant != key.tenant:
            yield key.task, f"key {key.key} of tenant {key.tenant} stands for a foreign task"
    for occurrence in evidence.occurrences:
        task = evidence.tasks.get(occurrence.task) if occurrence.task else None
        if task is not None and occurrence.tenant not in (None, task.tenant):
            yield task.id, f"was fired by a schedule of tenant {occurrence.tenant}"
    yield from replays_abroad(evidence)
    yield from foreign_answers(evidence)


def replays_abroad(evidence: Evidence) -> Iterator[Finding]:
    for task in evidence.tasks.values():
        letter = evidence.dead_letters.get(task.replay_of) if task.replay_of else None
        if letter is not None and letter.tenant not in (None, task.tenant):
            yield task.id, f"of tenant {task.tenant} replays a dead letter of {letter.tenant}"


def foreign_answers(evidence: Evidence) -> Iterator[Finding]:
    for operation in ASKED_BY_TENANTS:
        for asked, answer in evidence.answers(operation):
            task = evidence.tasks.get(answer.task) if answer.task else None
            if task is not None and task.tenant != asked.tenant and answer.answer in GRANTED:
                yield task.id, f"of tenant {task.tenant} was {answer.answer} for {asked.tenant}"
