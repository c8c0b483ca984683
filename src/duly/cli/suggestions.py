"""Completion of ids and names in a shell: the server is asked, for a moment, and any trouble means
no suggestions: what a shell shows between two words has no room for an error."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from duly.client.http_sync import PlainConnection

Json = dict[str, Any]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
# A key press waits for it.
TIMEOUT_S = 1.5
SUGGESTED_MAX = 200
# Beside each suggestion, in shells that show it.
HELP_CHARACTERS_MAX = 60


def suggest(route: str, field: str, described_by: Sequence[str] = (), **query: object) -> Complete:
    """What a list of the API has in a field, with other fields as its description. Where a kind was
    named before it, only of that kind."""

    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            items = ask(context, route, {"limit": SUGGESTED_MAX, **query})
        except trouble():
            return []
        return [
            CompletionItem(item[field], help=described(item, described_by))
            for item in items
            if fits(item.get(field), incomplete) and is_of_kind(item, context.params.get("kind"))
        ]

    return complete


def trouble() -> tuple[type[Exception], ...]:
    from duly.domain.errors import DulyError

    return (DulyError, OSError, ValueError, click.ClickException)


def ask(context: click.Context, route: str, query: Json) -> list[Json]:
    with connect(context.params) as connection:
        tenant = context.params.get("tenant")
        found = connection.call("GET", route, query={"tenant": tenant, **query})
    items: list[Json] = found["items"]
    return items


def connect(given: Json) -> "PlainConnection":
    from duly.client.http_sync import PlainConnection
    from duly.client.server import find_server

    server = find_server(given.get("url"), given.get("api_key"), os.environ)
    return PlainConnection(server, TIMEOUT_S, tries=1)


def fits(value: object, incomplete: str) -> bool:
    """A name with a line break or a blank would become several words."""
    return isinstance(value, str) and value.startswith(incomplete) and value.isprintable()


def is_of_kind(item: Json, kind: str | None) -> bool:
    return kind is None or item.get("kind") in (None, kind)


def described(item: Json, names: Sequence[str]) -> str | None:
    words = [str(item[name]) for name in names if item.get(name) is not None]
    return " ".join(" ".join(words).split())[:HELP_CHARACTERS_MAX] or None


TASK_IDS = suggest("/v1/tasks", "id", ("state", "type"))
# Only what can still be changed.
UNFINISHED_TASK_IDS = suggest("/v1/tasks", "id", ("state", "type"), order="run_at")
TASK_TYPES = suggest("/v1/task-types", "name")
WORKFLOW_IDS = suggest("/v1/workflows", "id", ("state", "name"))
WORKFLOW_TYPES = suggest("/v1/workflow-types", "name", ("version",))
SCHEDULE_NAMES = suggest("/v1/schedules", "name", ("state", "cron"))
DEAD_LETTER_IDS = suggest("/v1/dead-letters", "id", ("type", "reason"))
BULK_IDS = suggest("/v1/bulk", "id", ("action", "state"))
TENANT_NAMES = suggest("/v1/tenants", "name")
KEY_IDS = suggest("/v1/keys", "id", ("name", "role"))
SECRET_IDS = suggest("/v1/webhook-secrets", "id", ("created_at",), limit=None)
NOTIFICATION_NAMES = suggest("/v1/notifications", "name", limit=None)
PAUSED_NAMES = suggest("/v1/pauses", "name", ("kind", "reason"))
BREAKER_NAMES = suggest("/v1/breakers", "name", ("kind", "reason"))
