"""Dropping a month against those who still write into it."""

from datetime import UTC, date, datetime, timedelta
from itertools import count
from random import Random
from typing import NamedTuple

from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.lease import lease_tasks
from duly.store.partitions import PlacementRange, drop_month, following_month, month_start
from duly.store.submit import Stored, Submitter
from duly.testing.clock import ManualClock
from tests.interleaving.calls import settle_as
from tests.interleaving.orders import Order, Race, play_every_order
from tests.interleaving.scenes import HOLDERS, LEASE_S, Scene, Stage, assert_invariants
from tests.interleaving.steps import CRASHED

CHECK_VIOLATION = "refused 23514"
CREATE = "SELECT duly.create_partition($1, $2)"
# Everything that has finished may go.
RETENTION_S = -3600.0


class OldMonth(NamedTuple):
    month: date
    scene: Scene


class OldMonths:
    """A month of long ago for each order, with a node that still places tasks into it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.numbers = count(0)

    async def create(self) -> OldMonth:
        number = next(self.numbers)
        month = date(1980 + number // 12, number % 12 + 1, 1)
        for parent in ("attempts", "tasks"):
            await self.stage.owner.execute(CREATE, parent, month)
        return OldMonth(month, await self.stage.empty())

    async def submit_late(self, database: Database, old: OldMonth) -> str:
        """A node whose clock and whose idea of the partitions are those of long ago."""
        first = month_start(old.month)
        clock = ManualClock(first + timedelta(days=3))
        node = Submitter(database, Environment(clock=clock, random=Random(old.scene.tenant)))
        node.range = PlacementRange(first, month_start(following_month(old.month)))
        node.range_until = float("inf")
        task = Submission(tenant=old.scene.tenant, type="email", url="https://example.org/")
        (answer,) = await node.submit([task])
        assert isinstance(answer, Stored)
        old.scene.id = answer.id
        return "stored"

    async def run(self, old: OldMonth) -> None:
        await self.submit_late(self.stage.database, old)
        tickets = [Ticket(old.scene.id, 0)]
        leases = await lease_tasks(
            self.stage.database, self.stage.environment, HOLDERS["first"], tickets, LEASE_S
        )
        old.scene.grant(leases)
        old.scene.fence = 1

    async def exists(self, old: OldMonth) -> bool:
        name = f"duly.tasks_{old.month:%Y_%m}"
        found: bool = await self.stage.owner.fetchval("SELECT to_regclass($1) IS NOT NULL", name)
        return found

    async def forget(self, old: OldMonth) -> None:
        """So that later orders do not plan over a heap of old months."""
        if await self.exists(old):
            await self.stage.owner.execute(
                f"DROP TABLE duly.tasks_{old.month:%Y_%m}, duly.attempts_{old.month:%Y_%m}"
            )


async def drop(database: Database, old: OldMonth) -> str:
    return await drop_month(database, old.month, RETENTION_S) or "dropped"


async def test_a_late_submit_and_a_drop_never_both_succeed(stage: Stage, race: Race) -> None:
    """A slow node is told that its task is stored, in a month that is being dropped."""
    months = OldMonths(stage)
    seen: set[tuple[str, str]] = set()

    async def play(order: Order) -> None:
        old = await months.create()
        answers = await race.run(
            order,
            lambda database: months.submit_late(database, old),
            lambda database: drop(database, old),
        )
        facts = await stage.facts(old.scene)
        assert_invariants(old.scene, facts)
        assert len(facts.timers) == len(facts.tasks) == (answers[0] == "stored")
        assert await months.exists(old) == (answers[1] != "dropped")
        await months.forget(old)
        if CRASHED not in answers:
            seen.add(answers)

    await play_every_order(play)
    assert seen == {("stored", "live"), (CHECK_VIOLATION, "dropped")}


async def test_the_last_end_in_a_month_is_recorded_before_it_goes(stage: Stage, race: Race) -> None:
    """A month is dropped under a task that still runs, and its end has nowhere to go."""
    months = OldMonths(stage)
    complete = settle_as(Outcome.COMPLETED)
    seen: set[tuple[str, str]] = set()

    async def play(order: Order) -> None:
        old = await months.create()
        await months.run(old)
        answers = await race.run(
            order,
            lambda database: complete(database, old.scene),
            lambda database: drop(database, old),
        )
        facts = await stage.facts(old.scene)
        if answers[1] == "dropped":
            assert (facts.tasks, facts.timers) == ([], [])
        else:
            assert_invariants(old.scene, facts)
        await months.forget(old)
        if CRASHED not in answers:
            seen.add(answers)

    await play_every_order(play)
    assert seen == {("settled COMPLETED", "live"), ("settled COMPLETED", "dropped")}


async def test_this_month_is_never_dropped(stage: Stage) -> None:
    """A wrong retention must not take what is being written now."""
    now: datetime = await stage.owner.fetchval("SELECT duly.now()")
    month = now.astimezone(UTC).date().replace(day=1)
    assert await drop_month(stage.database, month, RETENTION_S) == "current"
