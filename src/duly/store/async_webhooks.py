"""Asynchronous webhooks: the receiver accepts a task and settles it later.

| event | what happens |
|---|---|
| the lease was lost meanwhile | the fence rose: nothing, and the receiver's settlement is STALE |
| the receiver settles before we recorded it | its call records it; ours is a repeat |
| the receiver never settles | the attempt's time limit ends the lease, as a timeout |
"""

from collections.abc import Sequence
from uuid import UUID

from duly.store.database import Database
from duly.store.lease import ACCEPTED_ASYNC, Beat, ticket_columns
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)


async def accept_async(database: Database, leases: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """The leases, by (id, fence), that the receiver now holds."""
    beats = [Beat(task_id, fence) for task_id, fence in leases]
    rows = await database.fetch(SQL.accept_async, *ticket_columns(beats), ACCEPTED_ASYNC)
    return {row["id"] for row in rows}
