"""Connections that only heartbeats use: a pool that others have used up costs no lease."""

import asyncio
from uuid import UUID

import pytest

from duly.api.credentials import Authenticator
from duly.composition import make_parts
from duly.environment import Environment
from duly.store.database import Database
from duly.store.keys import NewKey, create_key
from duly.store.lease import Beat, HeartbeatStatus
from duly.store.tenants import TenantLimits, create_tenant
from duly.telemetry import Metrics

pytestmark = pytest.mark.slow
PATIENCE_S = 20.0


async def test_a_workers_heartbeat_is_answered_while_every_connection_is_busy(
    engine_url: str,
) -> None:
    """Slow queries of others would make every worker lose what it holds, all at once."""
    busy = await Database.open(engine_url, 1)
    heartbeat_database = await Database.open(engine_url, 1)
    parts = make_parts(
        busy, Environment(), Metrics(), is_alone=True, heartbeat_database=heartbeat_database
    )
    try:
        async with busy.transaction(), asyncio.timeout(PATIENCE_S):
            (answer,) = await parts.workers.heartbeat(1, "w1", [Beat(UUID(int=7 << 76), 1)], 15.0)
    finally:
        await heartbeat_database.close()
        await busy.close()
    assert answer.status is HeartbeatStatus.STALE


async def test_a_worker_is_known_while_every_connection_is_busy(engine_url: str) -> None:
    """Its key would be looked up behind those who wait, and its heartbeat with it."""
    busy = await Database.open(engine_url, 1)
    reserved = await Database.open(engine_url, 1)
    authenticator = Authenticator(busy, Environment(), None, reserved)
    tenant = await create_tenant(busy, "busy", TenantLimits())
    assert tenant is not None
    key = NewKey("worker", "worker", reach="tenant")
    made = await create_key(busy, Environment(), tenant.id, key, "test")
    assert made is not None
    try:
        async with busy.transaction(), asyncio.timeout(PATIENCE_S):
            credential = await authenticator.keyed(made[1])
    finally:
        await reserved.close()
        await busy.close()
    assert credential.tenant == tenant.id
