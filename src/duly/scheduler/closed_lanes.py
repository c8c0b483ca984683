"""Log of lanes that stay full: their consumers are missing, or too slow.

Under load a lane fills and opens many times a second. One that stays full from one check to the
next is logged once, and once more when it opens.
"""

from collections.abc import Iterable

from duly.domain.lanes import ALL_TENANTS, Lane
from duly.domain.task import BAND_NAMES, WEBHOOK_POOL
from duly.scheduler.ready_state import ReadyState
from duly.store.database import Database
from duly.store.pools import name_pools
from duly.store.tenants import Tenant
from duly.telemetry import get_logger

BANDS = {number: name for name, number in BAND_NAMES.items()}

log = get_logger("duly.scheduler.closed_lanes")


class ClosedLanes:
    def __init__(self, database: Database, ready_state: ReadyState, lane_depth: int) -> None:
        self.database = database
        self.ready_state = ready_state
        self.lane_depth = lane_depth
        # Lanes that were full at the last check, and of those the logged ones.
        self.seen: dict[Lane, int] = {}
        self.told: dict[Lane, int] = {}

    async def look(self, tenants: dict[int, Tenant]) -> None:
        """Check for lanes to log; a statement runs only if there are any."""
        full = dict(self.ready_state.full)
        opened = [lane for lane, number in self.told.items() if full.get(lane) != number]
        closed = [
            lane
            for lane, number in full.items()
            if self.seen.get(lane) == number and lane not in self.told
        ]
        self.seen = full
        if not opened and not closed:
            return
        names = await self.name([*opened, *closed], tenants)
        for lane in opened:
            del self.told[lane]
            log.info("lane open again", **names[lane])
        for lane in closed:
            self.told[lane] = full[lane]
            log.warning(
                "lane closed: full, and no consumer takes from it fast enough",
                depth=self.lane_depth,
                **names[lane],
            )

    async def name(
        self, lanes: Iterable[Lane], tenants: dict[int, Tenant]
    ) -> dict[Lane, dict[str, str]]:
        asked = list(lanes)
        own = [(lane.tenant, lane.pool) for lane in asked if lane.tenant != ALL_TENANTS]
        pools = await name_pools(self.database, own) if own else {}
        names: dict[Lane, dict[str, str]] = {}
        for lane in asked:
            tenant = tenants.get(lane.tenant)
            of_all = "all" if lane.tenant == ALL_TENANTS else str(lane.tenant)
            pool = "webhooks" if lane.pool == WEBHOOK_POOL else str(lane.pool)
            names[lane] = {
                "tenant": of_all if tenant is None else tenant.name,
                "pool": pools.get((lane.tenant, lane.pool), pool),
                "band": BANDS[lane.band],
            }
        return names
