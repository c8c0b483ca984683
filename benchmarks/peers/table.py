"""Figures become ratios, ratios a table: on a screen, or as Markdown. Pure but for the printing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Measure:
    name: str
    heading: str
    is_rate: bool


MEASURES = (
    Measure("single_per_s", "single submit /s", is_rate=True),
    Measure("bulk_per_s", "bulk submit /s", is_rate=True),
    Measure("drain_1_per_s", "drain /s, 1 process", is_rate=True),
    Measure("drain_2_per_s", "drain /s, 2 processes", is_rate=True),
    Measure("latency_p50_ms", "50/s: p50 ms", is_rate=False),
    Measure("latency_p99_ms", "50/s: p99 ms", is_rate=False),
    Measure("herd_p99_ms", "2,000 at once: p99 ms", is_rate=False),
)
FLOW_MEASURES = (
    Measure("chain_ms", "chain of 40: ms", is_rate=False),
    Measure("fan_ms", "1,000 and their join: ms", is_rate=False),
    Measure("diamonds_per_s", "diamonds /s", is_rate=True),
)
ALL_MEASURES = (*MEASURES, *FLOW_MEASURES)
BEHIND = "**behind**"
NOTHING = "-"


@dataclass(frozen=True)
class Goal:
    """At least `factor` times as good as the best durable peer; for a wait, of its reciprocal."""

    what: str
    measures: tuple[str, ...]
    factor: float
    # Redis answers a lone submit without a transaction: that goal is about PostgreSQL.
    is_of_postgres: bool = False


# With one process each, and the better of duly's against the better of a peer's.
GOALS = (
    Goal("single submit, over HTTP", ("single_per_s",), 2.5, is_of_postgres=True),
    Goal("bulk submit, in process", ("bulk_per_s",), 1.1),
    Goal("drain, one process each", ("drain_1_per_s",), 1.5),
    Goal("drain, any number of processes", ("drain_1_per_s", "drain_2_per_s"), 1.1),
    Goal("50/s, p99", ("latency_p99_ms",), 1.0),
    Goal("2,000 on one instant, p99", ("herd_p99_ms",), 1 / 0.75),
    Goal("chain of 40 nodes, over HTTP", ("chain_ms",), 1.0),
    Goal("1,000 nodes and their join, over HTTP", ("fan_ms",), 1.0),
    Goal("diamonds, over HTTP", ("diamonds_per_s",), 1.0),
)


def ratio(measure: Measure, duly: Figures, peer: Figures) -> float | None:
    """How many times better duly is, whichever way the measure points; above 1 it is ahead."""
    ours, theirs = duly.get(measure.name), peer.get(measure.name)
    if not ours or not theirs:
        return None
    return ours / theirs if measure.is_rate else theirs / ours


def ratios(duly: Figures, peer: Figures) -> dict[str, float]:
    found = {measure.name: ratio(measure, duly, peer) for measure in ALL_MEASURES}
    return {name: value for name, value in found.items() if value is not None}


def best(names: Iterable[str], figures: Figures) -> float | None:
    """The better of several figures of one system; all of a goal point the same way."""
    measures = [measure for measure in ALL_MEASURES if measure.name in names]
    values = [figures[measure.name] for measure in measures if figures.get(measure.name)]
    if not values:
        return None
    return max(values) if measures[0].is_rate else min(values)


def judge(
    duly: Figures, durable: Mapping[str, Figures], postgres: Collection[str]
) -> list[dict[str, Any]]:
    """Each goal against the best durable peer of this run; unmeasured is not met."""
    verdicts: list[dict[str, Any]] = []
    for goal in GOALS:
        is_rate = next(m.is_rate for m in ALL_MEASURES if m.name == goal.measures[0])
        ours = best(goal.measures, duly)
        theirs = {
            name: best(goal.measures, figures)
            for name, figures in durable.items()
            if name in postgres or not goal.is_of_postgres
        }
        known = {name: value for name, value in theirs.items() if value is not None}
        verdict = {"goal": goal.what, "wanted": goal.factor, "peer": None, "ratio": None}
        if ours is not None and known:
            name = (max if is_rate else min)(known, key=lambda name: known[name])
            seen = ours / known[name] if is_rate else known[name] / ours
            verdict |= {"peer": name, "ratio": seen}
        seen_ratio = verdict["ratio"]
        is_met = isinstance(seen_ratio, float) and seen_ratio >= goal.factor
        verdicts.append(verdict | {"is_met": is_met})
    return verdicts


def shown(measure: Measure, value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if measure.is_rate else f"{value:,.1f}"


def cell(measure: Measure, duly: Figures, peer: Figures) -> str:
    value, times = peer.get(measure.name), ratio(measure, duly, peer)
    if times is None:
        return shown(measure, value)
    mark = f" {BEHIND}" if times < 1 else ""
    return f"{shown(measure, value)} ({times:.2f}x){mark}"


def rows(report: Mapping[str, Any], measures: Sequence[Measure] = MEASURES) -> list[list[str]]:
    """duly first, then the peers; whoever was not measured keeps its row, and its reason. What a
    system does not have is no row of it."""
    duly = report["duly"]["figures"]
    ours = [shown(measure, duly.get(measure.name)) for measure in measures]
    found = [[name_of("duly", report["duly"]), report["duly"]["durable"], *ours]]
    for name, peer in report["peers"].items():
        if "skipped" in peer:
            reason = f"not measured: {peer['skipped']}"
            found.append([name, reason, *[NOTHING] * len(measures)])
            continue
        if peer["figures"] and not any(each.name in peer["figures"] for each in measures):
            continue
        cells = [cell(measure, duly, peer["figures"]) for measure in measures]
        found.append([name_of(name, peer), peer["durable"], *cells])
    return found


def name_of(name: str, facts: Mapping[str, Any]) -> str:
    version = facts.get("version")
    return f"{name} {version}" if version else name


def headings_of(measures: Sequence[Measure]) -> list[str]:
    return ["system", "durable", *(measure.heading for measure in measures)]


def screen_table(report: Mapping[str, Any], measures: Sequence[Measure] = MEASURES) -> Table:
    title = f"In brackets: how many times better duly is. {report['machine']['processor']}"
    table = Table(title=title, show_lines=True)
    for number, heading in enumerate(headings_of(measures)):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for row in rows(report, measures):
        table.add_row(*row)
    return table


def goals_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="duly against the best durable peer")
    for heading in ("goal", "wanted", "seen", "best peer", ""):
        table.add_column(heading)
    for row in goal_rows(report):
        table.add_row(*row)
    return table


def goal_rows(report: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            verdict["goal"],
            f"{verdict['wanted']:.2f}x",
            f"{verdict['ratio']:.2f}x" if verdict["ratio"] is not None else NOTHING,
            verdict["peer"] or NOTHING,
            "met" if verdict["is_met"] else "NOT MET",
        ]
        for verdict in report["goals"]
    ]


def markdown(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    place = (
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, "
        f"PostgreSQL {machine['postgresql']['server_version']}, duly at {machine['commit']}; "
        f"backlog {report['sizes']['backlog']:,}; {counted(report['sizes']['rounds'])}."
    )
    lines = [
        place,
        "",
        *table_lines(headings_of(MEASURES), rows(report)),
        "",
        *table_lines(headings_of(FLOW_MEASURES), rows(report, FLOW_MEASURES)),
        "",
        disk_line(report),
        "",
        *table_lines(["goal", "wanted", "seen", "best peer", "verdict"], goal_rows(report)),
    ]
    problems = [
        f"- {name}, {row}: {text}"
        for name, peer in {"duly": report["duly"], **report["peers"]}.items()
        for row, text in peer.get("problems", {}).items()
    ]
    return "\n".join([*lines, *(["", *problems] if problems else [])]) + "\n"


def disk_line(report: Mapping[str, Any]) -> str:
    """What of the waits nobody can help, in the same rounds."""
    found = report.get("disk", {}).get("figures", {})
    if not found:
        return "The disk alone was not measured."
    p50_ms, p99_ms = found["latency_p50_ms"], found["latency_p99_ms"]
    return (
        f"The disk alone, a page written and flushed 50 times a second: p50 {p50_ms:.1f}, "
        f"p99 {p99_ms:.1f} ms."
    )


def counted(rounds: int) -> str:
    return "one round" if rounds == 1 else f"medians of {rounds} rounds in turns"


def table_lines(headings: list[str], body: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in body),
    ]
