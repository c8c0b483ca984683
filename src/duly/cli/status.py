"""`duly status`: the current state of the installation on one screen. Reads only."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from duly.cli.api_session import ApiSession, Json, over_api
from duly.cli.nodes import in_words
from duly.cli.output import clean, make_console, make_table, show, worded, worded_instant
from duly.cli.values import duration
from duly.client.errors import Forbidden, Unavailable, Unreachable

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

TENANTS_SHOWN = 20
NODES_SHOWN = 20
SLOTS_MAX = 1024
INTERVAL_S_MIN = 0.2
# Counting is what a look costs: the more tenants are shown, the sooner each count stops.
COUNTED_MAX = 10_000
COUNTED_MIN = 1_000
# What a key that may not list the tenants sees.
OWN = "(this key's)"
NODE_COLUMNS = ("name", "version", "roles", "slots", "failing", "seen_at")
TENANT_COLUMNS = (
    "tenant",
    "in_flight",
    "started_per_s",
    "lag_p50_s",
    "lag_p99_s",
    "drain",
    "dead_letters",
)
BAND_COLUMNS = ("tenant", "band", "ready", "scheduled", "oldest_ready_s")
BREAKER_COLUMNS = ("tenant", "kind", "name", "open_until", "reason")


@click.command("status")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--interval",
    type=duration,
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Refresh interval, with --watch.",
)
@over_api
def command(session: ApiSession, watch: bool, interval: float) -> None:
    """Show nodes, slots, backlog, lag, dead letters and open breakers.

    A key that reaches the installation sees every tenant, others their own. With --watch --json,
    every look is a document on a line of its own.
    """
    if watch:
        keep_watching(session, max(interval, INTERVAL_S_MIN))
    else:
        session.show(read_status(session), print_status)


def keep_watching(session: ApiSession, interval_s: float) -> None:
    """Ctrl-C is how it ends, and no failure."""
    pause = threading.Event()
    with contextlib.suppress(KeyboardInterrupt):
        if not session.as_json and sys.stdout.isatty():
            watch_on_terminal(session, pause, interval_s)
        while True:
            session.show(read_status(session), print_status)
            sys.stdout.flush()
            pause.wait(interval_s)


def watch_on_terminal(session: ApiSession, pause: threading.Event, interval_s: float) -> None:
    """A server that is away for a moment is shown as such; the watch goes on."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    seen: RenderableType = Text("asking …")
    with Live(seen, console=make_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                seen = screen_of(read_status(session))
                live.update(seen, refresh=True)
            except (Unreachable, Unavailable) as error:
                problem = Text(clean(f"duly: {error}"), style="red")
                live.update(Group(problem, seen), refresh=True)
            pause.wait(interval_s)


def read_status(session: ApiSession) -> Json:
    nodes = unless_forbidden(session, "/v1/nodes", NODES_SHOWN)
    slots = unless_forbidden(session, "/v1/shards", SLOTS_MAX)
    names, has_more = tenant_names(session)
    return {
        "nodes": None if nodes is None else nodes["items"],
        "slots": None if slots is None else summed_slots(slots["items"]),
        "tenants": [read_tenant(session, name, count_max(len(names))) for name in names],
        "has_more_tenants": has_more,
    }


def unless_forbidden(session: ApiSession, path: str, limit: int) -> Json | None:
    """None for what this key may not see: a producer's status is a smaller one."""
    try:
        return session.page(path, {}, limit)
    except Forbidden:
        return None


def tenant_names(session: ApiSession) -> tuple[list[str | None], bool]:
    """None stands for the key's own."""
    if session.tenant is not None:
        return [session.tenant], False
    found = unless_forbidden(session, "/v1/tenants", TENANTS_SHOWN)
    if found is None:
        return [None], False
    return [item["name"] for item in found["items"]], found["next_cursor"] is not None


def count_max(tenants: int) -> int:
    return max(COUNTED_MAX // max(tenants, 1), COUNTED_MIN)


def read_tenant(session: ApiSession, name: str | None, most: int) -> Json:
    standing: Json = session.ask("GET", "/v1/stats/now", query={"tenant": name, "count_max": most})
    return {"tenant": name or OWN, **standing}


def summed_slots(slots: list[Json]) -> Json:
    ownerless = [slot["slot"] for slot in slots if not slot["is_owned"]]
    return {"count": len(slots), "owned": len(slots) - len(ownerless), "ownerless": ownerless}


def print_status(status: Json) -> None:
    show(screen_of(status))


def screen_of(status: Json) -> "Group":
    from rich.console import Group

    return Group(*parts_of(status))


def parts_of(status: Json) -> "Iterator[RenderableType]":
    from rich.text import Text

    if status["nodes"] is not None:
        nodes = [node for node in status["nodes"] if node["is_live"]]
        silent = len(status["nodes"]) - len(nodes)
        failing = sum(bool(node["failing"]) for node in nodes)
        text = f"nodes: {len(nodes)} live, {silent} silent"
        yield title(f"{text}, {failing} failing" if failing else text, is_bad=bool(failing))
        yield make_table([in_words(node) for node in nodes], NODE_COLUMNS)
    if status["slots"] is not None:
        slots = status["slots"]
        text = f"slots: {slots['owned']} of {slots['count']} owned"
        yield title(text, is_bad=bool(slots["ownerless"]))
    tenants = [with_bounds(tenant) for tenant in status["tenants"]]
    yield title("tenants")
    yield make_table(tenants, TENANT_COLUMNS)
    if status["has_more_tenants"]:
        yield Text(f"the first {len(tenants)} are shown; name others with --tenant")
    bands = [{"tenant": each["tenant"], **band} for each in tenants for band in each["bands"]]
    yield title("waiting")
    yield make_table(bands, BAND_COLUMNS)
    breakers = [
        {"tenant": each["tenant"], **breaker} for each in tenants for breaker in each["breakers"]
    ]
    yield title(f"open breakers: {len(breakers)}", is_bad=bool(breakers))
    if breakers:
        yield make_table(breakers, BREAKER_COLUMNS)
    if tenants:
        yield Text(f"at {worded_instant(tenants[0]['at'])}", style="dim")


def title(text: str, *, is_bad: bool = False) -> "RenderableType":
    from rich.text import Text

    return Text(f"\n{text}", style="bold red" if is_bad else "bold")


def with_bounds(tenant: Json) -> Json:
    """Counts that stopped at the bound say so; an unknown drain is not a drain of nothing."""
    most = tenant["count_max"]
    bands = [
        {
            **band,
            "ready": counted(band["ready"], most),
            "scheduled": counted(band["scheduled"], most),
        }
        for band in tenant["bands"]
    ]
    drain = "unknown" if tenant["drain_s"] is None else worded("drain_s", tenant["drain_s"])
    if tenant["drain_s"] and any(band["ready"] >= most for band in tenant["bands"]):
        drain = f"{drain} or more"
    letters = counted(tenant["dead_letters"], most)
    return {**tenant, "bands": bands, "dead_letters": letters, "drain": drain}


def counted(count: int, most: int) -> str | int:
    return f"{count:,} or more" if count >= most else count
