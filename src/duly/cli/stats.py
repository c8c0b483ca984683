"""`duly stats`: what tasks of a tenant did over time, and which tenants waited longest."""

import math
from datetime import datetime, timedelta

import click

from duly.cli.api_session import ApiSession, Json, given, over_api
from duly.cli.output import (
    make_table,
    note,
    print_drawn,
    print_table,
    say,
    wide_flag,
    worded,
    worded_instant,
    worded_seconds,
)
from duly.cli.sparklines import sparkline
from duly.cli.suggestions import TASK_TYPES
from duly.cli.values import duration, instant
from duly.environment import SystemClock

COUNTS = ("submitted", "started", "completed", "failed", "retried")
TIMES = ("lag_p50_s", "lag_p99_s", "run_p50_s", "run_p99_s")
COLUMNS = ("at", *COUNTS, *TIMES)
# The first to go where the terminal is narrow.
LESS = ("run_p50_s", "lag_p50_s", "retried")
DRAWN = (*COUNTS, "lag_p99_s", "run_p99_s")
TENANT_COLUMNS = ("tenant", *COUNTS, "lag_p50_s", "lag_p99_s")
LAST_S = 3600.0
STEP_S_MIN, STEP_S_MAX = 60, 86_400
# What is drawn in a line, and printed as a table without scrolling away.
POINTS_DEFAULT = 30
TENANTS_SHOWN_MAX = 200


@click.command("stats")
@click.option("--last", type=duration, metavar="DURATION", help="Up to now. Default: 1h.")
@click.option("--since", type=instant, metavar="INSTANT", help="From then on, instead.")
@click.option("--until", type=instant, metavar="INSTANT", help="Up to then, instead of now.")
@click.option(
    "--step",
    type=duration,
    metavar="DURATION",
    help=f"Length of one line, in whole minutes. Default: {POINTS_DEFAULT} lines or fewer.",
)
@click.option(
    "--type",
    "task_type",
    metavar="TYPE",
    shell_complete=TASK_TYPES,
    help="Only tasks of this type.",
)
@click.option("--by-tenant", is_flag=True, help="Each tenant in the last five minutes instead.")
@wide_flag
@over_api
def command(
    session: ApiSession,
    last: float | None,
    since: str | None,
    until: str | None,
    step: float | None,
    task_type: str | None,
    by_tenant: bool,
) -> None:
    """Show how many tasks were submitted, started, completed, failed and retried, how late they
    started (lag) and how long attempts took (run): half of them at most p50, 99 of 100 at most p99.

    With --by-tenant, those that waited longest come first; it needs a key of the installation.
    """
    if by_tenant:
        if given(last=last, since=since, until=until, step=step, type=task_type):
            raise click.UsageError("--by-tenant takes no range, --step or --type")
        found = session.ask("GET", "/v1/stats/tenants", query={"limit": TENANTS_SHOWN_MAX})
        session.show(found, print_tenants)
        return
    if last is not None and since is not None:
        raise click.UsageError("give --last or --since")
    if step is not None and step % STEP_S_MIN:
        raise click.UsageError("--step is not of whole minutes, such as 5m or 1h")
    query = range_query(last, since, until) | given(type=task_type)
    if step is not None:
        query["step_s"] = int(step)
    session.show(session.ask("GET", "/v1/stats", query=query), print_stats)


def range_query(last_s: float | None, since: str | None, until: str | None) -> Json:
    """The last hour, unless it says otherwise, with a step that gives a screen of lines."""
    end = SystemClock().now() if until is None else datetime.fromisoformat(until)
    ago = timedelta(seconds=LAST_S if last_s is None else last_s)
    begin = end - ago if since is None else datetime.fromisoformat(since)
    step_s = math.ceil((end - begin).total_seconds() / POINTS_DEFAULT / STEP_S_MIN) * STEP_S_MIN
    step_s = min(max(step_s, STEP_S_MIN), STEP_S_MAX)
    return {"from": begin.isoformat(), "to": end.isoformat(), "step_s": step_s}


def print_stats(found: Json) -> None:
    points, total = found["items"], found["total"]
    if not points:
        note("nothing was submitted, started or ended in this time")
        return
    print_drawn(make_table(points, COLUMNS, LESS))
    click.echo()
    rows = [
        {"measure": name.removesuffix("_s").replace("_", " "), "total": worded(name, total[name])}
        | {"over_time": sparkline(values_of(found, name))}
        for name in DRAWN
    ]
    print_drawn(make_table(rows, ("measure", "total", "over_time")))
    begin, end = worded_instant(found["from"]), worded_instant(found["to"])
    say(f"from {begin} to {end}, in steps of {worded_seconds(found['step_s'])}")


def values_of(found: Json, name: str) -> list[float | None]:
    """One for each step, also for those in which nothing happened, which have no point."""
    first, last = (datetime.fromisoformat(found[each]) for each in ("from", "to"))
    steps = math.ceil((last - first).total_seconds() / found["step_s"])
    values: list[float | None] = [None] * steps
    for point in found["items"]:
        at = datetime.fromisoformat(point["at"])
        place = int((at - first).total_seconds() // found["step_s"])
        if 0 <= place < steps:
            values[place] = point[name]
    return values


def print_tenants(found: Json) -> None:
    print_table(found["items"], TENANT_COLUMNS, "no tenant had tasks in the last five minutes")
