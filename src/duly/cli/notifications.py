"""`duly notifications`: who is told of dead letters, missed schedules and broken bounds."""

import click

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.options import yes_flag
from duly.cli.output import clean, confirm, print_card, print_table, wide_flag
from duly.cli.suggestions import NOTIFICATION_NAMES
from duly.cli.values import duration, pair

COLUMNS = ("name", "to", "told_of", "per_minute")
LEADING = ("name", "to", "told_of", "per_minute", "lag_since", "failing_since")
EVENTS = {"dead_letters": "dead letters", "missed_schedules": "missed schedules"}


@click.group("notifications")
def command() -> None:
    """Notifications of failures: list, set, test, delete."""


@command.command("list")
@wide_flag
@over_api
def list_notifications(session: ApiSession) -> None:
    """List the notifications of the tenant."""
    page = session.ask("GET", "/v1/notifications")
    session.show_page(
        page,
        lambda items: print_table([shown(item) for item in items], COLUMNS, "no notifications"),
    )


@command.command("show")
@click.argument("name", shell_complete=NOTIFICATION_NAMES)
@over_api
def show(session: ApiSession, name: str) -> None:
    """Show a notification, and which of its bounds is broken."""
    session.show(session.ask("GET", path("notifications", name)), print_one)


@command.command("set")
@click.argument("name", shell_complete=NOTIFICATION_NAMES)
@click.option("--webhook", metavar="URL", help="The webhook that is told, signed as all webhooks.")
@click.option(
    "--header", "headers", multiple=True, type=pair, metavar="NAME:VALUE", help="Of the webhook."
)
@click.option("--mail", multiple=True, metavar="ADDRESS", help="Who is told by mail.")
@click.option("--command", is_flag=True, help="Run the command of the server's configuration.")
@click.option("--dead-letters", is_flag=True, help="Tell of tasks that failed for good.")
@click.option("--missed-schedules", is_flag=True, help="Tell of occurrences that were missed.")
@click.option(
    "--lag", type=duration, metavar="DURATION", help="Tell when a ready task waits longer."
)
@click.option(
    "--failures-per-minute", type=float, metavar="NUMBER", help="Tell of more dead letters."
)
@click.option("--per-minute", type=int, metavar="NUMBER", help="Messages a minute. Default: 10.")
@over_api
def put(
    session: ApiSession,
    name: str,
    webhook: str | None,
    headers: tuple[tuple[str, str], ...],
    mail: tuple[str, ...],
    command: bool,
    dead_letters: bool,
    missed_schedules: bool,
    lag: float | None,
    failures_per_minute: float | None,
    per_minute: int | None,
) -> None:
    """Make a notification, or describe it anew: what is not named is off."""
    to = given(url=webhook, headers=dict(headers) or None, mail=list(mail) or None)
    asked = {
        "to": {**to, "command": True} if command else to,
        "dead_letters": dead_letters,
        "missed_schedules": missed_schedules,
        **given(lag_s=lag, failures_per_minute=failures_per_minute, per_minute=per_minute),
    }
    session.show(session.ask("PUT", path("notifications", name), asked), print_one)


@command.command("test")
@click.argument("name", shell_complete=NOTIFICATION_NAMES)
@over_api
def test(session: ApiSession, name: str) -> None:
    """Send a message that says it is a test; prints the task that delivers it."""
    sent = session.ask("POST", path("notifications", name, "test"))
    session.show(sent, lambda made: click.echo(clean(made["task"])))


@command.command("delete")
@click.argument("name", shell_complete=NOTIFICATION_NAMES)
@yes_flag
@over_api
def delete(session: ApiSession, name: str, yes: bool) -> None:
    """Delete a notification, with what it has not told yet."""
    confirm(f"delete the notification {clean(name)}?", yes=yes, as_json=session.as_json)
    session.ask("DELETE", path("notifications", name))
    gone = {"name": name, "deleted": True}
    session.show(gone, lambda _: click.echo(f"{clean(name)} is deleted"))


def print_one(item: Json) -> None:
    print_card(shown(item), LEADING)


def shown(item: Json) -> Json:
    """For people: where it goes and what it tells of, each in one column."""
    to = item["to"]
    where = to.get("url") or ", ".join(to.get("mail") or []) or "command"
    told_of = [words for name, words in EVENTS.items() if item[name]]
    if item["lag_s"] is not None:
        told_of.append(f"lag over {item['lag_s']:g} s")
    if item["failures_per_minute"] is not None:
        told_of.append(f"over {item['failures_per_minute']:g} dead letters a minute")
    rest = {
        name: value
        for name, value in item.items()
        if name not in (*EVENTS, "lag_s", "failures_per_minute")
    }
    return {**rest, "to": where, "told_of": ", ".join(told_of)}
