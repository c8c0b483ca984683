"""Terminal output: tables, cards, progress. Nothing here sends a request.

Text that came from others is shown without its control characters: an error message must not be
able to move the cursor, or to write over what stands above it.
"""

import contextlib
import os
import shutil
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from duly.cli.tables import Column, DrawnTable, Screen, draw_card, draw_table, folded
from duly.environment import SystemClock

CELL_CHARACTERS_MAX = 200
NOTHING = "-"
OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Never shortened: what is copied from a table into the next command.
WHOLE = (
    *("id", "name", "state", "task_id", "replayed_as", "fingerprint", "example", "verdict"),
    *("action", "setting"),
)
BAR_WIDTH = 24
BAR_EVERY_S = 0.1
WIDE = "duly.wide"
# Set while something draws on the terminal: two would write over each other.
DRAWING = "duly.drawing"
# An answer that comes sooner needs no notice that it is waited for.
BUSY_AFTER_S = 1.0
BUSY_EVERY_S = 0.5


def say_wide(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    context.meta[WIDE] = value
    return value


wide_flag = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=say_wide,
    help="Show tables whole, however wide the terminal is.",
)


def screen_of_output() -> Screen:
    """As https://no-color.org asks; a pipe gets neither colours nor shortened lines."""
    context = click.get_current_context(silent=True)
    is_terminal = sys.stdout.isatty()
    is_wide = not is_terminal or (context is not None and context.meta.get(WIDE, False))
    is_coloured = (
        is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    return Screen(None if is_wide else shutil.get_terminal_size().columns, is_coloured)


def show(lines: Sequence[str]) -> None:
    click.echo("\n".join(lines), color=True)


def say(sentence: str) -> None:
    """Folded between words where the terminal ends."""
    show(folded(clean(sentence), screen_of_output().width))


def note(text: str) -> None:
    """For the person, and never part of the answer."""
    click.echo(clean(text), err=True)


def clean(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(visible(character) for character in text)


def visible(character: str) -> str:
    if character in "\n\t":
        return character
    if unicodedata.category(character) in ("Cc", "Cs") or character in OVERRIDES:
        return character.encode("unicode_escape", "surrogatepass").decode()
    return character


def worded(name: str, value: Any) -> str:
    """A value as people write it; the name's ending tells an instant from a duration."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_instant(name):
        return worded_instant(value)
    if is_duration(name):
        return worded_seconds(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        # A rate that was measured has no six digits.
        is_small_rate = name.endswith("_per_s") and abs(value) < 1000
        return f"{value:,.3g}" if is_small_rate else f"{value:,g}"
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def is_instant(name: str) -> bool:
    return name == "at" or name.endswith(("_at", "_until"))


def is_duration(name: str) -> bool:
    return name.endswith(("_s", "_s_min")) and not name.endswith("_per_s")


def worded_instant(value: str) -> str:
    moment = datetime.fromisoformat(value).astimezone(UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


def worded_seconds(seconds: float) -> str:
    """The two largest units, which is as exact as anybody reads."""
    if not seconds:
        return "0s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{int(seconds) // 60}m {int(seconds) % 60}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes}m"
    return f"{hours // 24}d {hours % 24}h"


def cell(name: str, value: Any) -> str:
    text = " ".join(clean(worded(name, value)).split())
    if len(text) > CELL_CHARACTERS_MAX:
        text = text[: CELL_CHARACTERS_MAX - 1] + "…"
    return text


def make_table(
    items: Sequence[Mapping[str, Any]], columns: Sequence[str], leave_out: Sequence[str] = ()
) -> DrawnTable:
    """A column for each name, as far as they fit; `leave_out` go first, then from the right."""
    made = []
    for name in columns:
        values = [item.get(name) for item in items]
        is_number = bool(items) and all(is_numeric(name, value) for value in values)
        is_text = not (is_number or is_instant(name) or name in WHOLE)
        cells = [cell(name, value) for value in values]
        made.append(Column(name, heading(name), cells, is_number, is_text, is_instant(name)))
    return draw_table(made, screen_of_output(), SystemClock().now(), leave_out)


def heading(name: str) -> str:
    if is_duration(name):
        name = name.removesuffix("_s").replace("_s_", "_")
    return name.replace("_", " ")


def is_numeric(name: str, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or is_number or (is_duration(name) and not isinstance(value, str))


def print_table(
    items: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    none: str,
    leave_out: Sequence[str] = (),
) -> None:
    """`none` is what is said instead of an empty table."""
    if items:
        print_drawn(make_table(items, columns, leave_out))
    else:
        note(none)


def print_drawn(drawn: DrawnTable) -> None:
    show(drawn.lines)
    if drawn.left_out:
        for line in folded(left_out_text(drawn), screen_of_output().width):
            note(line)


def left_out_text(drawn: DrawnTable) -> str:
    return f"left out: {', '.join(drawn.left_out)} (--wide or --json shows all)"


def print_card(facts: Mapping[str, Any], leading: Sequence[str] = ()) -> None:
    """One thing with all that is known of it, a line each; `leading` come first."""
    names = [name for name in leading if name in facts]
    names += [name for name in facts if name not in names]
    said = {heading(name): clean(worded(name, facts[name])) for name in names}
    show(draw_card(said, screen_of_output()))


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Asked of a person; a script has to say --yes."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise click.UsageError("not a terminal: preview with --dry-run, then confirm with --yes")
    if not click.confirm(question, err=True):
        note("duly: not confirmed, nothing was changed")
        raise click.exceptions.Exit(1)


@contextlib.contextmanager
def progress(label: str, total: int | None, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; call what is yielded with how many more are done."""
    with bar_of(label, total, is_shown=is_shown) as bar:
        yield (lambda _more: None) if bar is None else bar.advance


@contextlib.contextmanager
def growing_progress(label: str, *, is_shown: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Where the total grows: call what is yielded with how many are done, and of how many."""
    with bar_of(label, None, is_shown=is_shown) as bar:
        yield (lambda _done, _total: None) if bar is None else bar.set


@contextlib.contextmanager
def bar_of(label: str, total: int | None, *, is_shown: bool) -> "Iterator[ProgressBar | None]":
    if not is_shown or not sys.stderr.isatty():
        yield None
        return
    bar = ProgressBar(label, total)
    try:
        with drawing():
            yield bar
    finally:
        bar.close()


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Keeps `busy` silent meanwhile."""
    context = click.get_current_context(silent=True)
    meta: dict[str, Any] = {} if context is None else context.meta
    before = meta.get(DRAWING, False)
    meta[DRAWING] = True
    try:
        yield
    finally:
        meta[DRAWING] = before


def is_drawing() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(DRAWING))


@contextlib.contextmanager
def busy(label: str, *, is_shown: bool = True, after_s: float = BUSY_AFTER_S) -> Iterator[None]:
    """What is waited for and for how long, on the terminal, once it takes over a second."""
    if not is_shown or is_drawing() or not sys.stderr.isatty():
        yield
        return
    is_over = threading.Event()
    drawer = threading.Thread(
        target=draw_elapsed, args=(clean(label), is_over, after_s), daemon=True
    )
    drawer.start()
    try:
        with drawing():
            yield
    finally:
        is_over.set()
        drawer.join()


def draw_elapsed(label: str, is_over: threading.Event, after_s: float) -> None:
    clock = SystemClock()
    began = clock.monotonic()
    if is_over.wait(after_s):
        return
    while True:
        draw_line(f"{label}  {int(clock.monotonic() - began)}s")
        if is_over.wait(BUSY_EVERY_S):
            break
    draw_line("")


def draw_line(text: str) -> None:
    """Over what stood in the line before."""
    room = max(shutil.get_terminal_size().columns - 1, 20)
    sys.stderr.write(f"\r\x1b[K{text[:room]}")
    sys.stderr.flush()


def write_file(file: Path, text: str) -> None:
    """`-` is standard output."""
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {file}: {error.strerror}") from None


class ProgressBar:
    """One line on standard error, written again as it grows and gone when it is over."""

    def __init__(self, label: str, total: int | None) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self.clock = SystemClock()
        self.started_at = self.clock.monotonic()
        self.shown_at = 0.0
        self.draw()

    def advance(self, more: int) -> None:
        self.done += more
        self.draw()

    def set(self, done: int, total: int | None) -> None:
        """Not drawn each time: it may be called for each task."""
        self.done, self.total = done, total
        if self.clock.monotonic() - self.shown_at >= BAR_EVERY_S:
            self.draw()

    def draw(self) -> None:
        self.shown_at = self.clock.monotonic()
        took_s = self.shown_at - self.started_at
        if self.total:
            share = min(self.done / self.total, 1.0)
            filled = round(share * BAR_WIDTH)
            text = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {self.done:,}/{self.total:,}"
            if 0 < share < 1:
                text += f"  {worded_seconds(took_s / share - took_s)} left"
        else:
            text = f"{self.done:,} done  {worded_seconds(took_s)}"
        draw_line(f"{self.label}  {text}")

    def close(self) -> None:
        draw_line("")
