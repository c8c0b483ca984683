"""`duly relay`: forward the outbox of a producer in another PostgreSQL, until SIGTERM."""

import asyncio
import signal

import click
import msgspec

from duly.cli.options import API_FLAGS, json_flag, with_flags
from duly.cli.values import duration
from duly.client.asynchronous import AsyncClient
from duly.client.relay import BATCH_MAX, DDL, POLL_S, OnStep, Relay, Round, Step, create_outbox
from duly.environment import CrashPoint, Environment, system_environment

# While duly is asked, rows are locked in the producer's database: one try, and not for long.
TIMEOUT_S = 20.0
POINTS: dict[Step, CrashPoint] = {
    "before_submit": CrashPoint.RELAY_BEFORE_SUBMIT,
    "after_submit": CrashPoint.RELAY_AFTER_SUBMIT,
    "after_delete": CrashPoint.RELAY_AFTER_DELETE,
    "after_commit": CrashPoint.RELAY_AFTER_COMMIT,
}
# Where and with which key; the tenant is the key's, and there is no other to name.
SERVER_FLAGS = API_FLAGS[:2]
POLL_S_MIN, POLL_S_MAX = 0.01, 3600.0


def poll_interval(text: str) -> float:
    seconds = duration(text)
    if not POLL_S_MIN <= seconds <= POLL_S_MAX:
        raise click.BadParameter(f"{text!r} is not from 0.01s to 1h")
    return seconds


@click.command("relay")
@click.option(
    "--source-url",
    envvar="DULY_SOURCE_URL",
    metavar="URL",
    help="The database with the outbox. Better: DULY_SOURCE_URL, which other users cannot see.",
)
@click.option("--create-table", is_flag=True, help="Create the outbox tables, and exit.")
@click.option("--sql", is_flag=True, help="Print the SQL that creates them, and exit.")
@click.option("--once", is_flag=True, help="Exit when the outbox is empty.")
@click.option(
    "--batch-max",
    type=click.IntRange(1, 10_000),
    default=BATCH_MAX,
    show_default=True,
    metavar="N",
    help="Rows per batch.",
)
@click.option(
    "--poll",
    "poll_s",
    type=poll_interval,
    default=f"{POLL_S:g}s",
    show_default=True,
    metavar="DURATION",
    help="Poll interval, without notifications.",
)
@with_flags(SERVER_FLAGS)
@json_flag
def command(
    source_url: str | None,
    create_table: bool,
    sql: bool,
    once: bool,
    batch_max: int,
    poll_s: float,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Forward what a producer wrote to the table duly_outbox of its own PostgreSQL. Each row
    becomes one task, whatever is killed or restarted; rows that duly refuses are kept in
    duly_outbox_refused. Start as many as you like.
    """
    if sql:
        click.echo(DDL, nl=False)
        return
    if not source_url:
        raise click.UsageError("relay needs --source-url or DULY_SOURCE_URL")
    if create_table:
        asyncio.run(create_outbox(source_url))
        return
    reporter = Reporter(as_json=as_json)
    environment = system_environment()
    code = asyncio.run(
        relay(source_url, url, api_key, batch_max, poll_s, reporter, environment, once=once)
    )
    if code:
        raise click.exceptions.Exit(code)


async def relay(
    source_url: str,
    url: str | None,
    api_key: str | None,
    batch_max: int,
    poll_s: float,
    reporter: "Reporter",
    environment: Environment,
    *,
    once: bool,
) -> int:
    async with AsyncClient(url, api_key, timeout_s=TIMEOUT_S, tries=1) as client:
        worker = Relay(
            source_url,
            client,
            batch_max=batch_max,
            poll_s=poll_s,
            on_step=crashing(environment),
            report=reporter.report,
        )
        if once:
            return reporter.total(await worker.drain())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, worker.stop)
        reporter.ready()
        await worker.run()
    return 0


def crashing(environment: Environment) -> OnStep:
    async def on_step(step: Step) -> None:
        await environment.crash_point(POINTS[step])

    return on_step


class Reporter:
    """What a person or a program is told: refusals, and when trouble begins and ends."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.problem: str | None = None

    def ready(self) -> None:
        if self.as_json:
            self.line({"ready": True})
        else:
            click.echo("duly relay is running. Ctrl-C stops it.")

    def report(self, done: Round) -> None:
        if self.as_json:
            if done != Round():
                self.line(msgspec.to_builtins(done))
            return
        if done.refused:
            click.echo(f"{done.refused} rows were refused; see duly_outbox_refused", err=True)
        if done.problem is not None and done.problem != self.problem:
            click.echo(f"rows have to wait: {done.problem}", err=True)
        if done.problem is None and self.problem is not None:
            click.echo("rows are forwarded again", err=True)
        self.problem = done.problem

    def total(self, done: Round) -> int:
        if not self.as_json:
            click.echo(f"{done.stored} forwarded, {done.refused} refused, {done.waiting} wait")
        return 1 if done.problem is not None or done.refused else 0

    def line(self, fields: object) -> None:
        click.echo(msgspec.json.encode(fields).decode())
