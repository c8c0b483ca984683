"""The witnesses of a simulated run: client log, effect log, fault log, and a trace of everything.

It stands outside of every node, so a crash takes no line of it away.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from duly.verify.history import CallPhase, Effect, Fault, LogEntry, Logs, Operation


class Recorder:
    def __init__(self, now: Callable[[], datetime]) -> None:
        self.now = now
        self.entries: list[LogEntry] = []
        self.effects: list[Effect] = []
        self.faults: list[Fault] = []
        self.crash_points: Counter[str] = Counter()
        self.trace: list[str] = []

    def ask(self, operation: Operation, tenant: int, **facts: Any) -> LogEntry:
        entry = LogEntry(
            call=len(self.entries),
            operation=operation,
            phase=CallPhase.INVOKE,
            at=self.now(),
            tenant=tenant,
            **facts,
        )
        self.write(entry)
        return entry

    def answer(self, asked: LogEntry, phase: CallPhase = CallPhase.OK, **facts: Any) -> None:
        known = {
            name: getattr(asked, name)
            for name in ("tenant", "task", "holder", "fence", "outcome", "key", "request")
        }
        self.write(
            LogEntry(
                call=asked.call,
                operation=asked.operation,
                phase=phase,
                at=self.now(),
                **(known | facts),
            )
        )

    def write(self, entry: LogEntry) -> None:
        self.entries.append(entry)
        self.trace.append(describe(entry))

    def effect(self, task: UUID, fence: int, holder: UUID) -> None:
        self.effects.append(Effect(task, fence, holder, self.now()))
        self.trace.append(f"{clock(self.now())} effect {task} fence {fence} by {short(holder)}")

    def fault(self, kind: str, node: str = "", step_back_s: float = 0.0) -> None:
        self.faults.append(Fault(kind, self.now(), node, step_back_s))
        self.trace.append(f"{clock(self.now())} FAULT {kind} {node}".rstrip())

    def note(self, text: str) -> None:
        self.trace.append(f"{clock(self.now())} {text}")

    @property
    def logs(self) -> Logs:
        return Logs(tuple(self.entries), tuple(self.effects), tuple(self.faults))


def describe(entry: LogEntry) -> str:
    facts = {
        name: getattr(entry, name)
        for name in LogEntry.__dataclass_fields__
        if name not in ("call", "operation", "phase", "at", "tenant")
        and getattr(entry, name) is not None
    }
    told = " ".join(f"{name}={tell(value)}" for name, value in facts.items())
    return f"{clock(entry.at)} #{entry.call} {entry.operation} {entry.phase} {told}".rstrip()


def tell(value: object) -> str:
    return clock(value) if isinstance(value, datetime) else str(value)


def clock(instant: datetime) -> str:
    return instant.strftime("%H:%M:%S.%f")


def short(holder: UUID) -> str:
    return holder.hex[:6]
