"""`duly verify`: whether what is stored keeps duly's promises. It reads and shows, never mends."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from duly.cli.options import SHOWN_MAX, database_flags, json_flag, load_to_look
from duly.cli.output import busy, make_table, note, print_drawn, progress, say
from duly.cli.values import instant
from duly.environment import Environment, system_environment
from duly.settings import Settings
from duly.store.bootstrap import open_target
from duly.store.verify import count_roughly, verify
from duly.telemetry import configure_logs
from duly.verify.check import Violation
from duly.verify.report import CLAIMS, WARNINGS, Claim, Verification

Json = dict[str, Any]
COLUMNS = ("check", "says", "rows", "found")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command("verify")
@database_flags
@click.option(
    "--since",
    type=instant,
    metavar="INSTANT",
    help="Only tasks whose first fire time is not before it.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, SHOWN_MAX),
    default=50,
    show_default=True,
    metavar="N",
    help="Show at most so many violations, and so many warnings; all are counted.",
)
@json_flag
def command(since: str | None, limit: int, as_json: bool, **flags: Any) -> None:
    """Check every stored task, attempt, timer, dead letter and idempotency key against duly's
    invariants, while duly runs. Reads only, in short snapshots. Exit code 1 if one is violated;
    warnings are what a pause, a cap or a stopped process may explain.
    """
    settings = load_to_look(flags).settings
    configure_logs(settings.log_level, settings.log_format)
    first = None if since is None else max(datetime.fromisoformat(since), EPOCH)
    verification = Verification(limit)
    environment = system_environment()
    elapsed_s = asyncio.run(
        examine(settings, environment, verification, first, is_shown=not as_json)
    )
    report = report_of(verification, elapsed_s)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        print_report(report)
    if not verification.is_clean:
        raise click.exceptions.Exit(1)


async def examine(
    settings: Settings,
    environment: Environment,
    verification: Verification,
    since: datetime | None,
    *,
    is_shown: bool,
) -> float:
    """Seconds that it took."""
    async with open_target(settings, environment) as target:
        url = target.owner_url if target.embedded is not None else target.engine_url
        with busy("counting rows", is_shown=is_shown):
            total = await count_roughly(url)
        began = environment.clock.monotonic()
        with progress("verify", total or None, is_shown=is_shown) as advance:
            await verify(url, verification, since, advance)
        return environment.clock.monotonic() - began


def report_of(verification: Verification, elapsed_s: float) -> Json:
    attempts = verification.rows["attempts"]
    return {
        "is_clean": verification.is_clean,
        "checks": [line_of(verification, claim) for claim in CLAIMS],
        "warning_checks": [line_of(verification, claim) for claim in WARNINGS],
        "violations": [item_of(found) for found in verification.violations],
        "warnings": [item_of(found) for found in verification.warnings],
        "rows": dict(verification.rows),
        "elapsed_s": round(elapsed_s, 3),
        "attempts_per_s": round(attempts / elapsed_s) if elapsed_s else None,
    }


def line_of(verification: Verification, claim: Claim) -> Json:
    return {
        "check": claim.name,
        "says": claim.says,
        "rows": verification.looked_at(claim),
        "found": verification.counts[claim.name],
    }


def item_of(found: Violation) -> Json:
    task = None if found.task is None else str(found.task)
    return {"check": found.invariant, "task": task, "problem": found.problem}


def print_report(report: Json) -> None:
    print_drawn(make_table(report["checks"] + report["warning_checks"], COLUMNS))
    print_found("violation", report["violations"], report["checks"])
    print_found("warning", report["warnings"], report["warning_checks"])
    rows, rate = report["rows"], report["attempts_per_s"]
    click.echo(
        f"\n{rows.get('tasks', 0):,} tasks and {rows.get('attempts', 0):,} attempts"
        f" in {report['elapsed_s']:.1f} s, {rate or 0:,} attempts a second"
    )


def print_found(kind: str, items: list[Json], lines: list[Json]) -> None:
    for item in items:
        say(f"{kind} {item['check']} {item['task'] or '-'}: {item['problem']}")
    hidden = sum(line["found"] for line in lines) - len(items)
    if hidden:
        note(f"{hidden:,} more {kind}s are not shown; raise --limit")
