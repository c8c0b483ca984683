"""`duly worker module:app`: run a worker of the user's own code, and again after each change.

With --reload this process only watches: the worker is a child that is stopped and started.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from duly.cli.output import clean
from duly.cli.values import duration, secret, server_url
from duly.domain.errors import ConfigurationError, DulyError

if TYPE_CHECKING:
    from duly.client.middleware import Around
    from duly.client.schedule_plan import ScheduleStep
    from duly.client.worker import Worker

LOOK_EVERY_S = 0.3
FILES_MAX = 20_000
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("worker")
@click.argument("target", metavar="MODULE:NAME")
@click.option("--reload", "is_reloading", is_flag=True, help="Restart when a file changes.")
@click.option("--plan", "is_planning", is_flag=True, help="Only show what changes of schedules.")
@click.option(
    "--pool", "pools", multiple=True, metavar="NAME", help="Pools, instead of the worker's own."
)
@click.option(
    "--bands",
    metavar="BAND,...",
    help="Only tasks of these priorities: high (7-9), normal (3-6), low (0-2).",
)
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Concurrent handlers.")
@click.option(
    "--drain", "drain_s", type=duration, metavar="DURATION", help="Time to end on SIGTERM."
)
@click.option("--url", type=server_url, metavar="URL", help="URL of duly. Default: DULY_URL.")
@click.option(
    "--api-key", type=secret, metavar="KEY", help="An API key, or @FILE. Better: DULY_API_KEY."
)
@click.option("--log-level", default="info", metavar="LEVEL", help="debug, info, warning or error.")
def command(
    target: str, is_reloading: bool, is_planning: bool, log_level: str, **given: Any
) -> None:
    """Run the worker that MODULE has under NAME, such as `myapp.tasks:worker`.

    SIGTERM or Ctrl-C lets running handlers finish for a while, and releases the rest. A second one
    ends it at once.
    """
    if is_reloading:
        arguments = [each for each in sys.argv[1:] if each != "--reload"]
        raise click.exceptions.Exit(run_again_and_again(["-m", "duly", *arguments]))
    from duly.logs import configure_logs

    configure_logs(log_level, "auto")
    start_worker(target, given, is_planning=is_planning)


def start_worker(
    target: str,
    given: Mapping[str, Any],
    *,
    is_planning: bool,
    around: "Around | None" = None,
) -> None:
    """`given`: options that are said, instead of the worker's own."""
    worker = find_worker(target)
    for name, value in given.items():
        if value not in (None, ()):
            setattr(worker, name, read_given(name, value))
    if around is not None:
        worker.around(around)
    if is_planning:
        print_plan(worker.plan_schedules())
    else:
        worker.run()


def print_plan(steps: "list[ScheduleStep]") -> None:
    for step in steps:
        click.echo(f"{step.action} {clean(step.name)}")
        for change in step.changes:
            click.echo(f"    {change.field}: {clean(str(change.old))} → {clean(str(change.new))}")
    if not steps:
        click.echo("no schedules in the worker's code")


def read_given(name: str, value: Any) -> Any:
    if name == "bands":
        return [band.strip() for band in value.split(",")]
    return list(value) if name == "pools" else value


def import_of_user(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except DulyError:
        raise
    except Exception as error:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        if name is not None and f"{module_name}.".startswith(f"{name}."):
            raise ConfigurationError(problem=f"there is no module {name!r} here") from error
        show_from_module(error)
        problem = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigurationError(problem=problem) from None


def show_from_module(error: Exception) -> None:
    """Its traceback, without the frames of duly and of the import, which say nothing."""
    trace = error.__traceback__
    while trace is not None and is_on_the_way(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def is_on_the_way(file: str) -> bool:
    return file == __file__ or file == importlib.__file__ or file.startswith("<frozen importlib")


def find_worker(target: str) -> "Worker":
    from duly.client.worker import Worker

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise click.UsageError(f"{target!r} is not MODULE:NAME, such as myapp.tasks:worker")
    # As `python -m` does: what lies in this folder can be imported.
    sys.path.insert(0, str(Path.cwd()))
    module = import_of_user(module_name)
    worker = getattr(module, name, None)
    if worker is None:
        found = [key for key, value in vars(module).items() if isinstance(value, Worker)]
        hint = f"; it has the worker {found[0]!r}" if found else ""
        raise ConfigurationError(problem=f"there is no {name!r} in {module_name}{hint}")
    if not isinstance(worker, Worker):
        raise ConfigurationError(problem=f"{name!r} in {module_name} is not a duly.Worker")
    return worker


def run_again_and_again(arguments: Sequence[str]) -> int:
    """A Python program, until we are told to stop; its exit code then."""
    reloader = Reloader()
    with reloader.handle_signals():
        while True:
            known = changes()
            # In a session of its own: what the terminal sends reaches it once, from us.
            reloader.child = subprocess.Popen([sys.executable, *arguments], start_new_session=True)
            while not reloader.is_over.is_set() and changes() == known:
                reloader.is_over.wait(LOOK_EVERY_S)
            if not reloader.is_over.is_set():
                click.echo("duly: a file has changed; starting again", err=True)
                reloader.child.terminate()
            code = reloader.child.wait()
            if reloader.is_over.is_set():
                return code


class Reloader:
    """The child, and whether we were told to stop; each signal to us is passed on to it."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.child: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self.on_signal) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def on_signal(self, _number: int, _frame: object) -> None:
        self.is_over.set()
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()


def changes() -> dict[str, float]:
    """Each Python file below this folder, and when it was last written."""
    found: dict[str, float] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [each for each in folders if each not in SKIPPED and each[0] != "."]
        for file in files:
            if file.endswith(".py") and len(found) < FILES_MAX:
                path = Path(folder, file)
                with contextlib.suppress(FileNotFoundError):
                    found[str(path)] = path.stat().st_mtime
    return found
