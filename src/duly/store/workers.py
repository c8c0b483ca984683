"""The users' own worker processes, as they were last heard of."""

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
