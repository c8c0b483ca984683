"""Items of a map over pages, handed over by the handler that runs the node before it."""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from duly.api.admission import WorkSlicer
from duly.api.asgi import Endpoint, Kind
from duly.api.list_body import decode_values
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.worker_protocol import Fence
from duly.api.workflows import TAG, workflow_id_of
from duly.domain import limits
from duly.domain.access import PRODUCERS, WORKERS
from duly.domain.ids import workflow_of
from duly.domain.limits import Problem
from duly.domain.map_plan import ITEMS_MAX, PAGE_ITEMS_MAX
from duly.events import TaskEvents
from duly.store.control import publish_released
from duly.store.database import Database
from duly.store.finish import Released
from duly.store.workflow_handovers import HandOver, ItemPage, hand_over_page

BODY_BYTES_MAX = 1024 * 1024


class ItemsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of items, from the task that runs with this fence. `first`: the place of the first in
    the map; what is there already stays, so that an attempt can say again what one before said."""

    task: UUID
    fence: Fence
    first: Annotated[int, Meta(ge=0, le=ITEMS_MAX)]
    items: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=PAGE_ITEMS_MAX)]


class HandedOverView(msgspec.Struct, frozen=True):
    """`handed`: how many items the map has now: the next `first`."""

    handed: int


async def decode_items(_call: Call, raw: bytes, pace: WorkSlicer) -> ItemsRequest:
    return await decode_values(raw, ItemsRequest, "items", PAGE_ITEMS_MAX, pace)


@dataclass(frozen=True)
class MapItemRoutes:
    database: Database
    events: TaskEvents

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "POST",
                "/v1/workflows/{id}/nodes/{node}/items",
                "Hand over items of a map, while the node before it runs",
                self.hand_over,
                Kind.HOT,
                access=PRODUCERS | WORKERS,
                body=ItemsRequest,
                answers={200: HandedOverView},
                refusals=(Code.NOT_FOUND, Code.INVALID, Code.STALE, Code.ALREADY_TERMINAL),
                body_bytes_max=BODY_BYTES_MAX,
                decode=decode_items,
                is_for_suspended=True,
                tag=TAG,
            )
        ]

    async def hand_over(self, call: Call, asked: ItemsRequest) -> Answer:
        workflow_id, name = workflow_id_of(call), call.params["node"]
        if workflow_of(asked.task) != workflow_id:
            raise invalid([Problem("/task", "is no node of this workflow")])
        items = [bytes(item).decode() for item in asked.items]
        problems = [
            Problem(f"/items/{place}", reason)
            for place, item in enumerate(items)
            if (reason := limits.bytes_reason(item, limits.PAYLOAD_BYTES_MAX))
        ]
        if problems:
            raise invalid(problems)
        page = ItemPage(call.tenant, asked.task, asked.fence, name, asked.first, items)
        released = Released()
        taken = await hand_over_page(self.database, page, released)
        publish_released(self.events, call.tenant, released)
        match taken.answer:
            case HandOver.TAKEN:
                return Answer(200, HandedOverView(taken.handed))
            case HandOver.UNKNOWN:
                raise not_found("map over pages", name)
            case HandOver.GAP:
                raise invalid([Problem("/first", f"leaves out items: {taken.handed} are there")])
            case HandOver.STALE:
                raise ApiProblem(Code.STALE, "the lease with this fence has ended")
            case HandOver.OVER:
                detail = f"the map takes no more items: {taken.detail}"
                raise ApiProblem(Code.ALREADY_TERMINAL, detail)
