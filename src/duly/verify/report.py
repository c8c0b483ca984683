"""What a look at a whole installation found: how much was checked, and what is wrong. Pure.

Violations are broken promises. Warnings are what a pause, a cap or a stopped process may explain.
Only so many of either are kept; all are counted.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from duly.verify.check import Violation, check, find_overdue
from duly.verify.healed import find_ownerless
from duly.verify.history import Fault, Logs, SlotHolderRow, Tables

# After a fail-over the clock may be a little behind. Fences rise all the same, and are judged
# exactly; only instants in the wrong order are forgiven, if they are no further apart.
CLOCK_STEP_S = 1.0
# Later than this, a due task or a lease that ran out is worth a word.
GRACE_S = 60.0
KEY_INVARIANTS = ("I8", "I9")
LEDGER_INVARIANTS = ("I6", "I9")


class Claim(NamedTuple):
    """One line of the report: what is claimed, and which rows can break it."""

    name: str
    says: str
    tables: tuple[str, ...]


CLAIMS = (
    Claim(
        "I1",
        "a task is live or has ended; no row is without its task",
        ("tasks", "timers", "attempts", "dead_letters", "tombstones"),
    ),
    Claim("I2", "fences rise, and no two leases overlap", ("timers", "attempts")),
    Claim("I4", "the last attempt, and only it, ends a task", ("attempts",)),
    Claim("I5", "every fence is recorded once; charges count 1 to n", ("timers", "attempts")),
    Claim("I6", "what the ledger says fired is one stored task", ("occurrences",)),
    Claim("I7", "workflow nodes follow their parents; none waits for ever", ("workflows",)),
    Claim("I8", "an idempotency key stands for one stored task", ("keys",)),
    Claim(
        "I9",
        "all rows of a task belong to one tenant",
        ("timers", "attempts", "dead_letters", "keys", "occurrences"),
    ),
    Claim("I11", "schedulers look wherever a task waits", ("timers",)),
    Claim("I12", "nothing was leased before its time", ("timers", "attempts")),
)
WARNINGS = (
    Claim("overdue", "nothing is due for long, and no lease has long run out", ("timers",)),
    Claim("slots", "every slot has an owner", ("slots",)),
    Claim("caps", "no tenant has more leases than its cap", ("capped_tenants",)),
)


@dataclass(slots=True)
class Verification:
    """Filled page by page; its size does not depend on how much is checked."""

    kept_max: int
    rows: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    warnings: list[Violation] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not any(self.counts[claim.name] for claim in CLAIMS)

    def judge_tasks(self, tables: Tables, chosen: Iterable[object], now: datetime) -> None:
        """`chosen` are the tasks to judge; others were read because the chosen name them."""
        names = frozenset(chosen)
        found = check(clock_excused(now), tables)
        self.add([each for each in found if each.task is None or each.task in names])
        for each in find_overdue(tables, now, timedelta(seconds=GRACE_S)):
            if each.task in names:
                self.warn("overdue", each)

    def judge_keys(self, tables: Tables, now: datetime) -> None:
        self.add(check(clock_excused(now), tables, KEY_INVARIANTS))

    def judge_ledger(self, tables: Tables, now: datetime) -> None:
        self.add(check(clock_excused(now), tables, LEDGER_INVARIANTS))

    def judge_workflows(self, tables: Tables, now: datetime) -> None:
        self.add(check(clock_excused(now), tables, ("I7",)))

    def judge_slots(self, slots: list[SlotHolderRow], now: datetime) -> None:
        self.rows["slots"] += len(slots)
        ownerless = find_ownerless(slots, now)
        if ownerless:
            problem = f"{len(ownerless)} of {len(slots)} slots have no owner"
            self.warn("slots", Violation("slots", None, problem))

    def judge_cap(self, tenant: int, most: int, leases: int) -> None:
        if leases > most:
            problem = f"tenant {tenant} has {leases} leases, and its cap is {most}"
            self.warn("caps", Violation("caps", None, problem))

    def add(self, found: list[Violation]) -> None:
        self.counts.update(each.invariant for each in found)
        self.violations += found[: self.kept_max - len(self.violations)]

    def warn(self, name: str, found: Violation) -> None:
        self.counts[name] += 1
        if len(self.warnings) < self.kept_max:
            self.warnings.append(Violation(name, found.task, found.problem))

    def looked_at(self, claim: Claim) -> int:
        return sum(self.rows[table] for table in claim.tables)


def clock_excused(now: datetime) -> Logs:
    return Logs(faults=(Fault("clock", now, step_back_s=CLOCK_STEP_S),))
