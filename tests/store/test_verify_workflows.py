"""`duly verify` on workflows: clean where duly made them, and every damage by its name (I7)."""

import asyncpg
import pytest

from duly.domain.states import Outcome
from duly.domain.workflow import OnFailure, WaitRule
from duly.store.verify import verify
from duly.verify.report import Verification
from tests.store.test_workflows import Flow, begin
from tests.store.world import World

KEPT_MAX = 100
DAMAGES = {
    "released too early": (
        """UPDATE duly.timers SET parents_pending = NULL, due_at = now(), started_at = now()
            WHERE id = $1""",
        "join",
        "started, and its rule all_completed is not met",
    ),
    "stranded": (
        "UPDATE duly.timers SET parents_pending = 2 WHERE id = $1",
        "join",
        "waits for 2 parents, and 1 are live",
    ),
    "a parent that vanished": (
        "DELETE FROM duly.timers WHERE id = $1",
        "b",
        "the workflow counts",
    ),
    "skipped for nothing": (
        """WITH gone AS (DELETE FROM duly.timers WHERE id = $1 RETURNING *)
           INSERT INTO duly.attempts (shard, charged, fence, tenant, id, ended_at, outcome, state)
           SELECT shard, 0, 1, tenant, id, now(), 'skipped', 'SKIPPED' FROM gone""",
        "join",
        "was skipped, and its rule all_completed can be met",
    ),
}


async def half_done(world: World) -> Flow:
    flow = await begin(world, {"a": (), "b": (), "join": ("a", "b"), "late": ("join",)})
    await flow.end("a")
    return flow


async def verified(engine_url: str) -> Verification:
    verification = Verification(KEPT_MAX)
    await verify(engine_url, verification)
    return verification


async def test_what_duly_made_is_clean(world: World, engine_url: str) -> None:
    """A checker that cries wolf is switched off."""
    await half_done(world)
    done = await begin(world, {"a": (), "b": ("a",)}, idempotency_key="k", asked=b"1")
    await done.end("a")
    await done.end("b")
    rules = {"c": WaitRule.ANY_FAILED, "d": WaitRule.ALL_DONE}
    failed = await begin(world, {"a": (), "b": ("a",), "c": ("a",), "d": ("b",)}, rules=rules)
    await failed.end("a", Outcome.FAILED)
    stopped = await begin(world, {"a": (), "b": (), "c": ("b",)}, on_failure=OnFailure.STOP)
    await stopped.end("a", Outcome.FAILED)
    found = await verified(engine_url)
    assert [each for each in found.violations if each.invariant in ("I1", "I7", "I8")] == []
    assert found.rows["workflows"] == 4


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damage_is_named(
    world: World, engine_url: str, owner: asyncpg.Connection, name: str
) -> None:
    """A join that waits for ever looks like one that waits (I7)."""
    statement, node, words = DAMAGES[name]
    flow = await half_done(world)
    assert (await verified(engine_url)).counts["I7"] == 0
    await owner.execute(statement, flow.ids[node])
    found = [each for each in (await verified(engine_url)).violations if each.invariant == "I7"]
    assert any(words in each.problem for each in found), found
