"""`duly forecast`: what is expected to fire, as a picture of the day, the worst minutes, advice."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from duly.cli.api_session import ApiSession, Json, over_api
from duly.cli.output import clean, make_table, note, print_drawn, write_file
from duly.cli.sparklines import block

BAR_WIDTH = 40
STEP_MINUTES = 10
HOUR_MINUTES = 60
STEPS = HOUR_MINUTES // STEP_MINUTES
WORST_COLUMNS = ("minute", "expected", "schedules", "tasks", "mostly")
ADVICE_COLUMNS = ("minute", "jitter_s", "peak_before", "peak_after", "rules")
RULES_SHOWN = 3


@click.command("forecast")
@click.option(
    "--hours",
    type=click.IntRange(1, 48),
    default=24,
    show_default=True,
    metavar="N",
    help="How far to look ahead.",
)
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Write an SVG chart.")
@over_api
def command(session: ApiSession, hours: int, svg: Path | None) -> None:
    """Show the expected fires of schedules and waiting tasks per minute in the coming hours: peaks,
    and the jitter that would spread them.

    A line is an hour: the peak of each ten minutes, then the fires of the hour. Times are UTC.
    """
    found = session.ask("GET", "/v1/forecast", query={"hours": hours})
    if svg is not None:
        write_picture(found, svg)
    session.show(found, print_forecast)


def print_forecast(found: Json) -> None:
    expected = expected_of(found)
    for line in day_lines(datetime.fromisoformat(found["from"]).astimezone(UTC), expected):
        click.echo(line)
    counted = f"{found['schedules_counted']:,} schedules, {found['tasks_counted']:,} waiting tasks"
    click.echo(f"\n{number(sum(expected))} fires expected of {counted}")
    if found["worst"]:
        click.echo("\nWorst minutes")
        print_drawn(make_table([worst_row(each) for each in found["worst"]], WORST_COLUMNS))
    if found["advice"]:
        click.echo("\nA jitter that would help")
        print_drawn(make_table([advice_row(each) for each in found["advice"]], ADVICE_COLUMNS))
    for limit in found["limits"]:
        note(f"not in these numbers: {limit}")


def expected_of(found: Json) -> list[float]:
    minutes = found["minutes"]
    return [sum(each) for each in zip(minutes["schedules"], minutes["tasks"], strict=True)]


def day_lines(since: datetime, expected: list[float]) -> list[str]:
    """One for each hour of the clock that is touched; all have one scale."""
    peak = max(expected, default=0.0)
    since, expected = since.replace(minute=0), [0.0] * since.minute + expected
    hours = [
        expected[first : first + HOUR_MINUTES] for first in range(0, len(expected), HOUR_MINUTES)
    ]
    most = max(sum(hour) for hour in hours)
    lines = []
    for place, hour in enumerate(hours):
        at = since + timedelta(hours=place)
        steps = [hour[first : first + STEP_MINUTES] for first in range(0, len(hour), STEP_MINUTES)]
        sparks = "".join(block(max(step), peak) for step in steps)
        bar = "█" * round(sum(hour) / most * BAR_WIDTH) if most else ""
        total = number(sum(hour))
        lines.append(f"{at:%a %H:%M}  {sparks:{STEPS}}  {bar:{BAR_WIDTH}}  {total}")
    return lines


def worst_row(worst: Json) -> Json:
    top = worst["top"][:RULES_SHOWN]
    return {
        "minute": minute_text(worst["minute"]),
        "expected": number(worst["expected"]),
        "schedules": number(worst["schedules"]),
        "tasks": number(worst["tasks"]),
        "mostly": ", ".join(f"{number(each['count'])} {rule_text(each)}" for each in top) or None,
    }


def advice_row(advice: Json) -> Json:
    rules = advice["rules"]
    named = ", ".join(rule_text(each) for each in rules[:RULES_SHOWN])
    beyond = len(rules) - RULES_SHOWN
    return {
        "minute": minute_text(advice["minute"]),
        "jitter_s": advice["jitter_s"],
        "peak_before": number(advice["peak_before"]),
        "peak_after": number(advice["peak_after"]),
        "rules": f"{named} and {beyond} more" if beyond > 0 else named,
    }


def rule_text(rule: Json) -> str:
    return clean(f"{rule['rule']} {rule['timezone']} ({rule['name']})")


def minute_text(minute: str) -> str:
    return f"{datetime.fromisoformat(minute).astimezone(UTC):%Y-%m-%d %H:%MZ}"


def number(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"


def write_picture(found: Json, file: Path) -> None:
    from duly.bench.svg import Axis, Chart, ChartLine, draw

    since = datetime.fromisoformat(found["from"]).astimezone(UTC)
    lines = [
        ChartLine(name, [(minute / HOUR_MINUTES, count) for minute, count in enumerate(counts)])
        for name, counts in found["minutes"].items()
    ]
    chart = Chart(
        "Expected fires", Axis(f"hours from {since:%Y-%m-%d %H:%MZ}"), Axis("per minute"), lines
    )
    worst = found["worst"][:1]
    footer = "".join(
        f"worst: {number(each['expected'])} at {minute_text(each['minute'])}" for each in worst
    )
    write_file(file, draw("Forecast", [chart], footer))
