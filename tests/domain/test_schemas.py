"""Which payload schemas are taken: only those whose check is sure to end soon."""

from typing import Any

import msgspec
import pytest

from duly.domain.schemas import (
    EXPANDED_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_DEPTH_MAX,
    Expansion,
    schema_reason,
)


def reason(schema: Any) -> str | None:
    return schema_reason(msgspec.json.encode(schema), schema)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Each definition refers twice to the next."""
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "string"}}},
        {"$ref": "#/$defs/a~1b~0c%20d", "$defs": {"a/b~c d": {}}},
        {"allOf": [{"type": "string"}, {"$ref": "#/allOf/0"}]},
        {"$id": "https://example.com/x", "$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}},
        nested(SCHEMA_DEPTH_MAX),
        {"description": "d" * (SCHEMA_BYTES_MAX - 18)},
        doubling(8),
    ],
)
def test_ordinary_schemas_are_taken(schema: dict[str, Any]) -> None:
    """A rule that refuses what people write is switched off."""
    assert reason(schema) is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (True, "is not an object"),
        ("text", "is not an object"),
        (nested(SCHEMA_DEPTH_MAX + 1), "is nested deeper than 32"),
        ({"description": "d" * (SCHEMA_BYTES_MAX - 17)}, "is 65537 bytes"),
        ({"$ref": "#"}, "back to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "back to itself"),
        (
            {"$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}},
            "back to itself",
        ),
        ({"properties": {"default": {"$ref": "http://example.com/a"}}}, "must stay inside"),
        ({"$ref": "file:///etc/passwd"}, "must stay inside"),
        ({"$ref": "other.json"}, "must stay inside"),
        ({"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}}, "must stay inside"),
        ({"$ref": "#/$defs/none"}, "which is not there"),
        ({"allOf": [{}], "$ref": "#/allOf/1"}, "which is not there"),
        ({"allOf": [{}], "$ref": "#/allOf/99999999"}, "which is not there"),
        ({"title": "t", "$ref": "#/title/x"}, "which is not there"),
        ({"items": {"$id": "https://example.com/x"}}, "has an $id below its top"),
        ({"$dynamicRef": "#x"}, "changes its meaning"),
        ({"items": {"$recursiveRef": "#"}}, "changes its meaning"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "is of draft 4"),
        (doubling(16), f"expands to more than {EXPANDED_MAX}"),
        (doubling(60), f"expands to more than {EXPANDED_MAX}"),
    ],
)
def test_a_schema_that_could_run_away_is_refused(schema: Any, words: str) -> None:
    """One tenant's schema runs in the process of all: sixteen doublings took six seconds."""
    found = reason(schema)
    assert found is not None
    assert words in found


def test_the_count_is_that_of_the_schema_with_its_references_replaced() -> None:
    """A count that forgets to multiply refuses nothing that is dangerous."""
    leaf: dict[str, Any] = {"type": "string"}
    assert Expansion({"items": leaf}).count() == 2
    twice = {"items": {"$ref": "#/$defs/a"}, "not": {"$ref": "#/$defs/a"}, "$defs": {"a": leaf}}
    # The schema, the two that refer with what they name, and `$defs` with its one.
    assert Expansion(twice).count() == 1 + 2 * (1 + 1) + 2


def test_the_bound_of_the_expansion_is_taken_and_one_more_is_not() -> None:
    """A bound that nobody reached was never tested."""
    parts: list[dict[str, Any]] = [{} for _ in range(EXPANDED_MAX - 1)]
    assert reason({"anyOf": parts}) is None
    assert reason({"anyOf": [*parts, {}]}) is not None
