"""`duly verify` on pauses, signals and resumes: clean where duly made them, and every damage by its
name (I7)."""

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from duly.store.workflow_pauses import pause_workflow
from tests.store.test_verify_workflows import half_done, verified
from tests.store.test_workflow_resumes import failed_diamond, resume
from tests.store.test_workflow_signals import approval, send
from tests.store.world import TENANT, World


async def paused(world: World) -> None:
    flow = await half_done(world)
    await pause_workflow(world.database, TENANT, flow.id, "key someone")


async def resumed(world: World) -> None:
    await resume(await failed_diamond(world))


async def approved(world: World) -> None:
    flow = await approval(world, timeout_s=60.0)
    await send(flow)
    await send(flow)


DAMAGES: dict[str, tuple[Callable[[World], Awaitable[None]], str, str]] = {
    "due in a pause": (
        paused,
        """UPDATE duly.timers SET due_at = held_due_at, held_due_at = NULL
            WHERE held_due_at IS NOT NULL""",
        "is paused, and 1 of its nodes are due",
    ),
    "held without a pause": (
        paused,
        "UPDATE duly.workflows SET paused_at = NULL, paused_by = NULL",
        "1 of its nodes are held, and it is not paused",
    ),
    "a signal that is given again": (
        approved,
        """UPDATE duly.workflow_signals SET consumed_by = 1, consumed_at = received_at
            WHERE consumed_by IS NULL""",
        "was given 2 signals",
    ),
    "a signal that ended nothing": (
        approved,
        "UPDATE duly.workflow_signals SET consumed_by = 2 WHERE consumed_by = 1",
        "gave a signal to node 2, which is live",
    ),
    "reused, and ran again": (
        resumed,
        """INSERT INTO duly.attempts (shard, charged, fence, tenant, id, ended_at, outcome, state)
           SELECT shard, 0, 1, tenant, id, now(), 'completed', 'COMPLETED'
             FROM duly.workflow_nodes WHERE source IS NOT NULL LIMIT 1""",
        "reuses an earlier run, and ran again",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_step_is_named(
    world: World, engine_url: str, owner: asyncpg.Connection, name: str
) -> None:
    """What is held for ever looks like what is paused; what was approved twice, like once."""
    begin, statement, words = DAMAGES[name]
    await begin(world)
    assert (await verified(engine_url)).counts["I7"] == 0
    await owner.execute(statement)
    found = [each for each in (await verified(engine_url)).violations if each.invariant == "I7"]
    assert any(words in each.problem for each in found), found
