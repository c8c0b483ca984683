"""Which JSON Schemas duly takes for payloads: only those whose check is sure to end soon.

A schema is run at every submit, in a process that serves all tenants. Size and depth are bounded,
and so is what its references expand to: sixteen definitions that each refer twice to the next took
six seconds for one number. Whether it is a sound schema at all is for its compiler to say.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

SCHEMA_BYTES_MAX = 64 * 1024
SCHEMA_DEPTH_MAX = 32
EXPANDED_MAX = 5000
LOCAL = "#/"
UNBOUNDED = ("$dynamicRef", "$recursiveRef")


class Unfit(ValueError):
    """Says why a schema is not taken."""


def schema_reason(text: bytes, schema: Any) -> str | None:
    """Why this one is not taken; `schema` is what `text` says."""
    if len(text) > SCHEMA_BYTES_MAX:
        return f"is {len(text)} bytes, and {SCHEMA_BYTES_MAX} is the most"
    if not isinstance(schema, dict):
        return "is not an object"
    if depth_of(schema) > SCHEMA_DEPTH_MAX:
        return f"is nested deeper than {SCHEMA_DEPTH_MAX} levels"
    # There `id` takes the place of `$id`, and any value may hold a member of that name.
    if "draft-04" in str(schema.get("$schema", "")):
        return "is of draft 4; draft 6 or later is taken"
    try:
        Expansion(schema).count()
    except Unfit as unfit:
        return str(unfit)
    return None


def depth_of(value: Any) -> int:
    return 1 + max((depth_of(child) for child in children_of(value)), default=-1)


def children_of(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class Expansion:
    """Counts the objects of a schema with every reference replaced by what it names."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.counts: dict[str, int] = {}
        self.open: set[str] = set()

    def count(self) -> int:
        return self.count_in(self.schema, is_root=True)

    def count_in(self, value: Any, *, is_root: bool = False) -> int:
        total = 0
        if isinstance(value, dict):
            total = 1 + self.count_referred(value, is_root=is_root)
        for child in children_of(value):
            total += self.count_in(child)
            if total > EXPANDED_MAX:
                raise Unfit(f"expands to more than {EXPANDED_MAX} parts by its references")
        return total

    def count_referred(self, value: dict[str, Any], *, is_root: bool) -> int:
        if any(isinstance(value.get(name), str) for name in UNBOUNDED):
            raise Unfit("has a reference that changes its meaning by where it stands")
        if not is_root and isinstance(value.get("$id"), str):
            raise Unfit("has an $id below its top, which would change what references mean")
        reference = value.get("$ref")
        return self.count_named(reference) if isinstance(reference, str) else 0

    def count_named(self, reference: str) -> int:
        if reference in self.counts:
            return self.counts[reference]
        if reference in self.open:
            raise Unfit(f"refers from {reference[:100]} back to itself; recursion is not taken")
        target = self.find(reference)
        self.open.add(reference)
        self.counts[reference] = self.count_in(target, is_root=target is self.schema)
        self.open.discard(reference)
        return self.counts[reference]

    def find(self, reference: str) -> Any:
        if reference == "#":
            raise Unfit("refers back to itself as a whole; recursion is not taken")
        if not reference.startswith(LOCAL):
            raise Unfit(
                f"refers to {reference[:100]}; a reference must stay inside, as #/$defs/name"
            )
        found: Any = self.schema
        for step in unquote(reference[len(LOCAL) :]).split("/"):
            found = step_into(found, step.replace("~1", "/").replace("~0", "~"))
            if found is None:
                raise Unfit(f"refers to {reference[:100]}, which is not there")
        return found


def step_into(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and len(step) < 6:
        return value[int(step)] if int(step) < len(value) else None
    return None
