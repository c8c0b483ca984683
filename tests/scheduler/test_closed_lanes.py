"""A lane that stays full is told once, and once more when it opens."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from duly.domain.lanes import Lane, queue_of
from duly.domain.task import HIGH, LOW, NORMAL, WEBHOOK_POOL
from duly.scheduler.closed_lanes import ClosedLanes
from duly.scheduler.ready_state import ReadyState
from duly.store.database import Database
from duly.store.pools import PoolNumbers
from duly.store.tenants import Tenant, create_tenant

Told = list[tuple[str, str, str, str]]


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


class Stage:
    def __init__(self, database: Database, tenant: Tenant, lane: Lane, lines: list[Any]) -> None:
        self.ready_state = ReadyState(0.0)
        self.lanes = ClosedLanes(database, self.ready_state, 400)
        self.tenant, self.lane, self.lines = tenant, lane, lines

    async def look(self) -> Told:
        """What this look told."""
        self.lines.clear()
        await self.lanes.look({self.tenant.id: self.tenant})
        return [(e["event"].split(":")[0], e["tenant"], e["pool"], e["band"]) for e in self.lines]


@pytest.fixture
async def stage(database: Database, lines: list[Any]) -> Stage:
    tenant = await create_tenant(database, "acme")
    assert tenant is not None
    pair = (tenant.id, "billing")
    number = (await PoolNumbers(database).resolve([pair]))[pair]
    return Stage(database, tenant, Lane(tenant.id, number, NORMAL), lines)


async def test_a_lane_that_stays_full_is_told_once_and_again_when_it_opens(stage: Stage) -> None:
    """A line at every tick hides everything else; none at all leaves a stopped pool unexplained."""
    stage.ready_state.close(stage.lane)
    assert await stage.look() == []
    assert await stage.look() == [("lane closed", "acme", "billing", "normal")]
    assert await stage.look() == []
    stage.ready_state.open(stage.lane)
    assert await stage.look() == [("lane open again", "acme", "billing", "normal")]
    assert await stage.look() == []


async def test_a_lane_that_opens_between_two_looks_is_no_news(stage: Stage) -> None:
    """Under load lanes fill and open many times a second."""
    for _ in range(5):
        stage.ready_state.close(stage.lane)
        assert await stage.look() == []
        stage.ready_state.open(stage.lane)


async def test_a_told_lane_that_opened_and_is_full_again_is_told_again(stage: Stage) -> None:
    """Its consumers came and went meanwhile."""
    stage.ready_state.close(stage.lane)
    await stage.look()
    await stage.look()
    stage.ready_state.open(stage.lane)
    stage.ready_state.close(stage.lane)
    assert [event for event, *_ in await stage.look()] == ["lane open again"]
    assert [event for event, *_ in await stage.look()] == ["lane closed"]


async def test_a_lane_of_webhooks_is_told_by_that_name(stage: Stage) -> None:
    """All tenants share it, and it has no pool of anybody's."""
    for band in (HIGH, LOW):
        stage.ready_state.close(queue_of(Lane(stage.tenant.id, WEBHOOK_POOL, band)))
    await stage.look()
    assert {told[2:] for told in await stage.look()} == {("webhooks", "high"), ("webhooks", "low")}
