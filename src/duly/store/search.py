"""Search of tasks by what they say: id prefix, type, tags, payload, errors, worker.

Newest created first, in windows of a bounded number of tasks; no index is kept for it, because one
over payloads would cost every submit.
"""

from functools import partial
from typing import NamedTuple
from uuid import UUID

from duly.store.database import Session
from duly.store.dead_letters import END_OF_TIME, LAST_ID
from duly.store.read import (
    Filter,
    ListPage,
    ListWindow,
    instant_and_id,
    page_of,
    window_by_creation,
)
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
# Tasks that one statement, and one page, looks at; payloads are up to 64 KiB each.
SEARCH_WINDOW = 500
SEARCHED_MAX = 10_000


class TaskSearch(NamedTuple):
    """Everything that is given must match; texts without regard to case. `text` is in the id (at
    its beginning), the type, a tag, the payload or an error."""

    text: str | None = None
    type: str | None = None
    tag: tuple[str, str] | None = None
    worker: str | None = None
    error: str | None = None


async def search_tasks(
    session: Session, tenant: int, wanted: TaskSearch, cursor: str | None, limit: int
) -> ListPage:
    """A page: full, or the last, or as far as `SEARCHED_MAX` went."""
    holders = None
    if wanted.worker is not None:
        holders = await holders_of(session, tenant, wanted.worker)
    look = partial(look_for, wanted, holders)
    return await page_of(
        session, tenant, Filter(), cursor, limit, look, SEARCH_WINDOW, SEARCHED_MAX
    )


async def holders_of(session: Session, tenant: int, worker: str) -> list[UUID]:
    """Of a worker's name, or of the holder that tasks and attempts show."""
    rows = await session.fetch(SQL.find_holders, tenant, worker)
    holders = [row["holder"] for row in rows]
    try:
        return [*holders, UUID(worker)]
    except ValueError:
        return holders


async def look_for(
    wanted: TaskSearch,
    holders: list[UUID] | None,
    session: Session,
    tenant: int,
    _filter: Filter,
    cursor: str | None,
    size: int,
) -> ListWindow:
    before = instant_and_id(cursor) if cursor else (END_OF_TIME, LAST_ID)
    rows = await session.fetch(
        SQL.search_window,
        *(tenant, *before, lowered(wanted.text), wanted.type, *(wanted.tag or (None, None))),
        *(holders, lowered(wanted.error), size),
    )
    return window_by_creation(rows, size)


def lowered(text: str | None) -> str | None:
    return None if text is None else text.lower()
