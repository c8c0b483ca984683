"""Rules of maps: how many items are made now, and when a map fails. No I/O."""

from decimal import Decimal
from typing import NamedTuple

from duly.domain.node_spec import MapSpec

ITEMS_MAX = 1_000_000
MAX_ITEMS_DEFAULT = 10_000
# Items of a map that have not ended, whatever it asks for: timers that a scheduler has to look at.
OPEN_MAX = 10_000
# Items that one commit makes.
MADE_AT_ONCE = 1000
# Items that a parent hands over in one page.
PAGE_ITEMS_MAX = 1000
# More are made once so large a part of those that may be open have ended.
REFILL_SHARE = 4


class Progress(NamedTuple):
    """How far a map is. `known`: items it has so far; `is_complete`: no more will come."""

    made: int
    known: int
    is_complete: bool
    open: int
    failed: int


def open_max(spec: MapSpec) -> int:
    return spec.max_parallel or OPEN_MAX


def items_mark(spec: MapSpec) -> int:
    """So few open items call for more; the map itself counts as one until none is to come."""
    most = open_max(spec)
    return most - max(1, most // REFILL_SHARE) + 1


def failed_max(spec: MapSpec, total: int | None) -> int | None:
    """With more failed items than this a map fails; None: not known before all items are."""
    if spec.tolerated_percent is None:
        return spec.tolerated or 0
    if total is None:
        return None
    return int(total * Decimal(repr(spec.tolerated_percent)) // 100)


def next_items(spec: MapSpec, progress: Progress) -> int:
    """How many items are made in this commit."""
    room = open_max(spec) - progress.open
    return max(0, min(MADE_AT_ONCE, room, progress.known - progress.made))


def has_room(spec: MapSpec, progress: Progress) -> bool:
    """Whether more are made in the next commit already."""
    return progress.known > progress.made and progress.open < open_max(spec)


def failure_detail(spec: MapSpec, total: int, failed: int) -> str:
    most = failed_max(spec, total)
    return f"{failed} of {total} items failed, and {most} are tolerated"
