"""Search endpoint: tasks by id prefix, type, tag, payload text, error, worker; newest first."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import Code
from duly.api.request import Answer, Call
from duly.api.tasks import TAG, TaskPage, tag_of
from duly.api.wire import Limit, TypeName, task_view
from duly.domain.access import PRODUCERS
from duly.store.search import TaskSearch, search_tasks

TEXT_CHARACTERS_MAX = 200

SearchText = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)]


class SearchQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`q` is in the id (its beginning), the type, a tag as `name:value`, the payload or an error,
    without regard to case. `worker` is a live worker's id or any holder."""

    q: SearchText | None = None
    type: TypeName | None = None
    tag: Annotated[str, Meta(pattern="^[^:]+:", max_length=400)] | None = None
    worker: SearchText | None = None
    error: SearchText | None = None
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class SearchRoutes:
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/search",
                summary="Search tasks, newest created first, up to 10,000 of them in one call",
                handler=self.search,
                kind=Kind.READ,
                access=PRODUCERS,
                query=SearchQuery,
                answers={200: TaskPage},
                refusals=(Code.INVALID_QUERY,),
                tag=TAG,
            )
        ]

    async def search(self, call: Call, query: SearchQuery) -> Answer:
        wanted = TaskSearch(query.q, query.type, tag_of(query.tag), query.worker, query.error)
        found = await search_tasks(call.session, call.tenant, wanted, query.cursor, query.limit)
        views = [task_view(task) for task in found.items]
        return Answer(200, TaskPage(views, found.next_cursor, searched=found.searched))
