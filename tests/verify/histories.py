"""Hand-made histories for the tests of the checker: a few clean stories, to be spoiled."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from duly.verify.check import Violation, check
from duly.verify.history import (
    AttemptRow,
    CallPhase,
    DeadLetterRow,
    Effect,
    Fault,
    KeyRow,
    LogEntry,
    Logs,
    Operation,
    Tables,
    TaskRow,
    TimerRow,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
TASK, OTHER = UUID(int=1), UUID(int=2)
WORKER, THIEF = UUID(int=11), UUID(int=12)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Story:
    """Logs and tables that a test spoils in one place."""

    entries: list[LogEntry] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)
    timers: list[TimerRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    letters: list[DeadLetterRow] = field(default_factory=list)
    keys: list[KeyRow] = field(default_factory=list)
    tombstones: set[UUID] = field(default_factory=set)
    commit_s: float = 0.0

    def call(
        self,
        operation: Operation,
        asked_at: float,
        answered_at: float | None = None,
        phase: CallPhase = CallPhase.OK,
        answers: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        number = len(self.entries)
        asked = LogEntry(
            call=number,
            operation=operation,
            phase=CallPhase.INVOKE,
            at=at(asked_at),
            tenant=1,
            **facts,
        )
        self.entries.append(asked)
        if answered_at is not None:
            self.entries.append(
                replace(
                    asked, phase=phase, at=at(answered_at), **({"due_at": None} | (answers or {}))
                )
            )

    def submit(self, task: UUID | None, answer: str = "stored", **facts: Any) -> None:
        asked = {"request": "r1"} | facts
        self.call(Operation.SUBMIT, 0, 0.1, answers={"answer": answer, "task": task}, **asked)

    def lease(self, fence: int, started: float, until: float, attempt: int) -> None:
        answers = {
            "answer": "leased",
            "fence": fence,
            "attempt": attempt,
            "started_at": at(started),
            "lease_until": at(until),
        }
        self.call(
            Operation.LEASE,
            started,
            started + 0.1,
            answers=answers,
            task=TASK,
            fence=fence - 1,
            holder=WORKER,
        )
        self.effects.append(Effect(TASK, fence, WORKER, at(started + 0.1)))

    def beat(
        self, fence: int, when: float, until: float, answer: str = "held", holder: UUID = WORKER
    ) -> None:
        answers = {"answer": answer, "lease_until": at(until) if answer != "stale" else None}
        self.call(
            Operation.HEARTBEAT,
            when,
            when + 0.1,
            answers=answers,
            task=TASK,
            fence=fence,
            holder=holder,
        )

    def settle(
        self, fence: int, when: float, outcome: str, answer: str = "settled", **answers: Any
    ) -> None:
        self.call(
            Operation.SETTLE,
            when - 0.1,
            when + 0.1,
            answers={"answer": answer} | answers,
            task=TASK,
            fence=fence,
            holder=WORKER,
            outcome=outcome,
        )

    def cancel(self, when: float, answer: str) -> None:
        self.call(Operation.CANCEL, when, when + 0.1, answers={"answer": answer}, task=TASK)

    def move(self, when: float, due: float, answer: str = "moved") -> None:
        answers = {"answer": answer}
        self.call(Operation.MOVE, when, when + 0.1, answers=answers, task=TASK, due_at=at(due))

    def read(self, when: float, state: str) -> None:
        answers = {"answer": "seen", "state": state}
        self.call(Operation.READ, when, when + 0.1, answers=answers, task=TASK)

    def spoil_attempt(self, index: int, **changes: Any) -> None:
        self.attempts[index] = replace(self.attempts[index], **changes)

    def verdicts(self) -> set[str]:
        return {violation.invariant for violation in self.violations()}

    def violations(self) -> list[Violation]:
        tables = Tables(
            tuple(self.tasks),
            tuple(self.timers),
            tuple(self.attempts),
            tuple(self.letters),
            tuple(self.keys),
            frozenset(self.tombstones),
        )
        logs = Logs(tuple(self.entries), tuple(self.effects), tuple(self.faults), self.commit_s)
        return check(logs, tables)


def finished() -> Story:
    """Due at 1; failed once, promised again at 10, lease lost and completed the third time."""
    story = Story()
    story.submit(TASK, key="k")
    story.tasks.append(TaskRow(TASK, 1, at(1), 3, "k", request="r1"))
    story.keys.append(KeyRow(1, "k", TASK))
    story.lease(1, 1, 6, attempt=1)
    story.beat(1, 3, 8)
    story.settle(1, 4, "failed", due_at=at(10))
    story.lease(3, 10, 15, attempt=2)
    story.beat(3, 12, 17)
    story.lease(5, 30, 35, attempt=3)
    story.beat(3, 31, 0, answer="stale")
    story.settle(3, 31, "completed", answer="stale")
    story.settle(5, 32, "completed", state="COMPLETED")
    story.settle(5, 33, "completed", answer="replay")
    story.read(40, "COMPLETED")
    story.attempts += [
        AttemptRow(TASK, 1, 1, WORKER, at(1), at(4), "failed"),
        AttemptRow(TASK, 3, 2, WORKER, at(10), at(17), "lease_lost"),
        AttemptRow(TASK, 5, 3, WORKER, at(30), at(32), "completed", "COMPLETED"),
    ]
    return story


def running() -> Story:
    """Leased for the second time, and somebody asked to cancel it."""
    story = finished()
    del story.attempts[2]
    story.entries = [entry for entry in story.entries if entry.at < at(31)]
    story.effects = [effect for effect in story.effects if effect.started_at < at(31)]
    story.timers.append(TimerRow(TASK, 5, 2, at(35), WORKER, at(30), cancel_requested=True))
    story.cancel(32, "cancel_requested")
    return story


def cancelled() -> Story:
    story = Story()
    story.submit(TASK)
    story.tasks.append(TaskRow(TASK, 1, at(5), 3, request="r1"))
    story.move(1, 9)
    story.cancel(2, "cancelled")
    story.cancel(3, "already_cancelled")
    story.attempts.append(AttemptRow(TASK, 2, 0, None, None, at(2.05), "cancelled", "CANCELLED"))
    return story


def failed() -> Story:
    """Failed for good, replayed once as another task, which waits."""
    story = Story()
    story.submit(TASK)
    story.lease(1, 1, 6, attempt=1)
    story.settle(1, 2, "rejected", state="FAILED")
    story.call(Operation.REPLAY, 5, 6, answers={"answer": "replayed", "task": OTHER}, task=TASK)
    story.tasks += [
        TaskRow(TASK, 1, at(1), 3, request="r1"),
        TaskRow(OTHER, 1, at(5.5), 3, str(TASK), TASK, "r1"),
    ]
    story.attempts.append(AttemptRow(TASK, 1, 1, WORKER, at(1), at(2), "rejected", "FAILED"))
    story.letters.append(DeadLetterRow(TASK, str(TASK), OTHER))
    story.timers.append(TimerRow(OTHER, 0, 0, at(5.5)))
    return story
