"""API session of a command: connection flags, requests, and how an answer is shown.

What a command asks is in its own file; what is refused becomes one line in main.py.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from duly.cli.options import api_flags
from duly.cli.output import busy, note
from duly.client.http_sync import PlainConnection
from duly.client.paths import path as path
from duly.client.server import find_server
from duly.domain.errors import ConfigurationError
from duly.environment import SystemClock

PAGE = 200
# A filter that matches next to nothing is not followed through a million tasks.
SEARCH_S_MAX = 10.0

Json = dict[str, Any]


class ApiSession:
    """One command's session with the API."""

    def __init__(self, connection: PlainConnection, tenant: str | None, *, as_json: bool) -> None:
        self.connection = connection
        self.tenant = tenant
        self.as_json = as_json

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        asked = {"tenant": self.tenant, **(query or {})}
        with busy("waiting for an answer", is_shown=not self.as_json):
            return self.connection.call(
                method, path, body, query=asked, idempotency_key=idempotency_key
            )

    def page(
        self, path: str, query: Mapping[str, object], limit: int, cursor: str | None = None
    ) -> Json:
        """Up to `limit` items; fewer, a cursor and `searched`, if looking for more takes long."""
        items: list[Any] = []
        searched = 0
        clock = SystemClock()
        ends_at = clock.monotonic() + SEARCH_S_MAX
        while True:
            size = min(PAGE, limit - len(items))
            found = self.ask("GET", path, query={**query, "limit": size, "cursor": cursor})
            items += found["items"]
            cursor = found["next_cursor"]
            if cursor is None or len(items) >= limit:
                return {"items": items, "next_cursor": cursor}
            searched += found.get("searched", 0)
            if searched and clock.monotonic() >= ends_at:
                return {"items": items, "next_cursor": cursor, "searched": searched}

    def show(self, answer: Any, render: Callable[[Any], None]) -> None:
        if self.as_json:
            click.echo(msgspec.json.encode(answer).decode())
        else:
            render(answer)

    def show_page(self, page: Json, render: Callable[[list[Any]], None]) -> None:
        if not self.as_json and page.get("searched") and not page["items"]:
            note(f"no match yet: {page['searched']:,} searched so far")
        else:
            self.show(page, lambda found: render(found["items"]))
        if not self.as_json and page["next_cursor"] is not None:
            more = (
                f"{page['searched']:,} searched so far, continue"
                if page.get("searched")
                else ("there is more to look at")
            )
            note(f"{more}: --cursor {page['next_cursor']}")


def over_api(work: Callable[..., int | None]) -> Callable[..., int | None]:
    """A click callback from a function of an ApiSession, which may return an exit code."""

    @functools.wraps(work)
    def callback(
        *, url: str | None, api_key: str | None, tenant: str | None, as_json: bool, **flags: Any
    ) -> int | None:
        with connect(url, api_key) as connection:
            return work(ApiSession(connection, tenant, as_json=as_json), **flags)

    return api_flags(callback)


def connect(url: str | None, api_key: str | None) -> PlainConnection:
    server = find_server(url, api_key)
    if not (server.api_key.isascii() and server.api_key.isprintable()):
        raise ConfigurationError(problem="the API key is not one: it has characters no key has")
    return PlainConnection(server)


def given(**fields: object) -> Json:
    """Only the values that were given."""
    return {name: value for name, value in fields.items() if value is not None}
