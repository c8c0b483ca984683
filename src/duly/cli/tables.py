"""Tables and cards as lines of text that fit the terminal. Nothing here asks a server, or prints.

Where a table is too wide, in this order: instants get shorter, long texts end in "…", columns are
left out from the right, after those that the caller would miss least. `--wide` does none of it.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

GAP = "  "
# As narrow as a shortened text gets before a column is left out instead.
SHORT_TEXT = 12
ELLIPSIS = "…"
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
STYLES = {
    "COMPLETED": "green",
    "FIRED": "green",
    "RUNNING": "cyan",
    "READY": "yellow",
    "WAITING": "yellow",
    "LATE": "yellow",
    "PAUSED": "yellow",
    "FAILED": "red",
    "CANCELLED": "dim",
    "SKIPPED": "dim",
}
ZERO_WIDTH = ("Mn", "Me", "Cf")


class Screen(NamedTuple):
    """`width` is None where lines may be of any length: in a pipe, and with --wide."""

    width: int | None
    is_coloured: bool


PLAIN = Screen(None, is_coloured=False)


class Column(NamedTuple):
    name: str
    heading: str
    cells: list[str]
    is_right: bool
    # Only a text may be shortened: half an id or half a number is a wrong one.
    is_text: bool
    is_instant: bool

    def width(self) -> int:
        return max(cell_width(text) for text in (self.heading, *self.cells))

    def width_min(self) -> int:
        return (
            min(self.width(), max(SHORT_TEXT, len(self.heading))) if self.is_text else self.width()
        )


class DrawnTable(NamedTuple):
    lines: list[str]
    left_out: list[str]


def draw_table(
    columns: Sequence[Column], screen: Screen, now: datetime, leave_out: Sequence[str] = ()
) -> DrawnTable:
    """`leave_out` names the columns that go first, the least important one at first."""
    kept, left_out = list(columns), []
    if screen.width is not None and total(kept) > screen.width:
        kept = [with_short_instants(column, now) for column in kept]
        while len(kept) > 1 and total(kept, are_shortened=True) > screen.width:
            least = next((name for name in leave_out if name in names(kept)), kept[-1].name)
            left_out.append(least)
            kept = [column for column in kept if column.name != least]
        kept = shortened(kept, screen.width)
    widths = [column.width() for column in kept]
    head = [column.heading for column in kept]
    lines = [styled(row_line(kept, head, widths, PLAIN), "bold", screen)]
    rows = zip(*(column.cells for column in kept), strict=True)
    lines += [row_line(kept, row, widths, screen) for row in rows]
    order = [column.heading for column in columns if column.name in left_out]
    return DrawnTable(lines, order)


def names(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns]


def total(columns: Sequence[Column], *, are_shortened: bool = False) -> int:
    widths = [column.width_min() if are_shortened else column.width() for column in columns]
    return sum(widths) + len(GAP) * (len(widths) - 1)


def shortened(columns: list[Column], width: int) -> list[Column]:
    """The longest text gives way first, until all fit."""
    widths = {column.name: column.width() for column in columns}
    least = {column.name: column.width_min() for column in columns}
    excess = total(columns) - width
    while excess > 0:
        longest = max(widths, key=lambda name: (widths[name] > least[name], widths[name]))
        if widths[longest] <= least[longest]:
            break
        widths[longest] -= 1
        excess -= 1
    return [
        column._replace(cells=[cut(cell, widths[column.name]) for cell in column.cells])
        for column in columns
    ]


def with_short_instants(column: Column, now: datetime) -> Column:
    if not column.is_instant:
        return column
    return column._replace(cells=[short_instant(cell, now) for cell in column.cells])


def short_instant(text: str, now: datetime) -> str:
    """The time of today, else the day with hour and minute, else the day."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return text
    if instant.date() == now.date():
        return f"{instant:%H:%M:%SZ}"
    return f"{instant:%m-%d %H:%MZ}" if instant.year == now.year else f"{instant:%Y-%m-%d}"


def row_line(
    columns: Sequence[Column],
    row: Sequence[str],
    widths: Sequence[int],
    screen: Screen,
) -> str:
    cells = []
    for column, text, width in zip(columns, row, widths, strict=True):
        padding = " " * (width - cell_width(text))
        shown = styled(text, STYLES.get(text, ""), screen)
        cells.append(padding + shown if column.is_right else shown + padding)
    return GAP.join(cells).rstrip()


def draw_card(facts: Mapping[str, str], screen: Screen) -> list[str]:
    """A line for each fact; a long value goes on below its own beginning."""
    width = max((cell_width(name) for name in facts), default=0)
    lines = []
    for name, value in facts.items():
        label = styled(name, "bold", screen) + " " * (width - cell_width(name)) + GAP
        room = None if screen.width is None else max(screen.width - width - len(GAP), SHORT_TEXT)
        first, *rest = folded(value, room)
        lines.append((label + styled(first, STYLES.get(value, ""), screen)).rstrip())
        lines += [" " * (width + len(GAP)) + line for line in rest]
    return lines


def folded(text: str, width: int | None) -> list[str]:
    """At line breaks, then at spaces or commas, and inside a word that is longer than a line."""
    lines: list[str] = []
    for whole in text.split("\n"):
        line = whole
        while width is not None and cell_width(line) > width:
            head = take(line, width)
            space = max(head.rfind(" "), head.rfind(","))
            if space > width // 4:
                head = head[: space + 1]
            lines.append(head.rstrip())
            line = line[len(head) :]
        lines.append(line)
    return lines


def styled(text: str, style: str, screen: Screen) -> str:
    if not (style and screen.is_coloured and text):
        return text
    codes = ";".join(CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def cut(text: str, width: int) -> str:
    if cell_width(text) <= width:
        return text
    return take(text, width - 1) + ELLIPSIS


def take(text: str, width: int) -> str:
    """The longest beginning that is no wider."""
    taken = 0
    for place, character in enumerate(text):
        taken += character_width(character)
        if taken > width:
            return text[:place]
    return text


def cell_width(text: str) -> int:
    """How many columns of the terminal it takes: two for a wide character, none for an accent."""
    if text.isascii():
        return len(text)
    return sum(character_width(character) for character in text)


def character_width(character: str) -> int:
    if unicodedata.category(character) in ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
