"""Sparklines: a row of numbers as a row of blocks, one character each. Prints nothing."""

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
# In a line by itself: blanks at its beginning would be cut off, and its end moved.
NOTHING = "·"


def block(value: float, peak: float) -> str:
    """Anything at all is seen, however small beside the peak."""
    if value <= 0:
        return BLOCKS[0]
    return BLOCKS[max(round(value / peak * (len(BLOCKS) - 1)), 1)]


def sparkline(values: Sequence[float | None]) -> str:
    """All on one scale, from nothing to their peak; 0 and None are dots."""
    peak = max((value for value in values if value is not None), default=0.0)
    return "".join(block(value, peak) if value else NOTHING for value in values)
