"""Zones: names that are refused before anything is opened, and no clock change overlooked."""

import struct
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from unittest import mock
from zoneinfo import ZoneInfo

import pytest

from duly.domain import zones
from duly.domain.zones import CHUNK_BITS, PROBE_S, changes, find_zone, offset_at, span_at, spans

NOT_NAMES = [
    *("", " ", ".", "..", "/", "../etc/passwd", "/etc/localtime", "Europe/../Europe/Berlin"),
    *("Europe//Berlin", "Europe/Berlin/", "Europe/Berlin\x00", "Europe/Berlin\n", "Europe\\Berlin"),
    *("C:\\zone", "file:///etc/passwd", "Europe/Bérlin", "~", "-", "x" * 65, "A/" * 40, "zone.tab"),
    *("posix/Europe/Berlin", "right/Europe/Berlin", "localtime", "posixrules", "Factory"),
    *("a/b/c/d/e", "+01:00", "<+01>-1", "Europe/Berlin "),
]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_what_is_not_a_name_is_refused_without_looking(name: str) -> None:
    """A zone name is a path below a folder: it must never leave it."""
    with mock.patch("duly.domain.zones.ZoneInfo", side_effect=AssertionError):
        assert find_zone(name) is None


@pytest.mark.parametrize("name", ["Europe/Atlantis", "Europe", "leapseconds", "America/Indiana"])
def test_an_unknown_zone_is_an_answer(name: str) -> None:
    """A folder, another file and nothing at all each fail in their own way."""
    assert find_zone(name) is None


@pytest.mark.parametrize(
    "name", ["UTC", "Europe/Berlin", "Etc/GMT+12", "America/Argentina/Buenos_Aires", "EST5EDT"]
)
def test_a_known_zone_is_found(name: str) -> None:
    """The odd names are real ones."""
    zone = find_zone(name)
    assert zone is not None
    assert zone.key == name


def transitions(data: bytes) -> Iterator[tuple[int, int]]:
    """The instants and offsets of a TZif file of version 2 or later, read by hand."""
    first = struct.unpack(">6l", data[20:44])
    start = 44 + first[3] * 5 + first[4] * 6 + first[5] + first[2] * 8 + first[1] + first[0]
    _, _, _, times, types, _ = struct.unpack(">6l", data[start + 20 : start + 44])
    start += 44
    instants = struct.unpack(f">{times}q", data[start : start + times * 8])
    kinds = data[start + times * 8 : start + times * 9]
    table = start + times * 9
    offsets = [
        struct.unpack(">l", data[table + 6 * n : table + 6 * n + 4])[0] for n in range(types)
    ]
    return ((instant, offsets[kind]) for instant, kind in zip(instants, kinds, strict=True))


def real_changes(data: bytes) -> list[int]:
    steps = pairwise(transitions(data))
    return [at for (_, before), (at, after) in steps if before != after and at > 0]


def zone_files() -> Iterator[tuple[str, bytes]]:
    for name in (resources.files("tzdata") / "zones").read_text().split():
        yield name, resources.files("tzdata.zoneinfo").joinpath(name).read_bytes()


def test_no_zone_changes_twice_between_two_probes() -> None:
    """A summer shorter than a probe would never be seen. New rules may bring one."""
    for name, data in zone_files():
        closest_s = min((b - a for a, b in pairwise(real_changes(data))), default=10**9)
        assert closest_s > 2 * PROBE_S, name


@pytest.mark.parametrize(
    "name", ["Africa/Casablanca", "Asia/Gaza", "Pacific/Apia", "Africa/Monrovia", "Europe/Dublin"]
)
def test_every_change_in_the_file_is_found(name: str) -> None:
    """A missed change shifts every fire after it by an hour."""
    path = resources.files("tzdata.zoneinfo").joinpath(name)
    with path.open("rb") as file:
        zone = ZoneInfo.from_file(file, key=name)
    wanted = real_changes(path.read_bytes())
    assert wanted
    last_s = wanted[-1] + 1
    assert changes(zone, 0, last_s + 1) == wanted


def test_spans_cover_time_without_seam() -> None:
    """At the edge of two chunks a second must not belong to both or to none."""
    zone = ZoneInfo("Europe/Berlin")
    chain = [span for chunk in range(50, 56) for span in spans(zone, chunk)]
    for earlier, later in pairwise(chain):
        assert earlier.end_s == later.start_s
        assert earlier.offset_after_s == later.offset_s
        assert later.offset_before_s == earlier.offset_s
    for edge_s in (51 << CHUNK_BITS, (51 << CHUNK_BITS) - 1, chain[3].end_s, chain[3].end_s - 1):
        span = span_at(zone, edge_s)
        assert span.start_s <= edge_s < span.end_s
        assert span.offset_s == offset_at(zone, edge_s)


def test_a_change_at_the_edge_of_a_chunk_is_seen_from_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gap of a year in which the two fall together would be lost."""
    monkeypatch.setattr(zones, "CHUNK_BITS", 4)
    monkeypatch.setattr(zones, "spans", spans.__wrapped__)
    zone, change_s = ZoneInfo("Europe/Berlin"), 1774746000
    assert change_s % 16 == 0
    assert span_at(zone, change_s - 1).offset_after_s == 7200
    assert span_at(zone, change_s)[2:4] == (7200, 3600)
