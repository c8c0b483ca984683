"""A workflow's graph as lines of text, and as SVG: level by level, each node after its parents."""

from html import escape
from typing import Any

from duly.cli.output import clean
from duly.cli.tables import PLAIN, STYLES, Screen, cell_width, cut, folded, styled

Json = dict[str, Any]

MARKS = {
    "COMPLETED": "✓",
    "FAILED": "✗",
    "SKIPPED": "-",
    "CANCELLED": "⊘",
    "RUNNING": "▶",
    "READY": "●",
    "SCHEDULED": "◷",
    "WAITING": "○",
}
COLOURS = {
    "COMPLETED": "#2e7d32",
    "FAILED": "#c62828",
    "SKIPPED": "#9e9e9e",
    "CANCELLED": "#6d4c41",
    "RUNNING": "#1565c0",
    "READY": "#0097a7",
    "SCHEDULED": "#6a1b9a",
    "WAITING": "#607d8b",
}
# Cells of the bar of a map's items.
BAR_WIDTH = 12
ALL_COMPLETED = "all_completed"
TASK = "task"
PARENTS_NAMED_MAX = 5
BOX_WIDTH, BOX_HEIGHT = 180, 40
COLUMN, ROW = 240, 60
LABEL_MAX = 24
INDENTS_MAX = 20


def levels_of(nodes: list[Json]) -> list[list[Json]]:
    """Each node one level below its lowest parent."""
    levels: dict[str, int] = {}
    waiting = {node["name"]: set(node.get("after", ())) for node in nodes}
    number = 0
    while waiting:
        free = [name for name, parents in waiting.items() if not parents]
        assert free, "a stored graph has no cycle"
        levels |= dict.fromkeys(free, number)
        done = set(free)
        waiting = {name: parents - done for name, parents in waiting.items() if name not in done}
        number += 1
    rows: list[list[Json]] = [[] for _ in range(number)]
    for node in nodes:
        rows[levels[node["name"]]].append(node)
    return rows


def drawn(nodes: list[Json], screen: Screen = PLAIN) -> list[str]:
    """A line for each node, folded where the terminal ends, in the colour of its state."""
    lines: list[str] = []
    for depth, level in enumerate(levels_of(nodes)):
        for node in level:
            line = f"{'  ' * min(depth, INDENTS_MAX)}{MARKS.get(node['state'], '?')} {node['name']}"
            if (kind := node.get("kind", TASK)) != TASK:
                line += f" ({kind})"
            after = node.get("after", [])
            if after:
                named = ", ".join(after[:PARENTS_NAMED_MAX])
                more = len(after) - PARENTS_NAMED_MAX
                line += f"  < {named}" + (f" and {more} more" if more > 0 else "")
            if node.get("when", ALL_COMPLETED) != ALL_COMPLETED:
                line += f"  [{node['when']}]"
            style = STYLES.get(node["state"], "")
            text = clean(f"{line}  {node['state']}")
            if (found := node.get("map")) is not None:
                text += f"  {items_of(found)}"
            if (undone := node.get("compensation")) is not None:
                text += f"  {undone_mark(undone)}"
            if (inside := node.get("workflow")) is not None:
                text += f"  {clean(inside['name'])} {inside['id']}"
            lines += [styled(each, style, screen) for each in indented(text, depth, screen.width)]
    return lines


def undone_mark(state: str) -> str:
    """What a node says about its compensation."""
    ended = {"COMPLETED": "↩ undone", "FAILED": "↩ not undone"}
    return ended.get(state, f"↩ being undone, {state}")


def items_of(found: Json) -> str:
    """How far a map is: a bar of its items that have ended, and how many of how many."""
    ended = found["completed"] + found["failed"] + found["cancelled"]
    total = found.get("items")
    told = f"{ended:,}" if total is None else f"{ended:,}/{total:,}"
    if total:
        filled = BAR_WIDTH * ended // total
        told = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {told}"
    named = ("open", "failed", "cancelled")
    return ", ".join([told, *(f"{found[name]:,} {name}" for name in named if found[name])])


def indented(text: str, depth: int, width: int | None) -> list[str]:
    """What does not fit into the line goes on below the name."""
    if width is None or cell_width(text) <= width:
        return [text]
    indent = " " * (2 * min(depth, INDENTS_MAX) + 2)
    room = max(width - len(indent), LABEL_MAX)
    first, *rest = folded(text.lstrip(), room)
    return [indent[2:] + first, *(indent + each for each in rest)]


def state_of(node: Json) -> str:
    told = str(node["state"])
    if (found := node.get("map")) is not None:
        ended = found["completed"] + found["failed"] + found["cancelled"]
        told += f" {ended:,}/{found.get('items', found['made']):,}"
    if (undone := node.get("compensation")) is not None:
        told += f" {undone_mark(undone)}"
    return told


def svg_of(nodes: list[Json]) -> str:
    levels = levels_of(nodes)
    places = {
        node["name"]: (20 + depth * COLUMN, 20 + row * ROW)
        for depth, level in enumerate(levels)
        for row, node in enumerate(level)
    }
    width = len(levels) * COLUMN
    height = max(map(len, levels)) * ROW + 20
    size = f'width="{width}" height="{height}"'
    view = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}>',
        # Without it, a viewer with a dark page shows dark text on it.
        f'<rect {size} fill="white"/>',
    ]
    for node in nodes:
        x, y = places[node["name"]]
        for parent in node.get("after", ()):
            from_x, from_y = places[parent]
            start, end = from_x + BOX_WIDTH, x
            middle = (start + end) // 2
            parts.append(
                f'<path d="M{start} {from_y + BOX_HEIGHT // 2} C{middle} '
                f"{from_y + BOX_HEIGHT // 2} {middle} {y + BOX_HEIGHT // 2} {end} "
                f'{y + BOX_HEIGHT // 2}" fill="none" stroke="#90a4ae"/>'
            )
    for node in nodes:
        x, y = places[node["name"]]
        colour = COLOURS.get(node["state"], "#607d8b")
        name = clean(node["name"])
        label = escape(cut(name, LABEL_MAX))
        parts.append(
            f"<g><title>{escape(name)}</title>"
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="white" '
            f'stroke="{colour}" stroke-width="2"/>'
            f'<text x="{x + 10}" y="{y + 17}">{label}</text>'
            f'<text x="{x + 10}" y="{y + 32}" fill="{colour}">{escape(state_of(node))}</text></g>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
