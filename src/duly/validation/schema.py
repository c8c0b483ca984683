"""Payload validation: in this process where its cost is bounded, else in the check process.

jsonschema-rs holds the interpreter while it works and cannot be interrupted, so what runs here must
be bounded beforehand: the schema's weight times the payload's bytes. Whatever exceeds that bound is
for `process.py`. Of a payload that does not fit, one error is told: all of them took 8 GB.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import jsonschema_rs
import msgspec

from duly.domain.limits import PAYLOAD_BYTES_MAX, Problem
from duly.domain.schemas import schema_reason, weigh

# Weight times bytes: 16 ms at the worst that was found, of 100 that a call may hold the event loop.
INLINE_COST_MAX = 1_000_000
# With branches, an error holds those of every branch at every value; each took 11 µs.
DESCRIBE_COST_MAX = 10_000
# What a pattern is compiled to, in bytes. The engine is linear in the text, and for each byte of it
# in this size: at most 800 ns a byte and kilobyte, measured.
INLINE_PATTERN_SIZES = (1000, 2000, 4000, 8000)
WEIGHT_PER_PATTERN_BYTE = 1 / 40
# Of the states that the engine remembers, for each pattern of a schema that is kept here.
INLINE_PATTERN_MEMORY = 32 * 1024
# Larger ones are refused when a type is described: that of `\p{L}{1,100}` is taken.
PATTERN_SIZE_MAX = 10_000_000
SCHEMAS_KEPT = 128
PATTERNS_KEPT = 1000
# A reason quotes the schema and, where `MASK` stands, the start of the value.
REASON_CHARACTERS_MAX = 200
VALUE_CHARACTERS_MAX = 40
STEP_CHARACTERS_MAX = 64
POINTER_CHARACTERS_MAX = 300
# A character of no language, which a schema would not use.
MASK = "\ue000"
INLINE_PATTERNS = jsonschema_rs.RegexOptions(
    size_limit=INLINE_PATTERN_SIZES[-1], dfa_size_limit=INLINE_PATTERN_MEMORY
)
ALL_PATTERNS = jsonschema_rs.RegexOptions(size_limit=PATTERN_SIZE_MAX)
# What its compiler says of a schema that is none.
UNSOUND = (ValueError, jsonschema_rs.ReferencingError)


class PayloadSchema:
    """`weight` is None for a schema that no payload is held against in this process; else payloads
    of up to `bytes_max` are."""

    __slots__ = ("bytes_max", "has_branches", "is_valid", "text", "validator", "weight")

    def __init__(self, text: str) -> None:
        self.text = text
        self.weight: int | None = None
        self.bytes_max = -1
        self.has_branches = False
        self.validator: Any = None
        self.is_valid: Callable[[Any], bool] = refuse_all
        document = msgspec.json.decode(text)
        if schema_reason(text.encode(), document) is not None:
            return
        weight = weigh(document)
        if weight is None:
            return
        sizes = [pattern_size(pattern) for pattern in weight.patterns]
        if None in sizes:
            return
        try:
            self.validator = compile_schema(text, INLINE_PATTERNS)
        except UNSOUND:
            return
        self.weight = weight.parts + int(sum(filter(None, sizes)) * WEIGHT_PER_PATTERN_BYTE)
        self.bytes_max = min(INLINE_COST_MAX // self.weight, PAYLOAD_BYTES_MAX)
        self.has_branches = weight.has_branches
        self.is_valid = self.validator.is_valid

    def judge(self, payload: msgspec.Raw) -> "Problem | PayloadSchema | None":
        """What is wrong with it; this schema itself, if only a process of its own can tell."""
        size = len(payload)
        if size > self.bytes_max:
            return self
        document = msgspec.json.decode(payload)
        if self.is_valid(document):
            return None
        if self.has_branches and self.cost(size) > DESCRIBE_COST_MAX:
            return self
        return first_problem(self.validator, document)

    def cost(self, size: int) -> int:
        """Of a check in this process."""
        return (self.weight or 0) * size


def refuse_all(_document: Any) -> bool:
    raise AssertionError("a schema without a weight is not run here")


@lru_cache(SCHEMAS_KEPT)
def read_schema(text: str) -> PayloadSchema:
    return PayloadSchema(text)


def compile_schema(text: str, patterns: jsonschema_rs.RegexOptions = ALL_PATTERNS) -> Any:
    """Linear-time patterns of a bounded size, and no reference ever leaves the document."""
    return jsonschema_rs.validator_for(
        text, retriever=refuse_reference, pattern_options=patterns, mask=MASK
    )


@lru_cache(PATTERNS_KEPT)
def pattern_size(pattern: str) -> int | None:
    """The least of the sizes that it can be compiled to; None beyond them, and if it is wrong."""
    text = msgspec.json.encode({"pattern": pattern}).decode()
    for size in INLINE_PATTERN_SIZES:
        try:
            compile_schema(text, jsonschema_rs.RegexOptions(size_limit=size))
        except UNSOUND:
            continue
        return size
    return None


def first_problem(validator: Any, document: Any) -> Problem:
    """What is wrong first with a document that does not fit."""
    try:
        validator.validate(document)
    except jsonschema_rs.ValidationError as error:
        pointer = "".join(f"/{escape(str(step))}" for step in error.instance_path)
        reason = error.message.replace(MASK, quoted(error.instance), 1)
        reason = shortened(reason.replace(MASK, "it"), REASON_CHARACTERS_MAX)
        return Problem(f"/payload{pointer}"[:POINTER_CHARACTERS_MAX], reason)
    raise AssertionError("what is not valid has an error")


def quoted(value: Any) -> str:
    """The start of a value: enough to recognise it, too little to fill a log."""
    text = msgspec.json.encode(value)[: 4 * VALUE_CHARACTERS_MAX + 4].decode(errors="ignore")
    return shortened(text, VALUE_CHARACTERS_MAX)


def shortened(text: str, characters_max: int) -> str:
    """Without characters that a terminal or a reader of logs would obey."""
    cut = text if len(text) <= characters_max else text[:characters_max] + "..."
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in cut)


def escape(step: str) -> str:
    return shortened(step, STEP_CHARACTERS_MAX).replace("~", "~0").replace("/", "~1")


def refuse_reference(address: str) -> NoReturn:
    raise ValueError(f"a schema may refer only to itself, not to {address[:100]}")
