"""The fields of a schedule on the command line and in files: flags, names, defaults, and finding
one by name or id."""

import re
from collections.abc import Sequence
from uuid import UUID

import click

from duly.cli.api_session import ApiSession, Json, path
from duly.cli.options import with_flags
from duly.cli.output import worded_seconds
from duly.cli.values import NO_BOUND, bound, duration, instant
from duly.client.errors import NotFound
from duly.client.schedule_plan import FIELDS, MADE

MISFIRES = ("fire_all", "coalesce", "skip")
OVERLAPS = ("allow", "skip", "queue_one", "cancel_previous")
GAPS = ("shift", "skip")
REPEATS = ("first", "second", "both")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def instant_or_none(text: str) -> str:
    return text if text == NO_BOUND else instant(text)


def date_or_none(text: str) -> str:
    if text != NO_BOUND and not DATE.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a date such as 2026-12-25, nor {NO_BOUND}")
    return text


WHEN_FLAGS = [
    click.option("--cron", metavar="TEXT", help="Such as '0 2 * * mon-fri' or @daily."),
    click.option("--every", type=duration, metavar="DURATION", help="Or an interval: 90, 5m, 2h."),
    click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin; UTC if not given."),
    click.option("--misfire", type=click.Choice(MISFIRES), help="Policy for late occurrences."),
    click.option(
        "--misfire-window", type=duration, metavar="DURATION", help="How late fire_all may fire."
    ),
    click.option(
        "--overlap", type=click.Choice(OVERLAPS), help="Policy if an earlier task is unfinished."
    ),
    click.option(
        "--max-running", type=bound, metavar="N|none", help="Unfinished tasks at most, with allow."
    ),
    click.option(
        "--dst-gap", type=click.Choice(GAPS), help="Policy for local times that do not exist."
    ),
    click.option(
        "--dst-repeat", type=click.Choice(REPEATS), help="Policy for local times that occur twice."
    ),
    click.option(
        "--jitter", type=duration, metavar="DURATION", help="Fixed delay per schedule, up to this."
    ),
    click.option("--start-at", type=instant_or_none, metavar="INSTANT|none", help="Not before."),
    click.option("--end-at", type=instant_or_none, metavar="INSTANT|none", help="Not after."),
    click.option(
        "--max-fires", type=bound, metavar="N|none", help="Number of fires after which it ends."
    ),
    click.option(
        "--exclude",
        type=date_or_none,
        multiple=True,
        metavar="DATE|none",
        help="Not on this local date.",
    ),
]
when_flags = with_flags(WHEN_FLAGS)
WHEN_OPTIONS = (
    "cron",
    "every",
    "timezone",
    "misfire",
    "misfire_window",
    "overlap",
    "max_running",
    "dst_gap",
    "dst_repeat",
    "jitter",
    "start_at",
    "end_at",
    "max_fires",
    "exclude",
)
NAMED_OTHERWISE = {
    "every": "every_s",
    "misfire_window": "misfire_window_s",
    "jitter": "jitter_s",
    "exclude": "exclude_dates",
}


def fields_said(flags: Json) -> Json:
    """The flags above as the API names them; only what was said."""
    said: Json = {}
    for name, value in flags.items():
        if value is None or value == ():
            continue
        if name == "exclude":
            value = dates_said(value)
        said[NAMED_OTHERWISE.get(name, name)] = None if value == NO_BOUND else value
    if "cron" in said and "every_s" in said:
        raise click.UsageError("give --cron or --every")
    return said


def dates_said(dates: Sequence[str]) -> list[str]:
    if NO_BOUND not in dates:
        return list(dates)
    if len(dates) > 1:
        raise click.UsageError(f"--exclude {NO_BOUND} goes with no date")
    return []


def definition_of(schedule: Json) -> Json:
    """Of an answer about a schedule, what could be asked for again."""
    made = {name: schedule[name] for name in MADE if schedule.get(name) is not None}
    return {name: schedule[name] for name in FIELDS if name not in MADE} | made


def find(session: ApiSession, name_or_id: str) -> Json:
    """The schedule with this id or, if it does not look like one, with this name."""
    found: Json
    if is_id(name_or_id):
        found = session.ask("GET", path("schedules", name_or_id))
        return found
    items = session.ask("GET", "/v1/schedules", query={"name": name_or_id})["items"]
    if not items:
        problem = {"code": "not_found", "detail": f"there is no schedule named {name_or_id}"}
        raise NotFound(404, problem, None)
    found = items[0]
    return found


def find_id(session: ApiSession, name_or_id: str) -> str:
    return name_or_id if is_id(name_or_id) else find(session, name_or_id)["id"]


def is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def rule_of(schedule: Json) -> str:
    cron: str | None = schedule["cron"]
    return cron if cron is not None else f"every {worded_seconds(schedule['every_s'])}"
