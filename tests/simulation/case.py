"""One seed, perhaps made smaller: what is left out of it, and how it is kept in a file.

A kept case failed once. It is run by the suite for ever after.
"""

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from tests.simulation.database import Postgres
from tests.simulation.fleet_plan import FleetPlan, make_fleet_plan
from tests.simulation.fleet_run import run_fleet_plan
from tests.simulation.plan import Plan, make_plan
from tests.simulation.run import Verdict, run_plan

KEPT = Path(__file__).parent / "kept"


class Kind(StrEnum):
    """What a seed runs: actors on the store, or a fleet of nodes with the real scheduler."""

    STORE = "store"
    FLEET = "fleet"


@dataclass(frozen=True)
class Case:
    kind: Kind
    seed: int
    # Kinds of faults and actors that take no part.
    without: tuple[str, ...] = ()
    submissions: int | None = None
    # The only faults that strike, by their number; None for all of them.
    strikes: tuple[int, ...] | None = None
    said: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


def plan_of(case: Case) -> Plan:
    plan: Plan = make_fleet_plan(case.seed) if case.kind is Kind.FLEET else make_plan(case.seed)
    return replace(
        plan,
        rates={kind: rate for kind, rate in plan.rates.items() if kind not in case.without},
        actors=frozenset(actor for actor in plan.actors if actor not in case.without),
        submissions=plan.submissions if case.submissions is None else case.submissions,
        strikes=None if case.strikes is None else frozenset(case.strikes),
    )


def run_case(postgres: Postgres, case: Case) -> Verdict:
    """In a database that has not seen this seed."""
    plan = plan_of(case)
    if isinstance(plan, FleetPlan):
        return run_fleet_plan(postgres, plan)
    return run_plan(postgres, plan)


def keep(case: Case, folder: Path = KEPT) -> Path:
    path = folder / f"{case.name}.json"
    path.write_text(json.dumps(asdict(case), indent=2) + "\n")
    return path


def read_case(path: Path) -> Case:
    facts = json.loads(path.read_text())
    return Case(
        kind=Kind(facts["kind"]),
        seed=facts["seed"],
        without=tuple(facts["without"]),
        submissions=facts["submissions"],
        strikes=None if facts["strikes"] is None else tuple(facts["strikes"]),
        said=facts["said"],
    )


def kept_cases(folder: Path = KEPT) -> list[Case]:
    return [read_case(path) for path in sorted(folder.glob("*.json"))]
