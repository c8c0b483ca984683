"""Which payloads are held against their schema inside the server, and which are not."""

from typing import Any

import msgspec
import pytest

from duly.domain.limits import Problem
from duly.domain.schemas import PATTERNS_MAX, WEIGHT_MAX
from duly.validation.schema import (
    DESCRIBE_COST_MAX,
    INLINE_COST_MAX,
    MASK,
    PayloadSchema,
    compile_schema,
    first_problem,
    pattern_size,
)

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
USUAL: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Invoice",
    "type": "object",
    "required": ["id", "amount"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "pattern": "^inv_[0-9]+$", "description": "its number"},
        "amount": {"type": "number", "minimum": 0, "multipleOf": 0.01},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
        "mail": {"type": "string", "format": "email", "maxLength": 200},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "lines": {"type": "array", "maxItems": 100, "items": {"$ref": "#/$defs/line"}},
    },
    "$defs": {"line": {"type": "object", "properties": {"text": {"type": "string"}}}},
}
INVOICE = {"id": "inv_1", "amount": 12.5, "currency": "EUR", "lines": [{"text": "paper"}]}


def made(schema: Any) -> PayloadSchema:
    return PayloadSchema(msgspec.json.encode(schema).decode())


def raw(payload: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(payload))


def test_a_usual_schema_is_run_where_the_call_is_served() -> None:
    """A process for what takes a microsecond would cost a hundred."""
    schema = made(USUAL)
    assert schema.judge(raw(INVOICE)) is None
    wrong = schema.judge(raw(INVOICE | {"amount": "12"}))
    assert wrong == Problem("/payload/amount", '"12" is not of type "number"')
    assert isinstance(schema.judge(raw(INVOICE | {"note": 5})), Problem)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "((a{0,40}){0,40}){0,40}x"},
        {"pattern": "(a{1000}){1000}"},
        {"pattern": "(a"},
        {"pattern": "x" * 201},
        {"patternProperties": {"((a{0,40}){0,40}){0,40}x": {}}},
        {"propertyNames": {"pattern": "((a{0,40}){0,40}){0,40}x"}},
        {"allOf": [{"pattern": "a+"}] * (PATTERNS_MAX + 1)},
        {"allOf": [{"$ref": "#/$defs/a"}] * (PATTERNS_MAX + 1), "$defs": {"a": {"pattern": "a+"}}},
        {"items": {"anyOf": [{"type": "null"}] * (WEIGHT_MAX // 2)}},
        {"items": {"enum": [[number] for number in range(WEIGHT_MAX // 4)]}},
        {"uniqueItems": True},
        {"unevaluatedProperties": False},
        {"$schema": DRAFT_7, "format": "regex"},
        {"$schema": DRAFT_7, "contentMediaType": "application/json"},
        {"dependencies": {"a": {}}},
        {"somethingNew": True},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "nonsense"},
    ],
)
def test_a_schema_of_unknown_cost_is_never_run_here(schema: dict[str, Any]) -> None:
    """What cannot be interrupted must be known to end before it begins."""
    costly = made(schema)
    assert costly.judge(raw("a")) is costly


def test_the_bound_grows_with_the_payload_and_is_taken_exactly() -> None:
    """Fifteen hundred options are nothing for a word, and everything for fifteen thousand words."""
    schema = made({"items": {"allOf": [{"type": "integer"}] * 30}})
    assert schema.weight is not None
    most = INLINE_COST_MAX // schema.weight
    assert schema.judge(raw([1] * ((most - 2) // 2))) is None
    assert schema.judge(raw([1] * (most // 2 + 1))) is schema


def test_an_error_with_many_branches_is_not_told_here() -> None:
    """The errors of all branches at all values filled eight gigabytes."""
    schema = made({"anyOf": [{"items": {"type": "string"}}] * 20})
    assert schema.weight is not None
    long = DESCRIBE_COST_MAX // schema.weight
    assert schema.judge(raw([1] * long)) is schema
    assert isinstance(schema.judge(raw([1])), Problem)


def test_a_pattern_is_weighed_by_what_it_is_compiled_to() -> None:
    """Twenty characters can say a machine of a hundred thousand states."""
    assert pattern_size("^inv_[0-9]+$") == 1000
    assert pattern_size("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}$") in (2000, 4000)
    assert pattern_size("((a{0,40}){0,40}){0,40}x") is None
    light, heavy = made({"pattern": "^a+$"}), made({"pattern": "(a|b)*a(a|b){40}x"})
    assert light.weight is not None
    assert heavy.weight is not None
    assert light.weight < heavy.weight
    assert heavy.judge(raw("ab" * 20_000)) is heavy


def test_a_pointer_into_a_payload_is_escaped_and_cut() -> None:
    """The author of a name of sixty thousand characters chose them to be repeated."""
    schema = made({"additionalProperties": {"type": "integer"}})
    assert schema.judge(raw({"a/b~c": "x"})) == Problem(
        "/payload/a~1b~0c", '"x" is not of type "integer"'
    )
    long = schema.judge(raw({"n" * 50_000: "x" * 10_000}))
    assert isinstance(long, Problem)
    assert len(long.pointer) <= 300
    assert len(long.reason) <= 300


LONG, CONTROL = "x" * 5000, "a\x00b\x1b[2Jc\u202ed\n"


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"type": "integer"}, LONG),
        ({"type": "integer"}, CONTROL),
        ({"type": "integer"}, {CONTROL: [CONTROL] * 100}),
        ({"enum": ["a", LONG]}, CONTROL + LONG),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, CONTROL + LONG),
        ({"pattern": "^x$"}, CONTROL + LONG),
        ({"not": {"type": "string"}}, LONG),
        ({"contains": {"type": "integer"}}, [LONG, CONTROL]),
        ({"propertyNames": {"maxLength": 2}}, {CONTROL + LONG: 1}),
        ({"additionalProperties": False}, {CONTROL + LONG: CONTROL}),
        ({"unevaluatedProperties": False}, {CONTROL + LONG: CONTROL}),
        ({"additionalProperties": {"type": "integer"}}, {CONTROL + LONG: CONTROL}),
        ({"uniqueItems": True}, [LONG, LONG]),
        ({"minimum": 5}, 3),
    ],
)
def test_a_reason_quotes_little_and_nothing_that_a_terminal_obeys(
    schema: Any, payload: Any
) -> None:
    """A payload is somebody's data: whole, it would fill answers and logs, or clear a screen."""
    found = first_problem(compile_schema(msgspec.json.encode(schema).decode()), payload)
    for text in (found.reason, found.pointer):
        assert text.isprintable()
        assert "x" * 201 not in text
        assert MASK not in text
    assert len(found.reason) <= 300


def test_a_value_is_recognised_by_its_start() -> None:
    """Without it, nobody finds the wrong one of a thousand payloads."""
    assert made({"type": "integer"}).judge(raw("12,50")) == Problem(
        "/payload", '"12,50" is not of type "integer"'
    )
    long = made({"type": "integer"}).judge(raw("y" * 100))
    assert long == Problem("/payload", '"' + "y" * 39 + '... is not of type "integer"')
