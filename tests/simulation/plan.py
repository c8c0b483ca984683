"""What a seed decides before anything runs: who takes part, what may break, how small things are.

A swarm: each seed switches a random half of the faults and actors off, because a fault that always
happens hides the bugs that need its absence.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random

TENANTS_MAX = 2
KEY_NAMES = ("key-0", "key-1", "key-2")


class FaultKind(StrEnum):
    """Everything that may break."""

    ERROR_BEFORE = "error before the statement"
    ANSWER_LOST = "answer lost after the commit"
    CONFLICT = "statement rolled back for another"
    OUTAGE = "database away"
    LATENCY = "slow database"
    CRASH = "node killed at a crash point"
    KILL = "node killed anywhere"
    PAUSE = "handler paused past its lease"
    BEAT_LATE = "heartbeat later than the lease"
    NODE_CLOCK = "clock of a node wrong"
    DATABASE_CLOCK = "clock of the database stepped"
    TICKET_LOST = "ticket lost"
    TICKET_REPEATED = "ticket repeated"
    TICKET_STALE = "ticket out of an old drawer"
    REORDER = "tickets reordered"
    SETTLE_REPEATED = "settlement repeated"
    FREEZE = "node frozen past its leases"
    STOP = "node stopped in order"
    RING_LOST = "ring lost"
    TICKET_LATE = "ticket delayed"
    QUEUE_WIPED = "ready queue wiped"


# What only whole nodes with their own scheduler can suffer.
OF_FLEETS = {
    FaultKind.FREEZE,
    FaultKind.STOP,
    FaultKind.RING_LOST,
    FaultKind.TICKET_LATE,
    FaultKind.QUEUE_WIPED,
}
# Asked for once in a lease and not at every statement, so they strike more often when asked.
SELDOM_ASKED = {
    FaultKind.PAUSE,
    FaultKind.BEAT_LATE,
    FaultKind.TICKET_REPEATED,
    FaultKind.TICKET_STALE,
    FaultKind.SETTLE_REPEATED,
}


class Actor(StrEnum):
    """Who takes part besides those who submit, load, lease, settle and reap."""

    BULK = "bulk submitter"
    KEYED = "submitter with keys"
    CANCELLER = "canceller"
    MOVER = "mover"
    REPLAYER = "replayer of dead letters"
    PURGER = "purger"
    READER = "reader"
    INTRUDER = "intruder with foreign leases"
    EXPIRER = "expirer of late starts"
    KEEPER = "keeper of schedules"
    HURRIED = "submitter in a hurry"
    WORKFLOWS = "starter of workflows"


# Who needs a role that fires schedules or goes on with workflows, or a consumer that waits: a
# fleet has them.
ACTORS_OF_FLEETS = {Actor.KEEPER, Actor.HURRIED, Actor.WORKFLOWS}


@dataclass(frozen=True)
class Plan:
    seed: int
    tenants: tuple[int, ...]
    start: datetime
    safety_s: float
    tick_s: float
    lease_s: float
    timeout_s: float
    handler_s: float
    delay_s: float
    backoff_s: float
    latency_s: float
    nodes: int
    batch: int
    page: int
    max_attempts: int
    submissions: int
    rates: dict[FaultKind, float]
    actors: frozenset[Actor]
    outcome_weights: tuple[int, ...]
    # How many tasks with the same concurrency key may be in flight; a key that is not here: one.
    key_limits: dict[str, int] = field(default_factory=dict)
    has_webhooks: bool = False
    # Of a shrunk case: the only faults that strike, by their number; None in a whole seed.
    strikes: frozenset[int] | None = None

    def has(self, kind: FaultKind) -> bool:
        return kind in self.rates


def make_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    lease_s = 0.05 * 400 ** random.random()
    tick_s = max(random.uniform(0.5, 3.0), lease_s / 4)
    kinds = [k for k in FaultKind if k not in OF_FLEETS and random.random() < 0.5]
    # Near the end of a month, the ids of one seed lie in two partitions.
    start = random.choice([datetime(2026, 1, 15, 12, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)])
    return Plan(
        seed=seed,
        tenants=tuple(1 + seed * TENANTS_MAX + n for n in range(random.randint(1, TENANTS_MAX))),
        start=start - timedelta(seconds=random.uniform(0, 20)),
        safety_s=tick_s * random.randint(6, 18),
        tick_s=tick_s,
        lease_s=lease_s,
        timeout_s=lease_s * random.choice([1.2, 3.0, 50.0]) + 0.1,
        handler_s=lease_s * random.choice([0.1, 0.5, 1.5, 4.0]),
        delay_s=random.choice([0.0, 2.0, 15.0]),
        backoff_s=random.choice([0.0, 0.3, 4.0]),
        latency_s=lease_s * random.choice([0.05, 0.3, 0.8]),
        nodes=random.randint(1, 3),
        batch=random.randint(1, 5),
        page=random.choice([1, 2, 2, 5]),
        max_attempts=random.randint(1, 4),
        submissions=random.randint(4, 14),
        rates={
            kind: random.choice([0.1, 0.3, 0.5] if kind in SELDOM_ASKED else [0.02, 0.05, 0.15])
            for kind in kinds
        },
        actors=frozenset(
            actor for actor in Actor if actor not in ACTORS_OF_FLEETS and random.random() < 0.5
        ),
        outcome_weights=random.choice([(8, 2, 1, 1, 1, 1), (1, 8, 0, 0, 1, 0), (2, 2, 1, 2, 4, 4)]),
    )
