"""Terminal output: tables, cards, progress. Nothing here sends a request.

Text that came from others is shown without its control characters: an error message must not be
able to move the cursor, or to write over what stands above it.
"""

import contextlib
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

# Wide enough for any row: what is piped into a program is never folded.
PIPED_WIDTH = 2000
CELL_CHARACTERS_MAX = 200
NOTHING = "-"
OVERRIDES = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
STYLES = {
    "COMPLETED": "green",
    "RUNNING": "cyan",
    "READY": "yellow",
    "FAILED": "red",
    "CANCELLED": "dim",
}


def make_console(*, is_error: bool = False) -> "Console":
    from rich.console import Console

    file = sys.stderr if is_error else sys.stdout
    return Console(
        file=file, width=None if file.isatty() else PIPED_WIDTH, highlight=False, markup=False
    )


def show(what: "RenderableType") -> None:
    """On standard output; a program that reads it gets no colours and no padding."""
    console = make_console()
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


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
    if name.endswith(("_at", "_until")):
        return worded_instant(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return worded_seconds(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


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


def cell(name: str, value: Any) -> "Text":
    from rich.text import Text

    text = " ".join(clean(worded(name, value)).split())
    if len(text) > CELL_CHARACTERS_MAX:
        text = text[: CELL_CHARACTERS_MAX - 1] + "…"
    return Text(text, style=STYLES.get(text, ""))


def make_table(items: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> "Table":
    """A column for each name; ids stay whole, the rest may be folded."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        is_number = bool(items) and all(is_numeric(name, item.get(name)) for item in items)
        table.add_column(
            heading(name),
            justify="right" if is_number else "left",
            no_wrap=name in ("id", "state"),
            overflow="fold",
        )
    for item in items:
        table.add_row(*(cell(name, item.get(name)) for name in columns))
    return table


def heading(name: str) -> str:
    name = name if name.endswith("_per_s") else name.removesuffix("_s")
    return name.replace("_", " ")


def is_numeric(name: str, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or is_number or (name.endswith("_s") and not isinstance(value, str))


def print_table(items: Sequence[Mapping[str, Any]], columns: Sequence[str], none: str) -> None:
    """`none` is what is said instead of an empty table."""
    if items:
        show(make_table(items, columns))
    else:
        note(none)


def print_card(facts: Mapping[str, Any], leading: Sequence[str] = ()) -> None:
    """One thing with all that is known of it, a line each; `leading` come first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    names = [name for name in leading if name in facts]
    for name in [*names, *(name for name in facts if name not in names)]:
        text = clean(worded(name, facts[name]))
        table.add_row(heading(name), Text(text, style=STYLES.get(text, "")))
    show(table)


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
    if not is_shown or not sys.stderr.isatty():
        yield lambda _more: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=make_console(is_error=True)) as bar:
        work = bar.add_task(label, total=total)
        yield lambda more: bar.advance(work, more)
