"""Plots of a report: throughput over time, latency percentiles, growth. One file each, and none for
what was not measured."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duly.bench.figures import PERCENTILES
from duly.bench.svg import Axis, Chart, ChartLine, draw

Result = dict[str, Any]
PERCENTILE_NAMES = ("p50", "p90", "p99", "p99.9", "max")
# What is measured at each size, where it stands in a point, and its name in the legend.
RATES = (("submit_tasks_per_s", "submit"), ("drain_tasks_per_s", "drain"))
SKEWS = (("skew_p50_ms", "p50"), ("skew_p99_ms", "p99"))


def write_plots(report: dict[str, Any], folder: Path) -> list[Path]:
    results = with_labels(report["results"])
    pictures = {
        "throughput.svg": ("Throughput over time", throughput_charts(results), 3),
        "latency.svg": ("Latency", latency_charts(results), 1),
        "growth.svg": ("Growth", growth_charts(results), 3),
    }
    written = []
    for name, (heading, charts, columns) in pictures.items():
        if charts:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            path.write_text(draw(heading, charts, footer(report["machine"]), columns), "utf-8")
            written.append(path)
    return written


def with_labels(results: Sequence[Result]) -> list[Result]:
    """A scenario that ran several times has a number from its second run on."""
    seen: Counter[str] = Counter()
    labelled = []
    for result in results:
        name = result["scenario"]
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name} ({seen[name]})"
        labelled.append({**result, "label": label})
    return labelled


def throughput_charts(results: Sequence[Result]) -> list[Chart]:
    charts = []
    for result in results:
        series = result.get("series")
        if series is None:
            continue
        step_s = series["step_s"]
        # A rate belongs to the middle of its step.
        points = [((n + 0.5) * step_s, rate) for n, rate in enumerate(series["tasks_per_s"])]
        line = ChartLine(result["label"], points)
        charts.append(Chart(line.name, Axis("seconds"), Axis("tasks per second"), [line]))
    return charts


def latency_charts(results: Sequence[Result]) -> list[Chart]:
    lines = [
        ChartLine(result["label"], list(enumerate(result[name] for name in PERCENTILES)))
        for result in results
        if "p50_ms" in result
    ]
    x = Axis("percentile", names=PERCENTILE_NAMES)
    y = Axis("milliseconds (log)", is_log=True)
    return [Chart("Latency percentiles", x, y, lines)] if lines else []


def growth_charts(results: Sequence[Result]) -> list[Chart]:
    charts = []
    for result in results:
        if "by_waiting" not in result:
            continue
        for by, unit in (("waiting", "waiting tasks (log)"), ("tenants", "tenants (log)")):
            points, x = result[f"by_{by}"], Axis(unit, is_log=True)
            charts.append(
                Chart(f"Rates by {by}", x, Axis("tasks per second"), lines_of(points, by, RATES))
            )
            skews = lines_of(points, by, SKEWS)
            y = Axis("milliseconds (log)", is_log=True)
            charts.append(Chart(f"Start minus fire time by {by}", x, y, skews))
            if by == "waiting":
                sizes = (
                    ("database_bytes_per_task", "PostgreSQL"),
                    ("scheduler_bytes_per_task", "scheduler"),
                )
                lines = lines_of(points, by, sizes)
                charts.append(Chart("Bytes per waiting task", x, Axis("bytes"), lines))
    return charts


def lines_of(
    points: Sequence[dict[str, float]], by: str, names: Sequence[tuple[str, str]]
) -> list[ChartLine]:
    return [
        ChartLine(label, [(point[by], point[name]) for point in points]) for name, label in names
    ]


def footer(machine: dict[str, Any]) -> str:
    server = machine["postgresql"].get("server_version", "unknown")
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_mb'] // 1024} GB;"
        f" PostgreSQL {server}; Python {machine['python']};"
        f" duly {machine['duly']} {machine['commit'] or ''}"
    )
