"""`duly migrate`: the schema forward, back, or just its status."""

import asyncio
from typing import Any

import click
import msgspec

from duly.cli.options import database_flags, json_flag, load
from duly.cli.output import busy, worded_instant
from duly.environment import Environment, system_environment
from duly.settings import Settings
from duly.store.bootstrap import open_target
from duly.store.database import check_server, connect
from duly.store.migrate import Migrator
from duly.telemetry import configure_logs


@click.command("migrate")
@database_flags
@click.option("--status", is_flag=True, help="Show applied and pending migrations.")
@click.option(
    "--to", type=click.IntRange(min=0), metavar="N", help="Migrate to version N, also back."
)
@json_flag
def command(status: bool, to: int | None, as_json: bool, **flags: Any) -> None:
    """Bring the database schema to this version of duly, or to version N."""
    settings = load(flags).settings
    configure_logs(settings.log_level, settings.log_format)
    environment = system_environment()
    if status:
        with busy("looking at the database", is_shown=not as_json):
            rows = asyncio.run(read_status(settings, environment))
        show_status(rows, as_json=as_json)
    else:
        with busy("migrating", is_shown=not as_json):
            ran = asyncio.run(migrate(settings, environment, to))
        show_ran(ran, as_json=as_json)


async def read_status(settings: Settings, environment: Environment) -> list[dict[str, Any]]:
    async with open_target(settings, environment) as target:
        migrator = Migrator(target.owner_url, environment)
        applied = {entry.number: entry for entry in await migrator.applied()}
    known = {migration.number: migration.name for migration in migrator.migrations}
    return [
        {
            "number": number,
            "name": known.get(number) or applied[number].name,
            "applied_at": applied[number].applied_at if number in applied else None,
        }
        for number in sorted(known.keys() | applied.keys())
    ]


async def migrate(settings: Settings, environment: Environment, to: int | None) -> list[str]:
    async with open_target(settings, environment) as target:
        owner = await connect(target.owner_url)
        try:
            await check_server(
                owner, target.owner_url, allow_unsafe=settings.allow_unsafe_durability
            )
        finally:
            await owner.close()
        return await Migrator(target.owner_url, environment).migrate(to)


def show_status(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"items": rows}).decode())
        return
    for row in rows:
        applied_at = row["applied_at"]
        state = worded_instant(applied_at.isoformat()) if applied_at else "pending"
        click.echo(f"{row['name']:40} {state}")


def show_ran(ran: list[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"ran": ran}).decode())
        return
    for name in ran:
        click.echo(name)
    click.echo(f"{len(ran)} migrations ran" if ran else "nothing to do")
