"""Charts: well-formed, inside their picture, and true to the values."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from duly.bench.plots import write_plots
from duly.bench.svg import Axis, AxisScale, Chart, ChartLine, draw, make_scale, short, ticks

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {
    "processor": "a <fast> one",
    "cores": 2,
    "memory_mb": 2048,
    "postgresql": {"server_version": "18.4"},
    "python": "3.11",
    "duly": "0.1",
    "commit": None,
}


def make_chart(*lines: ChartLine, is_log: bool = False) -> Chart:
    return Chart("rates & more", Axis("seconds"), Axis("tasks", is_log=is_log), lines)


def places_of(picture: str) -> list[list[tuple[float, float]]]:
    """Where the lines were drawn, in pixels."""
    return [
        [(float(x), float(y)) for x, y in (place.split(",") for place in line.split())]
        for line in re.findall(r'<polyline points="([^"]*)"', picture)
    ]


def test_a_picture_is_well_formed_whatever_the_names_are() -> None:
    """One unescaped sign, and no browser shows anything."""
    picture = draw(
        "<b>", [make_chart(ChartLine('a"b', [(0, 1)]), ChartLine("c<d", [(1, 2)]))], "x & y"
    )
    root = ElementTree.fromstring(picture)
    words = {each.text for each in root.iter(f"{SVG}text")}
    assert {"<b>", "rates & more", 'a"b', "c<d", "x & y", "seconds", "tasks"} <= words


@pytest.mark.parametrize("is_log", [False, True])
def test_a_greater_value_stands_higher_and_everything_inside(is_log: bool) -> None:
    """An axis that is upside down is believed."""
    chart = make_chart(ChartLine("a", [(0, 0), (1, 3), (2, 40), (3, 5000)]), is_log=is_log)
    picture = draw("", [chart], "")
    root = ElementTree.fromstring(picture)
    (places,) = places_of(picture)
    xs, ys = [x for x, _ in places], [y for _, y in places]
    assert xs == sorted(xs)
    assert ys == sorted(ys, reverse=True)
    assert all(0 < x < float(root.attrib["width"]) for x in xs)
    assert all(0 < y < float(root.attrib["height"]) for y in ys)


def test_a_log_axis_gives_every_decade_the_same_room() -> None:
    """Otherwise a tail ten times as long looks a little longer."""
    scale = make_scale(Axis("ms", is_log=True), [2.0, 900.0], 0, 300)
    assert scale == AxisScale(1.0, 1000.0, True, 0, 300)
    assert [round(scale.at(value)) for value in (0.0, 1, 10, 100, 1000)] == [0, 0, 100, 200, 300]


@pytest.mark.parametrize("value", [1e-9, 0.3, 1, 7, 59, 60, 61, 999, 25_000, 123_456_789])
def test_an_axis_has_few_ticks_and_ends_above_the_greatest_value(value: float) -> None:
    """Twenty numbers on top of each other can be read by nobody."""
    for is_log in (False, True):
        axis = Axis("", is_log=is_log)
        scale = make_scale(axis, [value], 0, 1)
        found = list(ticks(axis, scale))
        assert 2 <= len(found) <= 7
        assert len({name for _, name in found}) == len(found)
        assert scale.high >= value * 0.999999


def test_numbers_on_an_axis_are_short() -> None:
    """10000000 and 1000000 look the same."""
    assert [short(n) for n in (0, 0.25, 500, 1000, 2500, 1e6, 1e7)] == [
        *("0", "0.25", "500", "1k", "2.5k", "1M", "10M")
    ]


def test_every_kind_of_result_makes_its_picture_and_no_other(tmp_path: Path) -> None:
    """A file without lines would look like a measurement of nothing."""
    rate = {"scenario": "drain", "series": {"step_s": 0.5, "tasks_per_s": [1.0, 2.0]}}
    names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
    wait = {"scenario": "lone", **dict.fromkeys(names, 2.0)}
    rates = {"submit_tasks_per_s": 1.0, "drain_tasks_per_s": 2.0}
    point = {**rates, "skew_p50_ms": 1.0, "skew_p99_ms": 2.0}
    sizes = {"database_bytes_per_task": 600.0, "scheduler_bytes_per_task": 0.0}
    growth = {
        "scenario": "growth",
        "by_waiting": [{"waiting": 10, **point, **sizes}],
        "by_tenants": [{"tenants": 1, **point}],
    }

    def written(*results: object) -> dict[str, str]:
        paths = write_plots({"machine": MACHINE, "results": list(results)}, tmp_path / "new")
        return {path.name: path.read_text() for path in paths}

    assert written() == {}
    assert not (tmp_path / "new").exists()
    throughput = written(rate, rate)
    assert list(throughput) == ["throughput.svg"]
    assert ">drain (2)<" in throughput["throughput.svg"]
    assert list(written(wait)) == ["latency.svg"]
    assert len(places_of(written(growth)["growth.svg"])) == 10
