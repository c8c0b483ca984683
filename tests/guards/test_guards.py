"""Teeth: every scenario holds with the statements as they are, and fails without each guard."""

import pytest

from duly.domain.errors import StatementRefused
from tests.guards.scenarios import Scenario
from tests.interleaving.orders import Race
from tests.interleaving.scenes import Stage
from tests.teeth.guard_bugs import TEETH
from tests.teeth.planted import Bug

# The constraints of the tables may notice a missing guard before the scenario does.
CONSTRAINT_CODES = "23"
CLAIMS = [
    pytest.param(scenario, id=f"{invariant} {scenario.__name__}")
    for invariant, scenario, _ in TEETH
]
MUTATIONS = [
    pytest.param(scenario, mutant, id=f"{invariant} {scenario.__name__}: {mutant.name}")
    for invariant, scenario, mutants in TEETH
    for mutant in mutants
]


async def act(scenario: Scenario, stage: Stage, race: Race) -> None:
    try:
        await scenario(stage, race)
    except StatementRefused as refusal:
        if not str(refusal.facts["code"]).startswith(CONSTRAINT_CODES):
            raise
        raise AssertionError(f"a constraint noticed: {refusal}") from refusal


@pytest.mark.parametrize("scenario", CLAIMS)
async def test_the_invariant_holds(scenario: Scenario, stage: Stage, race: Race) -> None:
    """The invariants of the design, each acted out with the statements as they are."""
    await act(scenario, stage, race)


@pytest.mark.parametrize(("scenario", "mutant"), MUTATIONS)
async def test_the_invariant_falls_without_its_guard(
    scenario: Scenario, mutant: Bug, stage: Stage, race: Race
) -> None:
    """A guard that can go unnoticed will go one day, and so will what it guarded."""
    with mutant.planted(), pytest.raises(AssertionError):
        await act(scenario, stage, race)


def test_every_invariant_of_this_part_has_teeth() -> None:
    """A list that forgets an invariant proves nothing about it."""
    owed = {"I1", "I2", "I3", "I4", "I5", "I7", "I8", "I12", "I13"}
    assert {invariant for invariant, _, mutants in TEETH if mutants} == owed
