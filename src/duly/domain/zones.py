"""Time zones as spans of real time with one offset each: clock changes become plain arithmetic.

The rules are those of `zoneinfo`, asked once for each zone and year. Instants are whole seconds
since 1970-01-01 UTC; nothing here is older than that.
"""

import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

ZONE_CHARACTERS_MAX = 64
ZONE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9_+-]*){0,3}", re.ASCII)
# Files beside the zones: the machine's own zone, and copies with other rules (leap seconds).
NOT_ZONES = re.compile(r"(posix|right)/.*|localtime|posixrules|Factory")
# A little more than a year of spans is made at once.
CHUNK_BITS = 25
CHUNKS_MAX = 8192
# Since 1970 no zone has changed its clock twice within six days.
PROBE_S = 86400


class Span(NamedTuple):
    """Real time from `start_s` until before `end_s`, with the offsets before, in and after it."""

    start_s: int
    end_s: int
    offset_s: int
    offset_before_s: int
    offset_after_s: int


def find_zone(name: str) -> ZoneInfo | None:
    """The zone with this IANA name. Nothing that looks like a path is looked for."""
    if len(name) > ZONE_CHARACTERS_MAX or not ZONE_PATTERN.fullmatch(name):
        return None
    if NOT_ZONES.fullmatch(name):
        return None
    try:
        return ZoneInfo(name)
    # Unknown is a KeyError, a folder of zones an OSError, another kind of file a ValueError.
    except (KeyError, OSError, ValueError):
        return None


def span_at(zone: ZoneInfo, instant_s: int) -> Span:
    for span in spans(zone, instant_s >> CHUNK_BITS):
        if instant_s < span.end_s:
            return span
    raise AssertionError("the spans of a chunk cover it")


@lru_cache(maxsize=CHUNKS_MAX)
def spans(zone: ZoneInfo, chunk: int) -> tuple[Span, ...]:
    """A span may end where a chunk ends, with the same offset after it: a change of nothing."""
    start_s, end_s = chunk << CHUNK_BITS, (chunk + 1) << CHUNK_BITS
    edges = [start_s, *changes(zone, start_s, end_s), end_s]
    offsets = [offset_at(zone, edge_s) for edge_s in edges]
    before = [offset_at(zone, start_s - 1), *offsets]
    return tuple(
        Span(edges[i], edges[i + 1], offsets[i], before[i], offsets[i + 1])
        for i in range(len(edges) - 1)
    )


def changes(zone: ZoneInfo, start_s: int, end_s: int) -> list[int]:
    """The instants strictly between the two at which the offset becomes another."""
    found = []
    known_s, known = start_s, offset_at(zone, start_s)
    while known_s < end_s - 1:
        probe_s = min(known_s + PROBE_S, end_s - 1)
        offset_s = offset_at(zone, probe_s)
        if offset_s != known:
            found.append(change_between(zone, known_s, probe_s))
        known_s, known = probe_s, offset_s
    return found


def change_between(zone: ZoneInfo, before_s: int, after_s: int) -> int:
    """The first instant with the later offset, by halving."""
    old = offset_at(zone, before_s)
    while after_s - before_s > 1:
        middle_s = (before_s + after_s) // 2
        if offset_at(zone, middle_s) == old:
            before_s = middle_s
        else:
            after_s = middle_s
    return after_s


def offset_at(zone: ZoneInfo, instant_s: int) -> int:
    offset = datetime.fromtimestamp(instant_s, zone).utcoffset()
    assert offset is not None
    return offset.days * 86400 + offset.seconds
