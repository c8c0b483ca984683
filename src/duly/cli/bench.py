"""`duly bench`: which scenarios, how large, and how their figures are shown."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.bench.catalog import SCENARIOS, Scenario
from duly.cli.output import ProgressBar, make_table, note, print_drawn

if TYPE_CHECKING:
    from duly.bench.run import Audience, ScenarioReport
    from duly.bench.stage import BenchOptions, Show

REPEAT_MAX = 100
WAITING_MAX = 10_000_000
PLOTS_FOLDER = "duly-bench"
COLUMNS = ("scenario", "tasks", "backlog", "tasks_per_s", "p50_ms", "p99_ms", "more")
# In the table by themselves, or only in the JSON.
NOT_MORE = {*COLUMNS, "at", "took_s", "p90_ms", "p999_ms", "max_ms", "series"}
USUAL_NAMES = ", ".join(name for name, each in SCENARIOS.items() if each.is_usual)
FURTHER_NAMES = ", ".join(name for name, each in SCENARIOS.items() if not each.is_usual)
HELP = f"""Measure duly on this machine, each SCENARIO on a durable PostgreSQL of its own that is
removed afterwards. Ctrl-C shows what had finished.

Scenarios: {USUAL_NAMES}.

Only when named: {FURTHER_NAMES}.
"""


def chosen(
    _context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
) -> list[str]:
    """Read with the command line: a typing mistake is known before anything is measured."""
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        known = ", ".join(SCENARIOS)
        raise click.UsageError(f"no scenario {', '.join(unknown)}; there are: {known}")
    return list(names) or [name for name, each in SCENARIOS.items() if each.is_usual]


def usable_folder(
    _context: click.Context, _parameter: click.Parameter, folder: Path | None
) -> Path | None:
    """Made now: after an hour of measuring it is too late to learn that it cannot be."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.BadParameter(f"cannot make {folder}: {error.strerror}") from None
    return folder


@click.command("bench", help=HELP)
@click.argument("names", nargs=-1, metavar="[SCENARIO]...", callback=chosen)
@click.option("--quick", is_flag=True, help="Smaller: each in under 15 s, growth in a minute.")
@click.option(
    "--repeat",
    type=click.IntRange(1, REPEAT_MAX),
    default=1,
    show_default=True,
    metavar="N",
    help="Repetitions of the whole list.",
)
@click.option(
    "--waiting",
    type=click.IntRange(1, WAITING_MAX),
    metavar="N",
    help="How many tasks wait, in `waiting`; how many at the most, in `growth`.",
)
@click.option("--tasks", type=click.IntRange(1), hidden=True)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    callback=usable_folder,
    help=f"Where plots go, as SVG. Default: ./{PLOTS_FOLDER}; with --json, none are made.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON document.")
def command(
    names: list[str],
    quick: bool,
    repeat: int,
    waiting: int | None,
    tasks: int | None,
    plots: Path | None,
    as_json: bool,
) -> None:
    from duly.bench.run import ScenarioReport
    from duly.bench.stage import BenchOptions
    from duly.cli.options import load

    order = BenchOptions(quick, tasks, waiting, load({}).settings.pg_bin)
    report = ScenarioReport()
    is_whole = is_drawn = False
    try:
        is_whole = measure(
            [SCENARIOS[name] for name in names] * repeat, order, report, is_quiet=as_json
        )
    finally:
        # Finished scenarios are reported whatever happened to the rest.
        folder = plots or (None if as_json else Path(PLOTS_FOLDER))
        is_drawn = write_report(report.as_json(), folder, as_json=as_json)
    if not is_whole:
        note(f"duly: interrupted, {len(report.results)} of {len(names) * repeat} had finished")
    if not (is_whole and is_drawn):
        raise click.exceptions.Exit(1)


def measure(
    scenarios: list[Scenario], order: "BenchOptions", report: "ScenarioReport", *, is_quiet: bool
) -> bool:
    import asyncio

    import uvloop

    from duly.app import tune_garbage_collector
    from duly.bench.run import run_scenarios
    from duly.environment import system_environment
    from duly.telemetry import configure_logs

    configure_logs("error", "text")
    tune_garbage_collector()
    with (
        audience(len(scenarios), is_quiet=is_quiet) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(run_scenarios(scenarios, order, system_environment(), report, listening))


@contextlib.contextmanager
def audience(count: int, *, is_quiet: bool) -> "Iterator[Audience]":
    """Bars for a person at a terminal; elsewhere a line for each scenario that is done."""
    from duly.bench.run import Audience

    if not sys.stderr.isatty():

        def say(result: dict[str, Any]) -> None:
            if not is_quiet:
                note(f"{result['scenario']} took {result['took_s']} s")

        yield Audience(lambda _scenario: lambda _done, _total: None, say)
        return
    done = 0

    def begin(scenario: Scenario) -> "Show":
        bar = ProgressBar(f"{done + 1} of {count}  {scenario.name:20}", None)
        bars.append(bar)
        return bar.set

    def end(_result: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        bars.pop().close()

    bars: list[ProgressBar] = []
    try:
        yield Audience(begin, end)
    finally:
        for bar in bars:
            bar.close()


def write_report(report: dict[str, Any], folder: Path | None, *, as_json: bool) -> bool:
    """False if the plots could not be written; the figures are shown all the same."""
    import msgspec

    from duly.bench.plots import write_plots

    if as_json:
        document = msgspec.json.format(msgspec.json.encode(report), indent=2)
        click.echo(document.decode())
    else:
        print_report(report)
    try:
        for path in write_plots(report, folder) if folder is not None else ():
            note(f"wrote {path}")
    except OSError as error:
        note(f"duly: cannot write plots to {folder}: {error.strerror}")
        return False
    return True


def print_report(report: dict[str, Any]) -> None:
    from duly.bench.plots import footer

    click.echo(footer(report["machine"]))
    rows = []
    for result in report["results"]:
        row = {name: rounded(result[name]) for name in COLUMNS if name in result}
        more = [
            f"{name} {rounded(value)}"
            for name, value in result.items()
            if name not in NOT_MORE and isinstance(value, int | float)
        ]
        rows.append({**row, "more": ", ".join(more)})
    if rows:
        print_drawn(make_table(rows, COLUMNS))
    for points in (
        result[name]
        for result in report["results"]
        for name in ("by_tenants", "by_waiting")
        if name in result
    ):
        click.echo()
        shown = [{name: rounded(value) for name, value in point.items()} for point in points]
        print_drawn(make_table(shown, list(points[0])))


def rounded(value: Any) -> Any:
    """Three digits are all that a figure is good for."""
    if not isinstance(value, float):
        return value
    return round(value) if value >= 100 else float(f"{value:.3g}")
