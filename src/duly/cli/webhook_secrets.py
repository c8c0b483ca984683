"""`duly webhook-secrets`: what signs webhooks. The text of a secret is shown once, by `create`."""

import click

from duly.cli.api_session import ApiSession, Json, given, over_api, path
from duly.cli.options import yes_flag
from duly.cli.output import clean, confirm, note, print_card, print_table, wide_flag
from duly.cli.suggestions import SECRET_IDS
from duly.cli.values import duration

COLUMNS = ("id", "created_at", "created_by", "expires_at")
LEADING = ("secret", "id", "created_at", "created_by", "expires_at")


@click.group("webhook-secrets")
def command() -> None:
    """Secrets that sign webhooks: list, create, delete. Creating one is also the rotation."""


@command.command("list")
@wide_flag
@over_api
def list_secrets(session: ApiSession) -> None:
    """List the webhook secrets of the tenant, without their texts."""
    page = session.ask("GET", "/v1/webhook-secrets")
    session.show_page(page, lambda items: print_table(items, COLUMNS, "no webhook secrets"))


@command.command("create")
@click.option(
    "--grace",
    type=duration,
    metavar="DURATION",
    help="How long earlier secrets sign beside the new one. Default: 1d.",
)
@over_api
def create(session: ApiSession, grace: float | None) -> None:
    """Create a secret, shown only now. Earlier ones sign beside it for a while."""
    asked = given(grace_s=grace)
    session.show(session.ask("POST", "/v1/webhook-secrets", asked), print_made)


@command.command("delete")
@click.argument("secret_id", metavar="ID", shell_complete=SECRET_IDS)
@yes_flag
@over_api
def delete(session: ApiSession, secret_id: str, yes: bool) -> None:
    """Delete a secret: it signs nothing more, within seconds."""
    question = f"delete the webhook secret {clean(secret_id)}?"
    confirm(question, yes=yes, as_json=session.as_json)
    session.ask("DELETE", path("webhook-secrets", secret_id))
    gone = {"id": secret_id, "deleted": True}
    session.show(gone, lambda _: click.echo(f"{clean(secret_id)} is deleted"))


def print_made(made: Json) -> None:
    print_card(made, LEADING)
    note("keep the secret: it is not shown again")
