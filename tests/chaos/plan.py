"""What breaks when: a list made from a seed, before anything runs. Nothing here breaks anything.

Rounds of 55 s: a pause past every lease, and among it kills, network and connection faults; then,
with nothing else broken, a restart of PostgreSQL; then a kill of a scheduler and of a worker. What
is alone is measured.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tests.chaos.link import LinkFault

ROUND_S = 55.0
# Beyond every lease there is: 15 s for tasks, 10 s for slots.
PAUSE_S = (17.0, 19.0)
RESTART_AT_S = 23.0
# Long enough that everybody waits between two tries as long as it ever waits.
DOWN_S_MAX = 8.0
MEASURED_KILLS_AT_S = 39.0
MEMBERS = ("api", "scheduler-1", "scheduler-2", "executor", "worker-1", "worker-2")
SCHEDULERS = ("scheduler-1", "scheduler-2")
WORKERS = ("worker-1", "worker-2")
LINKS = (
    "api>postgres",
    "scheduler-1>postgres",
    "scheduler-2>postgres",
    "executor>postgres",
    "worker-1>api",
    "worker-2>api",
    "client>api",
    "executor>receiver",
)
KILLS_PER_ROUND = 4
LINK_FAULTS_PER_ROUND = 5


class Kind(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    CRASH_SERVER = "crash-postgres"
    RESTART_SERVER = "restart-postgres"
    END_BACKENDS = "end-backends"
    EXHAUST = "exhaust-connections"
    PIN_XMIN = "pin-xmin"


@dataclass(frozen=True, slots=True)
class Planned:
    """`is_alone`: nothing else is broken meanwhile, so that its recovery can be measured."""

    at_s: float
    kind: Kind | LinkFault
    target: str
    for_s: float = 0.0
    is_alone: bool = False


def make_plan(seed: int, seconds: float) -> list[Planned]:
    random = Random(seed)
    plan: list[Planned] = []
    start_s, number = 0.0, 0
    while start_s < seconds:
        plan += shifted(make_round(random, number), start_s)
        start_s, number = start_s + ROUND_S, number + 1
    return sorted(
        (fault for fault in plan if fault.at_s + fault.for_s <= seconds), key=lambda f: f.at_s
    )


def make_round(random: Random, number: int) -> list[Planned]:
    paused = random.choice(MEMBERS)
    others = [member for member in MEMBERS if member != paused]
    kind = (Kind.EXHAUST, Kind.PIN_XMIN)[number % 2]
    server = (Kind.CRASH_SERVER, Kind.RESTART_SERVER)[number % 2]
    return [
        Planned(random.uniform(0.5, 2.0), Kind.PAUSE, paused, random.uniform(*PAUSE_S)),
        *(
            Planned(random.uniform(1.0, 18.0), Kind.KILL, random.choice(others))
            for _ in range(KILLS_PER_ROUND)
        ),
        *(link_fault(random) for _ in range(LINK_FAULTS_PER_ROUND)),
        Planned(random.uniform(3.0, 16.0), Kind.END_BACKENDS, "postgres"),
        Planned(random.uniform(3.0, 14.0), kind, "postgres", random.uniform(3.0, 6.0)),
        Planned(RESTART_AT_S, server, "postgres", random.uniform(0.0, DOWN_S_MAX), is_alone=True),
        Planned(MEASURED_KILLS_AT_S, Kind.KILL, random.choice(SCHEDULERS), is_alone=True),
        Planned(MEASURED_KILLS_AT_S, Kind.KILL, random.choice(WORKERS), is_alone=True),
    ]


def link_fault(random: Random) -> Planned:
    fault = random.choice(list(LinkFault))
    at_s = random.uniform(0.5, 10.0)
    return Planned(at_s, fault, random.choice(LINKS), random.uniform(1.0, 20.0 - at_s))


def shifted(plan: list[Planned], by_s: float) -> list[Planned]:
    return [
        Planned(fault.at_s + by_s, fault.kind, fault.target, fault.for_s, fault.is_alone)
        for fault in plan
    ]
