"""Deliberate bugs: one guard taken out of one statement, to see whether the simulator notices."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from duly.store import control, dead_letters, lease, purge, reap, settle, submit
from duly.store.statements import Statements
from tests.simulation.database import Postgres
from tests.simulation.run import Verdict, run_seed


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in one statement; a guard that moved elsewhere is found by the assert."""

    name: str
    statements: Statements
    statement: str
    old: str
    new: str
    also: tuple[str, str] = ("\n", "\n")

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        sound = self.statements.blocks[self.statement]
        assert self.old in sound, f"{self.statement} has no longer: {self.old}"
        self.statements.blocks[self.statement] = sound.replace(self.old, self.new).replace(
            *self.also
        )
        try:
            yield
        finally:
            self.statements.blocks[self.statement] = sound


FENCE_UP = "SET fence = timers.fence + 1"
FENCE_KEPT = "SET fence = timers.fence"
HOLDER_OF_LEASE = "AND timers.holder = done.holder"
FENCE_OF_LEASE = "AND timers.fence = done.fence"
NOT_EXPIRED = "AND (NOT $10::boolean OR timers.lease_until <= duly.now())"
LOST_ANYWAY = "AND ($10::boolean OR true)"

BUGS = [
    Bug(
        "a ticket needs no fence",
        lease.SQL,
        "lease_tasks",
        "AND timers.fence = ticket.fence",
        "AND timers.fence >= ticket.fence",
    ),
    Bug(
        "a held task is leased again",
        lease.SQL,
        "lease_tasks",
        "AND timers.holder IS NULL",
        "AND timers.fence + 1 > ticket.fence",
    ),
    Bug(
        "a lease before its time",
        lease.SQL,
        "lease_tasks",
        "AND timers.due_at <= duly.now()",
        "AND timers.due_at <= duly.now() + interval '1 second'",
    ),
    Bug("a lease keeps the fence", lease.SQL, "lease_tasks", FENCE_UP, FENCE_KEPT),
    Bug(
        "a heartbeat extends a foreign lease",
        lease.SQL,
        "extend_leases",
        "AND timers.holder = $4",
        "AND timers.holder IS NOT NULL AND $4::uuid IS NOT NULL",
    ),
    Bug("an end keeps the fence", settle.SQL, "settle_again", FENCE_UP, FENCE_KEPT),
    Bug(
        "a retry after a requested cancel",
        settle.SQL,
        "settle_again",
        "AND NOT timers.cancel_requested",
        "",
        ("confirmed = false", "confirmed = false, cancel_requested = false"),
    ),
    Bug("a retry is not charged", settle.SQL, "settle_again", "timers.attempt + done.charge", "0"),
    Bug("anybody completes", settle.SQL, "settle_completed", HOLDER_OF_LEASE, ""),
    Bug("an old lease completes", settle.SQL, "settle_completed", FENCE_OF_LEASE, ""),
    Bug("anybody fails a task", settle.SQL, "settle_final", HOLDER_OF_LEASE, ""),
    Bug("reaped without looking again", settle.SQL, "settle_again", NOT_EXPIRED, LOST_ANYWAY),
    Bug("ended without looking again", settle.SQL, "settle_final", NOT_EXPIRED, LOST_ANYWAY),
    Bug(
        "failed although cancelled",
        settle.SQL,
        "settle_final",
        "CASE WHEN timers.cancel_requested THEN 'CANCELLED' ELSE done.state END",
        "done.state",
    ),
    Bug("a lease is never looked at", reap.SQL, "find_expired", "AND timers.lane = 0", "AND false"),
    Bug(
        "cancel takes a running task away",
        control.SQL,
        "cancel_tasks",
        "AND timers.holder IS NULL",
        "",
    ),
    Bug("a move keeps the fence", control.SQL, "move_tasks", FENCE_UP, FENCE_KEPT),
    Bug("a key is taken over", submit.SQL, "claim_keys", "WHERE held.expires_at <= duly.now()", ""),
    Bug(
        "a letter is replayed twice",
        dead_letters.SQL,
        "replay_dead_letters",
        "AND dead_letters.replayed_as IS NULL",
        "",
    ),
    Bug(
        "a live task is purged",
        purge.SQL,
        "choose_ended",
        "AND NOT EXISTS (SELECT FROM duly.timers",
        "AND true OR EXISTS (SELECT FROM duly.timers",
    ),
]


def first_caught(postgres: Postgres, bug: Bug, first: int, seeds_max: int) -> Verdict | None:
    """The first verdict against the bug; None if it lived through all the seeds.

    A seed runs once in a database, so every bug gets seeds of its own.
    """
    with bug.planted():
        for seed in range(first, first + seeds_max):
            verdict = run_seed(postgres, seed)
            if verdict.violations:
                return verdict
    return None
