"""`duly doctor`: check an installation and print a remedy for each problem."""

import asyncio
from typing import Any

import click
import msgspec

from duly.cli.options import database_flags, json_flag, load_to_look
from duly.domain.diagnosis import Facts, Finding, Severity, diagnose
from duly.environment import Environment, system_environment
from duly.settings import Settings
from duly.store.bootstrap import open_target
from duly.store.doctor import read_facts
from duly.store.migrate import read_migrations
from duly.telemetry import configure_logs

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
    findings = diagnose(asyncio.run(examine(settings, system_environment())))
    if as_json:
        items = [finding._asdict() for finding in findings]
        click.echo(msgspec.json.encode({"items": items}).decode())
    else:
        show(findings)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise click.exceptions.Exit(1)


async def examine(settings: Settings, environment: Environment) -> Facts:
    async with open_target(settings, environment) as place:
        wanted = len(read_migrations())
        facts = await read_facts(
            place.owner_url if place.embedded is not None else place.engine_url,
            environment,
            schema_wanted=wanted,
        )
        facts.is_told_pooled = settings.database_pooler
        return facts


def show(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"{MARKS[finding.severity]:4}  {finding.check:12} {finding.found}")
        if finding.remedy:
            click.echo(f"      {'':12} -> {finding.remedy}")
