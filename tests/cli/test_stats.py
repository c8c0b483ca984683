"""`duly stats` against a real front door, and sparklines."""

import pytest

from duly.cli.sparklines import BLOCKS, sparkline
from tests.api.conftest import Front
from tests.api.test_stats import NOON, add_minute
from tests.cli.conftest import CommandLine

RANGE = ("--since", "2026-03-01T12:00:00Z", "--until", "2026-03-01T12:10:00Z")


async def test_numbers_over_time_are_a_line_for_each_step(duly: CommandLine, front: Front) -> None:
    """Whether it got worse an hour ago could be learned only by adding up JSON."""
    await add_minute(front, NOON)
    await add_minute(front, NOON.replace(minute=9), numbers=(10, 8, 6, 2, 1))
    found = await duly.json("stats", *RANGE)
    assert (found["step_s"], found["total"]["submitted"], len(found["items"])) == (60, 15, 2)
    screen = (await duly("stats", *RANGE)).splitlines()
    assert screen[0].split()[:6] == [
        *("at", "submitted", "started", "completed", "failed", "retried")
    ]
    assert screen[1].startswith("2026-03-01 12:00:00Z")
    (line,) = [each for each in screen if each.startswith("submitted")]
    assert line.split()[1:] == ["15", f"▄{'·' * 8}█"], "between the two nothing happened"
    assert screen[-1] == "from 2026-03-01 12:00:00Z to 2026-03-01 12:10:00Z, in steps of 1m 0s"
    wide = await duly.json("stats", *RANGE, "--step", "5m", "--type", "a")
    assert [each["submitted"] for each in wide["items"]] == [5, 10]
    assert await duly("stats", *RANGE, "--type", "none") == ""
    assert "nothing was submitted" in duly.said_on_errors


async def test_a_range_without_a_step_fits_the_screen(duly: CommandLine) -> None:
    """A month in minutes is refused by the server, and a screen has no room for it."""
    steps = {"1h": 120, "10m": 60, "30d": 86_400, "60d": 86_400}
    for last, step_s in steps.items():
        assert (await duly.json("stats", "--last", last))["step_s"] == step_s
    assert (await duly.json("stats"))["step_s"] == steps["1h"]


async def test_the_tenants_of_the_last_minutes_are_compared(
    duly: CommandLine, front: Front
) -> None:
    """Which tenant is late is the first question of an operator."""
    minute = front.environment.clock.now().replace(second=0, microsecond=0)
    await add_minute(front, minute, lag_s=30.0)
    (item,) = (await duly.json("stats", "--by-tenant"))["items"]
    assert (item["tenant"], item["submitted"]) == ("default", 5)
    assert (await duly("stats", "--by-tenant")).splitlines()[1].startswith("default")
    duly.use_key(front.producer)
    assert (await duly.problem("stats", "--by-tenant"))["code"] == "forbidden"
    await duly("stats")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--step", "90"),
        ("--last", "1h", "--since", "2026-03-01T12:00:00Z"),
        ("--by-tenant", "--type", "a"),
        ("--last", "soon"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_it_is_asked(
    duly: CommandLine, arguments: tuple[str, ...]
) -> None:
    """A flag that is silently ignored gives numbers of something else."""
    await duly("stats", *arguments, code=2)


def test_a_sparkline_shows_anything_at_all() -> None:
    """One failure beside a thousand successes would not be seen."""
    assert sparkline([0, 1, 1000, None, 500]) == f"·{BLOCKS[1]}█·▄"
    assert sparkline([]) == ""
    assert sparkline([0.0, None]) == "··"
