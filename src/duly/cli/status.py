"""`duly status`: the state of the installation on one screen, problems first. Reads only."""

import contextlib
import shutil
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import click

from duly.cli.api_session import ApiSession, Json, over_api
from duly.cli.nodes import ROLES, in_words
from duly.cli.output import (
    clean,
    drawing,
    heading,
    left_out_text,
    make_table,
    screen_of_output,
    show,
    wide_flag,
    worded,
    worded_instant,
    worded_seconds,
)
from duly.cli.sparklines import sparkline
from duly.cli.tables import folded, styled
from duly.cli.values import duration
from duly.client.errors import Forbidden, Unavailable, Unreachable

TENANTS_SHOWN = 20
NODES_SHOWN = 20
PROBLEMS_SHOWN = 20
SLOTS_MAX = 1024
POOLS_SHOWN = 20
INTERVAL_S_MIN = 0.2
# Counting is what a look costs: the more tenants are shown, the sooner each count stops.
COUNTED_MAX = 10_000
# Sparklines of --watch: as many as fit beside their names at 80 columns.
LOOKS_DRAWN = 48
HISTORY_COLUMNS = ("figure", "now", "over_time")
COUNTED_MIN = 1_000
# A due task that waits so long behind live workers means that they do not keep up.
BEHIND_S = 60.0
# A backlog that grows by so much, while tasks wait so long: more comes than is done.
GROWING_PER_MIN = 10
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
POOL_COLUMNS = ("tenant", "name", "workers", "oldest_ready_s")
WORKERS_COUNTED_MAX = 1_000
BREAKER_COLUMNS = ("tenant", "kind", "name", "open_until", "reason")
# A screen of its own, without the cursor, and back to what was there before.
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


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
@wide_flag
@over_api
def command(session: ApiSession, watch: bool, interval: float) -> None:
    """Show problems first, then nodes, slots, backlog, lag, dead letters and open breakers.

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
            with drawing():
                watch_on_terminal(session, pause, interval_s)
        while True:
            session.show(read_status(session), print_status)
            sys.stdout.flush()
            pause.wait(interval_s)


def watch_on_terminal(session: ApiSession, pause: threading.Event, interval_s: float) -> None:
    """A server that is away for a moment is shown as such; the watch goes on."""
    seen = ["asking …"]
    history: deque[Json] = deque(maxlen=LOOKS_DRAWN)
    sys.stdout.write(ENTER_SCREEN)
    try:
        while True:
            problem = []
            try:
                status = read_status(session)
                history.append(figures_of(status))
                seen = [*screen_of(status), *history_lines(history, interval_s)]
            except (Unreachable, Unavailable) as error:
                problem = [styled(clean(f"duly: {error}"), "red", screen_of_output())]
            rows = shutil.get_terminal_size().lines
            shown = f"{CLEAR_LINE}\r\n".join([*problem, *seen][: rows - 1])
            sys.stdout.write(f"{HOME}{shown}{CLEAR_LINE}{CLEAR_BELOW}")
            sys.stdout.flush()
            pause.wait(interval_s)
    finally:
        sys.stdout.write(LEAVE_SCREEN)
        sys.stdout.flush()


def figures_of(status: Json) -> Json:
    """What is drawn over time: of all tenants that are shown together."""
    tenants = status["tenants"]
    lags = [tenant["lag_p99_s"] for tenant in tenants if tenant["lag_p99_s"] is not None]
    return {
        "ready": sum(band["ready"] for tenant in tenants for band in tenant["bands"]),
        "in_flight": sum(tenant["in_flight"] for tenant in tenants),
        "started_per_s": sum(tenant["started_per_s"] for tenant in tenants),
        "lag_p99_s": max(lags, default=None),
        "dead_letters": sum(tenant["dead_letters"] for tenant in tenants),
    }


def history_lines(history: Sequence[Json], interval_s: float) -> Iterator[str]:
    """A line for each figure: since the watch began, the newest at the right."""
    rows = [
        {"figure": heading(name), "now": worded(name, value)}
        | {"over_time": sparkline([look[name] for look in history])}
        for name, value in history[-1].items()
    ]
    title = f"the last {len(history)} looks, one each {worded_seconds(interval_s)}"
    yield from section(title, rows, HISTORY_COLUMNS)


def read_status(session: ApiSession) -> Json:
    nodes = unless_forbidden(session, "/v1/nodes", NODES_SHOWN)
    slots = unless_forbidden(session, "/v1/shards", SLOTS_MAX)
    names, has_more = tenant_names(session)
    status = {
        "nodes": None if nodes is None else nodes["items"],
        "slots": None if slots is None else summed_slots(slots["items"]),
        "tenants": [read_tenant(session, name, count_max(len(names))) for name in names],
        "has_more_tenants": has_more,
    }
    return {"problems": list(problems_of(status)), **status}


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
    return {"tenant": name or OWN, **standing, "workers": read_workers(session, name)}


def read_workers(session: ApiSession, name: str | None) -> Json | None:
    """How many live ones there are, and how many serve each pool."""
    try:
        page = session.page("/v1/workers", {"tenant": name}, WORKERS_COUNTED_MAX)
    except Forbidden:
        return None
    pools = Counter(pool for worker in page["items"] for pool in worker["pools"])
    has_more = page["next_cursor"] is not None
    return {
        "count": len(page["items"]),
        "has_more": has_more,
        "by_pool": dict(sorted(pools.items())),
    }


def summed_slots(slots: list[Json]) -> Json:
    ownerless = [slot["slot"] for slot in slots if not slot["is_owned"]]
    return {"count": len(slots), "owned": len(slots) - len(ownerless), "ownerless": ownerless}


def problems_of(status: Json) -> Iterator[str]:
    """What keeps tasks from running, the widest first."""
    if status["nodes"] is not None:
        live = [node for node in status["nodes"] if node["is_live"]]
        roles = {role for node in live for role in node["roles"]}
        if missing := [role for role in ROLES if role not in roles]:
            yield f"no live node has the role {', '.join(missing)}"
        for node in live:
            for role, problem in node["failing"].items():
                yield f"node {node['name']}: role {role} fails: {problem}"
        yield from carrier_problems(live)
    if status["slots"] is not None and status["slots"]["ownerless"]:
        slots = status["slots"]
        yield f"{len(slots['ownerless'])} of {slots['count']} slots have no owner"
    for tenant in status["tenants"]:
        yield from tenant_problems(tenant)


def carrier_problems(nodes: list[Json]) -> Iterator[str]:
    carriers = {node["name"]: node["carrier"] for node in nodes if node["carrier"] is not None}
    for name, carrier in carriers.items():
        if carrier["problem"]:
            where = "go through PostgreSQL" if carrier["falls_back"] else "wait until it is up"
            address = carrier["address"]
            yield f"node {name}: carrier {address} is down, tasks {where}: {carrier['problem']}"
    kinds = sorted(
        {f"{carrier['kind']} {carrier['address']}".strip() for carrier in carriers.values()}
    )
    if len(kinds) > 1:
        yield f"nodes have different carriers: {', '.join(kinds)}"


def tenant_problems(tenant: Json) -> Iterator[str]:
    name = tenant["tenant"]
    for breaker in tenant["breakers"]:
        until = worded_instant(breaker["open_until"])
        what = f"{breaker['kind']} {breaker['name']}"
        yield f"{name}: the breaker of {what} is open until {until}: {breaker['reason']}"
    for pool in tenant["pools"]:
        waits = worded_seconds(pool["oldest_ready_s"])
        if not pool["workers"]:
            yield f"{name}: pool {pool['name']} has due tasks ({waits} old) and no worker"
        elif pool["oldest_ready_s"] >= BEHIND_S:
            yield f"{name}: pool {pool['name']} is {waits} behind, with {pool['workers']} workers"
    if tenant["workflow_overdue_s"] >= BEHIND_S:
        late = worded_seconds(tenant["workflow_overdue_s"])
        yield f"{name}: workflows have had something to do for {late}, and no scheduler does it"
    yield from growth_problems(tenant)
    ready = sum(band["ready"] for band in tenant["bands"])
    if ready and not tenant["started_per_s"]:
        yield f"{name}: {counted(ready, tenant['count_max'])} due, and nothing started lately"


def growth_problems(tenant: Json) -> Iterator[str]:
    """Tasks for later come in, too: a backlog grows where those that are due wait."""
    oldest_s = max((band["oldest_ready_s"] or 0.0 for band in tenant["bands"]), default=0.0)
    came, done = (tenant[name] * 60 for name in ("submitted_per_s", "ended_per_s"))
    if oldest_s >= BEHIND_S and tenant["started_per_s"] and came - done >= GROWING_PER_MIN:
        more = f"{came - done:,.0f} tasks a minute"
        yield f"{tenant['tenant']}: the backlog grows by {more}: {came:,.0f} come, {done:,.0f} end"


def print_status(status: Json) -> None:
    show(screen_of(status))


def screen_of(status: Json) -> list[str]:
    return list(lines_of(status))


def lines_of(status: Json) -> Iterator[str]:
    screen = screen_of_output()
    problems = status["problems"]
    if not problems:
        yield styled("nothing wrong is seen", "green", screen)
    else:
        yield styled(f"problems: {len(problems)}", "bold red", screen)
        for problem in problems[:PROBLEMS_SHOWN]:
            for line in folded(f"- {' '.join(clean(problem).split())}", screen.width):
                yield styled(line, "red", screen)
    yield from installation_lines(status)
    tenants = [with_bounds(tenant) for tenant in status["tenants"]]
    yield from section("tenants", tenants, TENANT_COLUMNS)
    if status["has_more_tenants"]:
        yield f"the first {len(tenants)} are shown; name others with --tenant"
    bands = [band for band in of_tenants(tenants, "bands") if band["ready"] or band["scheduled"]]
    yield from section("waiting" if bands else "waiting: nothing", bands, BAND_COLUMNS)
    yield from worker_lines(tenants)
    breakers = of_tenants(tenants, "breakers")
    yield from section(f"open breakers: {len(breakers)}", breakers, BREAKER_COLUMNS)
    if tenants:
        yield styled(f"at {worded_instant(tenants[0]['at'])}", "dim", screen)


def installation_lines(status: Json) -> Iterator[str]:
    """For a key that reaches the installation."""
    if status["nodes"] is not None:
        nodes = [node for node in status["nodes"] if node["is_live"]]
        silent = len(status["nodes"]) - len(nodes)
        failing = sum(bool(node["failing"]) for node in nodes)
        text = f"nodes: {len(nodes)} live, {silent} silent"
        text = f"{text}, {failing} failing" if failing else text
        yield from section(text, [in_words(node) for node in nodes], NODE_COLUMNS)
    if status["slots"] is not None:
        slots = status["slots"]
        yield from section(f"slots: {slots['owned']} of {slots['count']} owned", [], ())


def worker_lines(tenants: list[Json]) -> Iterator[str]:
    """Pools with due tasks, the oldest first, then those that only have workers."""
    known = [tenant for tenant in tenants if tenant["workers"] is not None]
    due = of_tenants(tenants, "pools")
    names = {(pool["tenant"], pool["name"]) for pool in due}
    idle = [
        {"tenant": tenant["tenant"], "name": pool, "workers": count, "oldest_ready_s": None}
        for tenant in known
        for pool, count in tenant["workers"]["by_pool"].items()
        if (tenant["tenant"], pool) not in names
    ]
    due.sort(key=lambda pool: -pool["oldest_ready_s"])
    count = sum(tenant["workers"]["count"] for tenant in known)
    more = " or more" if any(tenant["workers"]["has_more"] for tenant in known) else ""
    pools = [*due, *idle][:POOLS_SHOWN]
    if known or pools:
        title = f"workers: {count:,}{more}" if known else "pools with due tasks"
        yield from section(title, pools, POOL_COLUMNS)


def section(title: str, rows: list[Json], columns: tuple[str, ...]) -> Iterator[str]:
    yield ""
    yield styled(title, "bold", screen_of_output())
    if rows:
        drawn = make_table(rows, columns)
        yield from drawn.lines
        if drawn.left_out:
            screen = screen_of_output()
            for line in folded(left_out_text(drawn), screen.width):
                yield styled(line, "dim", screen)


def of_tenants(tenants: list[Json], what: str) -> list[Json]:
    return [{**item, "tenant": each["tenant"]} for each in tenants for item in each[what]]


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
