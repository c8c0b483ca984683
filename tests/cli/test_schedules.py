"""`duly schedules` and `duly forecast` against a real front door."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from duly.api import schedule_control
from duly.api.schedule_wire import PreviewRequest, ScheduleRequest
from duly.cli.schedule_fields import (
    GAPS,
    MISFIRES,
    OVERLAPS,
    REPEATS,
    WHEN_FLAGS,
    WHEN_OPTIONS,
)
from duly.cli.schedules import VERDICTS
from duly.client.schedule_plan import DEFAULTS, FIELDS
from duly.domain.occurrence_plan import Misfire, OccurrenceDecision, Overlap
from duly.domain.recurrence import Gap, Repeat
from tests.api.conftest import Front
from tests.api.scheduling import fire_due
from tests.cli.conftest import CommandLine

EVERY = ("--cron", "30 2 * * mon-fri", "--timezone", "Europe/Berlin", "--misfire", "fire_all")
POLICIES = ("--misfire-window", "10m", "--max-running", 3, "--dst-gap", "skip", "--jitter", "90s")
BOUNDS = ("--start-at", "2097-01-01T00:00:00Z", "--end-at", "2400-01-01T00:00:00Z")
DATES = ("--max-fires", 1000, "--exclude", "2097-12-24", "--exclude", "2097-12-25")
TASK = ("--pool", "reports", "--priority", 7, "--max-attempts", 2, "--tag", "env:prod")


async def test_a_schedule_is_defined_shown_and_changed_by_its_name(duly: CommandLine) -> None:
    """A flag that does not arrive is cron that is silently wrong."""
    made = await duly.json(
        *("schedules", "create", "nightly", "report.write", '{"kind": "daily"}'),
        *EVERY,
        *POLICIES,
        *("--dst-repeat", "both", *BOUNDS, *DATES, *TASK),
    )
    assert (made["cron"], made["timezone"]) == ("30 2 * * mon-fri", "Europe/Berlin")
    assert (made["misfire"], made["misfire_window_s"], made["max_running"]) == ("fire_all", 600, 3)
    assert (made["dst_gap"], made["dst_repeat"], made["jitter_s"]) == ("skip", "both", 90)
    assert (made["start_at"], made["end_at"]) == (BOUNDS[1], BOUNDS[3])
    assert (made["max_fires"], made["exclude_dates"]) == (1000, ["2097-12-24", "2097-12-25"])
    task = made["task"]
    assert (task["type"], task["payload"]) == ("report.write", {"kind": "daily"})
    assert (task["target"], task["priority"]) == ({"pool": "reports"}, 7)
    assert (task["retry"]["max_attempts"], task["tags"]) == (2, {"env": "prod"})
    assert await duly.json("schedules", "show", "nightly") == made
    assert await duly.json("schedules", "show", made["id"]) == made
    changed = await duly.json(
        *("schedules", "edit", "nightly", "--every", "5m", "--max-fires", "none"),
        *("--exclude", "none", "--jitter", 0, "--name", "often", "--start-at", "none"),
    )
    assert (changed["id"], changed["name"]) == (made["id"], "often")
    assert (changed["cron"], changed["every_s"], changed["max_fires"]) == (None, 300, None)
    assert (changed["exclude_dates"], changed["start_at"]) == ([], None)
    assert changed["task"] == task
    replaced = await duly.json("schedules", "edit", "often", "--task", '{"type": "mail"}')
    assert replaced["task"] == {"type": "mail"}
    assert "every 5m" in await duly("schedules", "list")
    card = await duly("schedules", "show", "often")
    headings = [line.split("  ")[0] for line in card.splitlines() if line[:1].strip()]
    assert sorted(set(headings)) == sorted(headings), "a field stands there twice"
    assert "often" in card


async def test_what_makes_no_sense_is_refused_before_or_by_the_server(duly: CommandLine) -> None:
    """The field that is wrong must be named, or the author looks at all of them."""
    create = ("schedules", "create", "x", "mail")
    await duly(*create, code=2)
    await duly(*create, "--cron", "@daily", "--every", "5m", code=2)
    await duly(*create, "--every", "often", code=2)
    await duly(*create, "--cron", "@daily", "--exclude", "tomorrow", code=2)
    await duly(*create, "--cron", "@daily", "--exclude", "none", "--exclude", "2097-01-01", code=2)
    await duly(*create, "--cron", "@daily", "--overlap", "sometimes", code=2)
    refused = await duly.problem(*create, "--cron", "0 25 * * *", "--timezone", "Mars/Base")
    assert [error["pointer"] for error in refused["errors"]] == ["/cron", "/timezone"]
    assert "hour" in refused["errors"][0]["detail"]
    await duly("schedules", "edit", "x", code=2)
    assert (await duly.problem("schedules", "show", "x"))["code"] == "not_found"
    assert (await duly.problem("schedules", "edit", "x", "--jitter", 1))["code"] == "not_found"
    await duly(*create, "--cron", "@daily")
    assert (await duly.problem(*create, "--cron", "@daily"))["code"] == "conflict"


async def test_a_schedule_is_deleted_only_when_somebody_means_it(duly: CommandLine) -> None:
    """A script that deletes by mistake must have said so twice."""
    await duly("schedules", "create", "old", "mail", "--every", "1h")
    await duly("schedules", "delete", "old", code=2)
    assert await duly("schedules", "delete", "old", "--yes") == "old is deleted\n"
    assert (await duly.problem("schedules", "delete", "old", "--yes"))["code"] == "not_found"
    assert await duly("schedules", "list") == ""
    assert duly.said_on_errors == "no schedules\n"


async def test_schedules_are_listed_by_what_they_are(duly: CommandLine) -> None:
    """A filter that lets others through is followed by a pause of the others."""
    for name, kind in (("mail a", "mail"), ("mail b", "mail"), ("report", "report.write")):
        await duly("schedules", "create", name, kind, "--every", "1h")
    await duly("schedules", "pause", "mail a", "--reason", "x")
    for flags, names in (
        (("--name-prefix", "mail"), ["mail b", "mail a"]),
        (("--type", "report.write"), ["report"]),
        (("--paused",), ["mail a"]),
        (("--not-paused", "--type", "mail"), ["mail b"]),
        (("--flagged",), []),
    ):
        found = await duly.json("schedules", "list", *flags)
        assert [item["name"] for item in found["items"]] == names
    first = await duly.json("schedules", "list", "--limit", 2)
    rest = await duly.json("schedules", "list", "--cursor", first["next_cursor"])
    assert [item["name"] for item in rest["items"]] == ["mail a"]


async def test_schedules_are_paused_and_resumed_one_or_many(
    duly: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an incident all of them must stop at once, and whoever comes later must see why."""
    monkeypatch.setattr(schedule_control, "SCHEDULES_AT_ONCE_MAX", 1)
    for number in range(3):
        await duly("schedules", "create", f"m{number}", "mail", "--every", "1h")
    await duly("schedules", "create", "other", "report", "--every", "1h")
    await duly("schedules", "pause", "m0", code=2)
    await duly("schedules", "pause", "--reason", "x", code=2)
    await duly("schedules", "pause", "m0", "--all", "--reason", "x", code=2)
    await duly("schedules", "pause", "m0", "--dry-run", "--reason", "x", code=2)
    one = await duly.json("schedules", "pause", "m0", "--reason", "provider down")
    assert one["items"][0]["paused"]["reason"] == "provider down"
    many = ("schedules", "pause", "--type", "mail", "--reason", "all down")
    assert (await duly.json(*many, "--dry-run"))["matched"] == 2
    await duly(*many, code=2)
    assert await duly(*many, "--yes") == "2 schedules paused\n"
    assert await duly(*many, "--yes") == "no schedule matches\n"
    assert (await duly.json("schedules", "show", "m0"))["paused"]["reason"] == "provider down"
    back = await duly.json("schedules", "resume", "--all", "--yes")
    assert (back["matched"], back["done"], back["left"]) == (3, 3, [])
    assert "ACTIVE" in await duly("schedules", "resume", "m0", "other")


