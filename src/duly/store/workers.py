"""Worker processes of users, with their last contact."""

from collections.abc import Sequence
from uuid import UUID

from duly.store.database import Database
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def see_worker(
    database: Database,
    tenant: int,
    worker_id: str,
    holder: UUID,
    pools: Sequence[str],
    alive_s: float,
) -> None:
    await database.fetch(SQL.see_worker, tenant, worker_id, holder, list(pools), alive_s)


async def touch_worker(database: Database, tenant: int, worker_id: str, alive_s: float) -> None:
    await database.fetch(SQL.touch_worker, tenant, worker_id, alive_s)


async def deregister_worker(database: Database, tenant: int, worker_id: str) -> None:
    """No error if it was never seen: what it asks for is so already."""
    await database.fetch(SQL.deregister_worker, tenant, worker_id)


async def doubt_worker(database: Database, tenant: int, worker_id: str, alive_s: float) -> None:
    await database.fetch(SQL.doubt_worker, tenant, worker_id, alive_s)
