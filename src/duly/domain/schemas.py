"""Payload schemas: which JSON Schemas duly accepts, and how costly a payload's check can become.

A schema is run at every submit, in a process that serves all tenants. Size and depth are bounded,
and so is what its references expand to: sixteen definitions that each refer twice to the next took
six seconds for one number. `weigh` bounds the work for each byte of a payload where every keyword
has a known cost. Whether it is a valid schema is left to its compiler.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

SCHEMA_BYTES_MAX = 64 * 1024
SCHEMA_DEPTH_MAX = 32
EXPANDED_MAX = 5000
LOCAL = "#/"
UNBOUNDED = ("$dynamicRef", "$recursiveRef")

# The unit of weight is the dearest plain comparison of one part with one byte: 32 ns, measured.
WEIGHT_MAX = 5000
PATTERNS_MAX = 10
PATTERN_CHARACTERS_MAX = 200
MULTIPLE_OF_WEIGHT = 20
# Options of an enum: texts alone or integers alone are looked up; others are compared one by one.
LOOKED_UP_SHARE = 10
COMPARED_WEIGHT = 4
IGNORED = frozenset(
    {
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
CONSTANT = frozenset(
    {
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "type",
    }
)
SUBSCHEMAS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
    }
)
# Their errors hold the errors of every branch.
BRANCHING = frozenset({"anyOf", "oneOf"})
# Later drafts take a format for a remark; earlier ones check it.
REMARKING = ("draft/2019-09/", "draft/2020-12/")


class SchemaUnsupported(ValueError):
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
    except SchemaUnsupported as unfit:
        return str(unfit)
    return None


def depth_of(value: Any) -> int:
    """A level at a time: a schema may have thirty thousand values."""
    depth, level = -1, [value]
    while level:
        depth += 1
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                deeper += each.values()
            elif isinstance(each, list):
                deeper += each
        level = deeper
    return depth


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
            if not isinstance(child, dict | list):
                continue
            total += self.count_in(child)
            if total > EXPANDED_MAX:
                raise SchemaUnsupported(
                    f"expands to more than {EXPANDED_MAX} parts by its references"
                )
        return total

    def count_referred(self, value: dict[str, Any], *, is_root: bool) -> int:
        if any(isinstance(value.get(name), str) for name in UNBOUNDED):
            raise SchemaUnsupported("has a reference that changes its meaning by where it stands")
        if not is_root and isinstance(value.get("$id"), str):
            raise SchemaUnsupported(
                "has an $id below its top, which would change what references mean"
            )
        reference = value.get("$ref")
        return self.count_named(reference) if isinstance(reference, str) else 0

    def count_named(self, reference: str) -> int:
        if reference in self.counts:
            return self.counts[reference]
        if reference in self.open:
            raise SchemaUnsupported(
                f"refers from {reference[:100]} back to itself; recursion is not taken"
            )
        target = self.find(reference)
        self.open.add(reference)
        self.counts[reference] = self.count_in(target, is_root=target is self.schema)
        self.open.discard(reference)
        return self.counts[reference]

    def find(self, reference: str) -> Any:
        if reference == "#":
            raise SchemaUnsupported("refers back to itself as a whole; recursion is not taken")
        if not reference.startswith(LOCAL):
            raise SchemaUnsupported(
                f"refers to {reference[:100]}; a reference must stay inside, as #/$defs/name"
            )
        found: Any = self.schema
        for step in unquote(reference[len(LOCAL) :]).split("/"):
            found = step_into(found, step.replace("~1", "/").replace("~0", "~"))
            if found is None:
                raise SchemaUnsupported(f"refers to {reference[:100]}, which is not there")
        return found


def step_into(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and step.isdecimal() and len(step) < 6:
        return value[int(step)] if int(step) < len(value) else None
    return None


@dataclass
class Weight:
    """What a check costs for each byte of a payload, without its patterns, which are weighed by
    their engine. `has_branches`: an error can be as long as the schema times the payload."""

    parts: int = 0
    patterns: list[str] = field(default_factory=list)
    has_branches: bool = False


def weigh(schema: dict[str, Any]) -> Weight | None:
    """None for a schema with a keyword whose cost has no known bound, or with too much of all. For
    those that `schema_reason` takes.

    Each part is held against each value of a payload once at most, because references are expanded
    and do not recur; so parts times bytes bound the work.
    """
    scale = SchemaWeigher(schema)
    try:
        scale.put(schema)
    except SchemaUnsupported:
        return None
    return scale.weight


class SchemaWeigher:
    """Adds up the keywords of a schema, with every reference replaced by what it names."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.expansion = Expansion(schema)
        self.weight = Weight()
        address = str(schema.get("$schema", ""))
        self.has_formats = bool(address) and not any(each in address for each in REMARKING)

    def put(self, schema: Any) -> None:
        self.add(1)
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise SchemaUnsupported("has something that is no schema where one belongs")
        for keyword, value in schema.items():
            self.put_keyword(keyword, value)

    def put_keyword(self, keyword: str, value: Any) -> None:
        if keyword in SUBSCHEMAS:
            self.weight.has_branches |= keyword in BRANCHING
            self.add(1)
            for each in value if isinstance(value, list) else [value]:
                self.put(each)
        elif keyword in CONSTANT:
            self.add(1)
        elif keyword == "properties" and isinstance(value, dict):
            self.add(1)
            for each in value.values():
                self.put(each)
        elif keyword == "$ref" and isinstance(value, str):
            self.put_referred(value)
        elif keyword in ("required", "enum", "const"):
            self.add(options_weight(value))
        elif keyword == "pattern" and isinstance(value, str):
            self.put_pattern(value)
        elif keyword == "patternProperties" and isinstance(value, dict):
            for pattern, each in value.items():
                # Asked again by additionalProperties.
                self.put_pattern(pattern)
                self.put_pattern(pattern)
                self.put(each)
        elif keyword == "multipleOf":
            self.add(MULTIPLE_OF_WEIGHT)
        elif not self.is_free(keyword, value):
            raise SchemaUnsupported(f"has {keyword[:100]}, whose cost is not known")

    def is_free(self, keyword: str, value: Any) -> bool:
        if keyword == "format":
            return not self.has_formats
        if keyword == "uniqueItems":
            return value is False
        return keyword in IGNORED or keyword.startswith("x-")

    def put_referred(self, reference: str) -> None:
        target = self.expansion.find(reference)
        if reference in self.expansion.open:
            raise SchemaUnsupported("refers back to itself")
        self.expansion.open.add(reference)
        self.put(target)
        self.expansion.open.discard(reference)

    def put_pattern(self, pattern: str) -> None:
        patterns = self.weight.patterns
        if len(patterns) == PATTERNS_MAX or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise SchemaUnsupported("has many or long patterns")
        patterns.append(pattern)

    def add(self, parts: int) -> None:
        self.weight.parts += parts
        if self.weight.parts > WEIGHT_MAX:
            raise SchemaUnsupported("has too many parts")


def options_weight(options: Any) -> int:
    kinds = {type(option) for option in options} if isinstance(options, list) else {None}
    if kinds in ({str}, {int}, set()):
        return 1 + len(options) // LOOKED_UP_SHARE
    return 1 + COMPARED_WEIGHT * count_values(options)


def count_values(value: Any) -> int:
    return 1 + sum(count_values(child) for child in children_of(value))
