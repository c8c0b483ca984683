"""How far the map of a node is, from the row of that node. No statements."""

from typing import Any, NamedTuple

import msgspec

from duly.domain.map_plan import failed_max
from duly.domain.node_spec import MapSpec


class MapStanding(NamedTuple):
    """How far a map is. `total`: how many items it has, once that is known. `detail`: why it will
    fail."""

    total: int | None
    made: int
    open: int
    completed: int
    failed: int
    cancelled: int
    failed_max: int | None
    detail: str | None = None


def map_standing(row: Any, spec: MapSpec) -> MapStanding | None:
    """None: it has not begun, or was cancelled. An ended one says it in its result."""
    made, total = row["made"] or 0, row["total"]
    if row["map_result"] is not None:
        counts = msgspec.json.decode(row["map_result"])
        total = counts["items"]
        completed, failed, cancelled = counts["completed"], counts["failed"], counts["cancelled"]
        open_now = 0
    elif row["made"] is not None and row["is_live"]:
        completed, failed = row["parents_completed"] or 0, row["parents_failed"] or 0
        cancelled = row["parents_skipped"] or 0
        open_now = made - completed - failed - cancelled
    else:
        return None
    most = failed_max(spec, total)
    return MapStanding(total, made, open_now, completed, failed, cancelled, most, row["detail"])