async def test_a_schedule_is_fired_by_hand_and_made_up_for(duly: CommandLine, front: Front) -> None:
    """What an outage left undone is owed, once, and not all in one second."""
    now = datetime.now(UTC).replace(microsecond=0)
    start_at = (now - timedelta(days=2)).isoformat()
    await duly("schedules", "create", "hourly", "mail", "--every", "1h", "--start-at", start_at)
    task = await duly.json("schedules", "trigger", "hourly")
    assert task["type"] == "mail"
    assert "task " in await duly("schedules", "trigger", "hourly")
    # Its cursor is its creation: what lies before was never ruled on.
    back = ("schedules", "backfill", "hourly", "--from", start_at, "--to", now.isoformat())
    looked = await duly.json(*back, "--dry-run")
    assert looked["made"] in (48, 49)
    await duly(*back, code=2)
    made = await duly.json(*back, "--rate", 100, "--yes")
    assert (made["made"], made["dry_run"]) == (looked["made"], False)
    again = await duly(*back, "--yes")
    assert again.startswith("0 tasks made")
    assert "have a task already" in again
    ledger = await duly.json("schedules", "occurrences", "hourly", "--limit", 100)
    verdicts = [item["verdict"] for item in ledger["items"]]
    assert (verdicts.count("TRIGGERED"), verdicts.count("BACKFILLED")) == (2, made["made"])
    fired = await duly.json("schedules", "occurrences", "hourly", "--verdict", "triggered")
    assert len(fired["items"]) == 2
    since = await duly.json("schedules", "occurrences", "hourly", "--since", now.isoformat())
    assert {item["verdict"] for item in since["items"]} <= {"TRIGGERED", "BACKFILLED"}
    assert "BACKFILLED" in await duly("schedules", "occurrences", "hourly")
    await fire_due(front)


