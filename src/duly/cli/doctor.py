"""`duly doctor`: check an installation and print a remedy for each problem."""

import asyncio
from typing import Any

import click
import msgspec

from duly.cli.options import database_flags, json_flag, load_to_look
from duly.cli.output import busy, clean, screen_of_output, show
from duly.cli.tables import folded, styled
from duly.domain.diagnosis import Facts, Finding, Severity, diagnose
from duly.environment import Environment, system_environment
from duly.settings import Settings
from duly.store.bootstrap import open_target
from duly.store.doctor import read_facts
from duly.store.migrate import read_migrations
from duly.telemetry import configure_logs

# From the worst on.
STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}
INDENT = 19
MARKS = {Severity.OK: "ok", Severity.WARNING: "warn", Severity.ERROR: "FAIL"}


@click.command("doctor")
@database_flags
@json_flag
def command(as_json: bool, **flags: Any) -> None:
    """Check the database behind duly: version, durability, clock, connections, pooler, sessions
    that pin old rows, autovacuum, partitions, slots, roles, and roles that fail on any node. Reads
    only. Exit code 1 if something is broken.
    """
    settings = load_to_look(flags).settings
    configure_logs(settings.log_level, settings.log_format)
    with busy("looking at the database", is_shown=not as_json):
        findings = diagnose(asyncio.run(examine(settings, system_environment())))
    if as_json:
        items = [finding._asdict() for finding in findings]
        click.echo(msgspec.json.encode({"items": items}).decode())
    else:
        print_findings(findings)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise click.exceptions.Exit(1)


async def examine(settings: Settings, environment: Environment) -> Facts:
    async with open_target(settings, environment) as target:
        wanted = len(read_migrations())
        facts = await read_facts(
            target.owner_url if target.embedded is not None else target.engine_url,
            environment,
            schema_wanted=wanted,
        )
        facts.is_told_pooled = settings.database_pooler
        return facts


def print_findings(findings: list[Finding]) -> None:
    """What is broken first; of equals, in the order of the checks."""
    screen = screen_of_output()
    order = list(STYLES)
    lines = []
    for finding in sorted(findings, key=lambda each: order.index(each.severity)):
        mark = styled(f"{MARKS[finding.severity]:4}", STYLES[finding.severity], screen)
        room = None if screen.width is None else max(screen.width - INDENT, INDENT)
        said = folded(clean(finding.found), room)
        if finding.remedy:
            said += folded(clean(f"-> {finding.remedy}"), room)
        lines.append(f"{mark}  {finding.check:12} {said[0]}")
        lines += [" " * INDENT + line for line in said[1:]]
    show(lines)
