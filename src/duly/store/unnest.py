"""Rows turned into the arrays that `unnest` takes.

The driver spends a third of a microsecond on every element, and most columns of a batch hold one
value: it is sent once. `unnest` fills the shorter arrays up with NULL, which a statement reads as
"the same as the first".
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

Value = TypeVar("Value")


def array_text(numbers: Sequence[int]) -> str:
    """The driver takes no arrays of arrays whose lengths differ."""
    return f"{{{','.join(map(str, numbers))}}}"


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def once(column: list[Value]) -> list[Value]:
    """Of a column without NULL; the statement says `coalesce(x, ($n)[1])`."""
    first = column[:1]
    return first if first * len(column) == column else column


def runs(*columns: list[Any]) -> tuple[list[Any], ...]:
    """Rows whose neighbours agree in all of these columns, as runs: the columns with one element
    for each run, and the first and the last row of each, counted from 1 as PostgreSQL does."""
    count = len(columns[0])
    if all(first * count == column for column in columns if (first := column[:1])):
        # All alike: the usual case, and quickly seen. No rows are no runs.
        ends = ([1], [count]) if count else ([], [])
        return *(column[:1] for column in columns), *ends
    rows = list(zip(*columns, strict=True))
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(rows), 1) if one != other)]
    return (
        *([column[start] for start in starts] for column in columns),
        [start + 1 for start in starts],
        [*starts[1:], count],
    )


def given(column: list[Value | None]) -> list[Value | None]:
    """Of a column that is often NULL throughout; the statement needs to say nothing."""
    return [] if column.count(None) == len(column) else column
