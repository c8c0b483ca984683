"""The claim about a pair of calls: whatever the order of their statements, the answers and the
tables are those of one call after the other.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.interleaving.calls import NOTHING, SceneCall
from tests.interleaving.orders import Order, Race, play_every_order
from tests.interleaving.scenes import Facts, Scene, Stage, assert_invariants
from tests.interleaving.steps import CRASHED

Setting = Callable[[Stage], Awaitable[Scene]]
# Both answers, and what the tables say.
Outcome = tuple[str, str, str]


@dataclass(frozen=True)
class Pair:
    """`answers` are all the pairs of answers that must be seen when neither side dies."""

    name: str
    setting: Setting
    left: SceneCall
    right: SceneCall
    answers: set[tuple[str, str]]
    # A pass that comes again may leave what moved under its hands to its next time.
    left_may_pass: bool = False
    right_may_pass: bool = False
    # Some pairs share no row that both of them write.
    must_wait: bool = True


async def assert_pair(pair: Pair, stage: Stage, race: Race) -> None:
    seen, waits = await assert_serial(pair, stage, race)
    assert seen == pair.answers
    assert waits > 0 or not pair.must_wait, "the two never met at a row"


async def assert_serial(pair: Pair, stage: Stage, race: Race) -> tuple[set[tuple[str, str]], int]:
    """Every order gives what a serial order gives. The answers that were seen, and the waits."""
    allowed = await serial_outcomes(pair, stage)
    seen: set[tuple[str, str]] = set()
    waits = 0

    async def play(order: Order) -> None:
        nonlocal waits
        scene = await pair.setting(stage)
        left, right = await race.run(
            order,
            lambda database: pair.left(database, scene),
            lambda database: pair.right(database, scene),
        )
        facts = await assert_true(stage, scene)
        found = (left, right, facts.told(scene))
        assert found in allowed, f"no serial order gives {found}, only {sorted(allowed)}"
        waits += order.waits
        if CRASHED not in (left, right):
            seen.add((left, right))

    orders = await play_every_order(play)
    assert orders > 1
    return seen, waits


async def assert_true(stage: Stage, scene: Scene) -> Facts:
    facts = await stage.facts(scene)
    assert_invariants(scene, facts)
    return facts


async def serial_outcomes(pair: Pair, stage: Stage) -> set[Outcome]:
    """One after the other both ways, one alone because the other died, and both dead."""
    outcomes: set[Outcome] = set()
    for sides in ("lr", "rl", "l", "r", ""):
        scene = await pair.setting(stage)
        answers = {"l": CRASHED, "r": CRASHED}
        for side in sides:
            call = pair.left if side == "l" else pair.right
            answers[side] = await call(stage.database, scene)
        told = (await assert_true(stage, scene)).told(scene)
        outcomes.add((answers["l"], answers["r"], told))
        if pair.left_may_pass and sides in ("r", ""):
            outcomes.add((NOTHING, answers["r"], told))
        if pair.right_may_pass and sides in ("l", ""):
            outcomes.add((answers["l"], NOTHING, told))
    return outcomes
