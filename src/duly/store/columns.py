"""Rows turned into the arrays that `unnest` takes.

The driver spends a third of a microsecond on every element, and most batches say the same of all
their rows: what is the same is sent once. `unnest` fills the shorter arrays up with NULL, which a
statement reads as "the same as the first".
"""

from collections.abc import Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(width)]


def once(column: list[Value]) -> list[Value]:
    """Of a column without NULL; the statement says `coalesce(x, ($n)[1])`."""
    first = column[:1]
    return first if first * len(column) == column else column


def given(column: list[Value | None]) -> list[Value | None]:
    """Of a column that is often NULL throughout; the statement needs to say nothing."""
    return [] if column.count(None) == len(column) else column