async def test_a_preview_shows_fires_and_clock_changes(duly: CommandLine) -> None:
    """Before it is defined is when a wrong hour costs nothing."""
    flags = ("--cron", "30 2 * * *", "--timezone", "Europe/Berlin")
    after = ("--after", "2026-10-20T00:00:00Z", "--count", 3)
    found = await duly.json("schedules", "preview", *flags, *after)
    assert [fire["at"] for fire in found["fires"]] == [
        "2026-10-20T00:30:00Z",
        "2026-10-21T00:30:00Z",
        "2026-10-22T00:30:00Z",
    ]
    text = await duly("schedules", "preview", *flags, *after)
    assert "2026-10-20 00:30:00Z" in text
    assert "clocks go from 2026-10-25 03:00 to 2026-10-25 02:00" in text
    assert "clocks go from 2027-03-28 02:00 to 2027-03-28 03:00" in text
    await duly("schedules", "create", "x", "mail", *flags)
    known = await duly.json("schedules", "preview", "x", *after)
    assert known == found
    other = await duly.json("schedules", "preview", "x", "--every", "1h", *after)
    assert other["closest_s"] == 3600
    await duly("schedules", "preview", code=2)
    refused = await duly.problem("schedules", "preview", "--cron", "0 0 30 2 *")
    assert refused["errors"][0]["pointer"] == "/cron"


async def test_the_forecast_is_a_picture_and_numbers(duly: CommandLine, tmp_path: Path) -> None:
    """A table of 1,440 numbers is looked at by nobody."""
    for number in range(20):
        await duly("schedules", "create", f"herd {number}", "mail", "--cron", "0 3 * * *")
    # Not into the herd's own hour, at whatever time of the day this runs.
    delay = "6h" if datetime.now(UTC).hour < 2 else "2h"
    await duly("tasks", "submit", "mail", "--delay", delay)
    found = await duly.json("forecast")
    assert (found["schedules_counted"], found["tasks_counted"]) == (20, 1)
    picture = tmp_path / "day.svg"
    text = await duly("forecast", "--svg", picture)
    hours = text.split("\n\n")[0].splitlines()
    assert len(hours) in (24, 25)
    (peak,) = [line for line in hours if "████" in line]
    assert peak[4:].startswith("03:00  █")
    assert peak.endswith("20")
    assert "21 fires expected of 20 schedules, 1 waiting tasks" in text
    assert "20 0 3 * * * UTC (herd 0)" in text
    assert "A jitter that would help" in text
    svg = picture.read_text()
    assert svg.startswith("<svg")
    assert "schedules" in svg
    assert len((await duly.json("forecast", "--hours", 2))["minutes"]["tasks"]) == 120
    await duly("forecast", "--hours", 49, code=2)
    await duly("forecast", "--svg", tmp_path / "no" / "day.svg", code=2)


async def test_the_forecast_of_nothing_is_empty(duly: CommandLine) -> None:
    """The first look at a new installation must not be a traceback."""
    assert "0 fires expected of 0 schedules, 0 waiting tasks" in await duly("forecast")


def test_what_can_be_said_is_all_there_is() -> None:
    """The command line may not import the server's lists, so a new field is easily forgotten."""
    asked = {field.name: field for field in msgspec.structs.fields(ScheduleRequest)}
    assert set(FIELDS) == asked.keys()
    usual = msgspec.to_builtins(PreviewRequest())
    assert {name: usual[name] for name in DEFAULTS} == DEFAULTS
    assert len(WHEN_FLAGS) == len(WHEN_OPTIONS) == len(DEFAULTS)
    for known, kind in ((MISFIRES, Misfire), (OVERLAPS, Overlap), (GAPS, Gap), (REPEATS, Repeat)):
        assert known == get_args(kind)
    assert set(VERDICTS) == set(OccurrenceDecision)


async def test_a_schedule_starts_a_workflow(duly: CommandLine, front: Front) -> None:
    """A type that is given as a task would be one, of that name."""
    nodes = {"nodes": {"a": {"type": "x"}}}
    put = await front.call("PUT", "/v1/workflow-types/invoice.month", nodes)
    assert put.status == 201, put.body
    daily = ("--every", "1h")
    made = await duly.json("schedules", "create", "m", *daily, "--workflow", "invoice.month@1")
    assert (made["workflow"]["type"], made.get("task")) == ("invoice.month@1", None)
    assert await duly("schedules", "trigger", "m")
    (run,) = (await front.call("GET", "/v1/workflows")).json["items"]
    assert (run["type"], run["tags"]["schedule"]) == ("invoice.month@1", "m")
    graph = msgspec.json.encode({"name": "own", **nodes}).decode()
    changed = await duly.json("schedules", "edit", "m", "--workflow", graph)
    assert changed["workflow"]["name"] == "own"
    await duly("schedules", "create", "n", "x", *daily, "--workflow", "invoice.month", code=2)
    await duly("schedules", "create", "n", *daily, code=2)
    await duly.problem("schedules", "create", "n", *daily, "--workflow", "no.such")
