"""Connections that only heartbeats use: a pool that others have used up costs no lease."""

import asyncio
from uuid import UUID

import pytest

from duly.app import make_parts
from duly.environment import Environment
from duly.store.database import Database
from duly.store.lease import Beat, BeatStatus
from duly.telemetry import Metrics

pytestmark = pytest.mark.slow
PATIENCE_S = 20.0


async def test_a_workers_heartbeat_is_answered_while_every_connection_is_busy(
    engine_url: str,
) -> None:
    """Slow queries of others would make every worker lose what it holds, all at once."""
    busy = await Database.open(engine_url, 1)
    beating = await Database.open(engine_url, 1)
    parts = make_parts(busy, Environment(), Metrics(), is_alone=True, beating=beating)
    try:
        async with busy.transaction(), asyncio.timeout(PATIENCE_S):
            (answer,) = await parts.workers.heartbeat(1, "w1", [Beat(UUID(int=7 << 76), 1)], 15.0)
    finally:
        await beating.close()
        await busy.close()
    assert answer.status is BeatStatus.STALE
