"""Line charts as SVG: panels in a grid, axes with units, a legend. Knows nothing of benchmarks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

PANEL_HEIGHT = 300
PLOT_WIDTH = 400
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 40, 54
LEGEND_WIDTH = 170
HEADER, FOOTER = 44, 34
TICKS_MAX = 6
# Beyond so many decades only every second one is named, and so on.
DECADES_MAX = 6
# Distinguishable also by those who do not see all colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#8c6d31")
DASHES = ("", "6 3", "2 3")
STYLE = (
    "text{font-family:sans-serif;font-size:12px;fill:#222}"
    ".title{font-size:14px;font-weight:bold}.heading{font-size:17px;font-weight:bold}"
    ".small{font-size:11px;fill:#555}"
)


@dataclass(frozen=True)
class ChartLine:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """With `names`, positions 0, 1, 2 ... are called by them instead of by numbers."""

    label: str
    is_log: bool = False
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    lines: Sequence[ChartLine]


@dataclass(frozen=True)
class AxisScale:
    """From values to pixels."""

    low: float
    high: float
    is_log: bool
    first_px: float
    last_px: float

    def at(self, value: float) -> float:
        low, high, value = (self.bent(each) for each in (self.low, self.high, value))
        return self.first_px + (value - low) / (high - low) * (self.last_px - self.first_px)

    def bent(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.is_log else value


def draw(heading: str, charts: Sequence[Chart], footer: str, columns: int = 2) -> str:
    """The whole picture; panels are as wide as the widest legend among them needs."""
    columns = min(columns, len(charts))
    legend = LEGEND_WIDTH if any(len(chart.lines) > 1 for chart in charts) else 0
    panel_width = LEFT + PLOT_WIDTH + RIGHT + legend
    # A lone panel still needs room for what stands above and below it.
    width = max(panel_width * columns, 720)
    height = HEADER + PANEL_HEIGHT * math.ceil(len(charts) / columns) + FOOTER
    size = f'width="{width}" height="{height}"'
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
        f'<rect {size} fill="white"/>',
        text(16, 28, heading, "heading"),
    ]
    for number, chart in enumerate(charts):
        row, column = divmod(number, columns)
        x, y = column * panel_width, HEADER + row * PANEL_HEIGHT
        pieces += [f'<g transform="translate({x} {y})">', *draw_panel(chart), "</g>"]
    pieces += [text(16, height - 12, footer, "small"), "</svg>"]
    return "\n".join(pieces) + "\n"


def draw_panel(chart: Chart) -> Iterator[str]:
    bottom, right = PANEL_HEIGHT - BOTTOM, LEFT + PLOT_WIDTH
    across = make_scale(chart.x, [x for line in chart.lines for x, _ in line.points], LEFT, right)
    up = make_scale(chart.y, [y for line in chart.lines for _, y in line.points], bottom, TOP)
    yield text(LEFT, TOP - 14, chart.title, "title")
    for value, name in ticks(chart.y, up):
        y = up.at(value)
        yield rule(LEFT, y, right, y, "#e4e4e4")
        yield text(LEFT - 8, y + 4, name, anchor="end")
    for value, name in ticks(chart.x, across):
        x = across.at(value)
        yield rule(x, bottom, x, bottom + 5, "#666")
        yield text(x, bottom + 19, name, anchor="middle")
    yield rule(LEFT, bottom, right, bottom, "#666")
    yield rule(LEFT, TOP, LEFT, bottom, "#666")
    yield text((LEFT + right) / 2, bottom + 40, chart.x.label, anchor="middle")
    middle = (TOP + bottom) / 2
    label = text(0, 0, chart.y.label, anchor="middle")
    yield f'<g transform="translate(16 {middle:.1f}) rotate(-90)">{label}</g>'
    for number, line in enumerate(chart.lines):
        yield from draw_line(line, number, across, up)
        if len(chart.lines) > 1:
            yield from draw_key(line, number, right + RIGHT)


def draw_line(line: ChartLine, number: int, across: AxisScale, up: AxisScale) -> Iterator[str]:
    places = [(across.at(x), up.at(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" {stroke_of(number)}/>'
    if len(places) <= 12:
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour_of(number)}"/>'


def draw_key(line: ChartLine, number: int, x: float) -> Iterator[str]:
    y = TOP + 8 + number * 18
    yield f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" {stroke_of(number)}/>'
    yield text(x + 30, y + 4, line.name)


def make_scale(axis: Axis, values: Sequence[float], first_px: float, last_px: float) -> AxisScale:
    if axis.names:
        return AxisScale(-0.3, len(axis.names) - 0.7, False, first_px, last_px)
    if axis.is_log:
        seen = [value for value in values if value > 0] or [1.0]
        low = 10.0 ** math.floor(math.log10(min(seen)))
        high = 10.0 ** math.ceil(math.log10(max(seen)))
        return AxisScale(low, high if high > low else low * 10, True, first_px, last_px)
    high = max([*values, 0.0]) or 1.0
    step = step_for(high)
    return AxisScale(0.0, math.ceil(high / step) * step, False, first_px, last_px)


def step_for(high: float) -> float:
    """1, 2 or 5 times a power of ten, such that there are not too many."""
    power = 10.0 ** math.floor(math.log10(high / TICKS_MAX))
    return next(step for n in (1, 2, 5, 10) if high / (step := n * power) <= TICKS_MAX)


def ticks(axis: Axis, scale: AxisScale) -> Iterator[tuple[float, str]]:
    if axis.names:
        yield from enumerate(axis.names)
    elif axis.is_log:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        for exponent in range(first, last + 1, math.ceil((last - first) / DECADES_MAX)):
            yield 10.0**exponent, short(10.0**exponent)
    else:
        step = step_for(scale.high)
        for number in range(round(scale.high / step) + 1):
            yield number * step, short(number * step)


def short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:.3g}"


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def stroke_of(number: int) -> str:
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return f'stroke="{colour_of(number)}" stroke-width="2" stroke-dasharray="{dash}"'


def rule(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(words)}</text>'
