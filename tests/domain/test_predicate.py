"""Predicates of workflow nodes: what holds, what is refused, and that every value has an answer."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.predicate import (
    COMPARISONS,
    DEPTH_MAX,
    NODES_NAMED_MAX,
    ORDERS,
    PATH_CHARACTERS_MAX,
    PREDICATE_BYTES_MAX,
    TERMS_MAX,
    ParentEnd,
    PredicateRefused,
    evaluate,
    nodes_named,
    parse_predicate,
)
from duly.domain.states import State

PARENTS = {
    "charge": ParentEnd(
        State.COMPLETED,
        '{"failed": 3, "ids": [1, "2", null], "a/b": {"~": true}, "name": "x",'
        ' "big": 9007199254740993}',
    ),
    "refund": ParentEnd(State.FAILED),
    "text": ParentEnd(State.COMPLETED, "not JSON"),
}
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
numbers = st.one_of(
    st.integers(-(10**30), 10**30),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(float),
    st.sampled_from(["1e400", "-1e400", "1.0", "0.1", "-0.0", "123456789012345678901234567890.5"]),
)


def holds(document: Any, parents: dict[str, ParentEnd] | None = None) -> bool:
    known = PARENTS if parents is None else parents
    text = document if isinstance(document, str) else json.dumps(document)
    return evaluate(parse_predicate(text, known), known)


def problems_of(document: Any) -> list[tuple[str, str]]:
    with pytest.raises(PredicateRefused) as refused:
        parse_predicate(json.dumps(document), PARENTS)
    return [(problem.pointer, problem.reason) for problem in refused.value.problems]


def of(path: str, **comparison: Any) -> dict[str, Any]:
    return {"node": "charge", "path": path} | comparison


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (of("/failed", gt=0), True),
        (of("/failed", gt=3), False),
        (of("/failed", ge=3), True),
        (of("/failed", lt=3), False),
        (of("/failed", le=3), True),
        (of("/failed", eq=3.0), True),
        (of("/failed", eq="3"), False),
        (of("/failed", ne="3"), True),
        (of("/failed", eq=True), False),
        (of("/failed", gt="2"), False),
        (of("/failed", **{"in": [1, 3]}), True),
        (of("/ids/0", eq=1), True),
        (of("/ids/0", eq=True), False),
        (of("/ids/1", eq="2"), True),
        (of("/ids/2", eq=None), True),
        (of("/ids/2", exists=True), True),
        (of("/ids/3", exists=True), False),
        (of("/ids/00", exists=True), False),
        (of("/ids/-", exists=False), True),
        (of("/ids", eq=[1, "2", None]), True),
        (of("/ids", eq=[1, "2"]), False),
        (of("/a~1b/~0", eq=True), True),
        (of("/name", lt="y"), True),
        (of("/big", eq=9007199254740992), False),
        (of("/nowhere", eq=None), False),
        (of("/nowhere", ne=1), True),
        (of("/name/deeper", exists=False), True),
        ({"node": "refund", "of": "state", "eq": "FAILED"}, True),
        ({"node": "refund", "of": "state", "in": ["SKIPPED", "CANCELLED"]}, False),
        ({"node": "refund", "exists": False}, True),
        ({"node": "text", "exists": False}, True),
        ({"all": [of("/failed", gt=0), of("/failed", lt=9)]}, True),
        ({"all": [of("/failed", gt=0), of("/failed", lt=1)]}, False),
        ({"any": [of("/failed", gt=5), of("/failed", lt=9)]}, True),
        ({"not": {"any": [of("/failed", gt=5), of("/failed", lt=1)]}}, True),
    ],
)
def test_a_predicate_says_whether_a_node_runs(document: Any, expected: bool) -> None:
    """A predicate that is read the wrong way refunds an order that was paid (I7)."""
    assert holds(document) is expected


@pytest.mark.parametrize(
    ("document", "pointer", "words"),
    [
        ([], "", "not an object"),
        ({"all": []}, "/all", "at least one part"),
        ({"all": [1]}, "/all/0", "not an object"),
        ({"not": {"not": 5}}, "/not/not", "not an object"),
        ({"all": [of("", eq=1)], "any": []}, "", "other members"),
        ({"node": "other", "eq": 1}, "/node", "'other', which is not in after"),
        ({"eq": 1}, "/node", "name of a parent"),
        ({"node": "charge"}, "", "exactly one"),
        (of("/x", eq=1, gt=2), "", "exactly one"),
        (of("x", eq=1), "/path", "JSON pointer"),
        (of(5, eq=1), "/path", "JSON pointer"),  # type: ignore[arg-type]
        (of("/" + "x" * PATH_CHARACTERS_MAX, eq=1), "/path", "longer than"),
        (of("/x", gt=True), "/gt", "number or a text"),
        (of("/x", gt=None), "/gt", "number or a text"),
        (of("/x", **{"in": 5}), "/in", "not a list"),
        (of("/x", exists=1), "/exists", "true or false"),
        (of("/x", equals=1), "/equals", "none of"),
        ({"node": "charge", "of": "state", "eq": "DONE"}, "/eq", "none of CANCELLED"),
        ({"node": "charge", "of": "state", "in": [["FAILED"]]}, "/in", "none of CANCELLED"),
        ({"node": "charge", "of": "state", "gt": "A"}, "/gt", "does not compare states"),
        ({"node": "charge", "of": "state", "path": "/x", "eq": "FAILED"}, "/path", "belongs to"),
        ({"node": "charge", "of": "time", "eq": 1}, "/of", "result or state"),
    ],
)
def test_a_wrong_predicate_is_pointed_at(document: Any, pointer: str, words: str) -> None:
    """What is stored and cannot be evaluated strands its node at two in the morning."""
    found = problems_of(document)
    assert any(at == pointer and words in reason for at, reason in found), found


def test_every_bound_is_a_bound() -> None:
    """A predicate without bounds is a program, and runs where all tenants wait."""
    small = {"node": "charge", "eq": 1}

    def nested(depth: int) -> Any:
        document: Any = small
        for _ in range(depth - 1):
            document = {"not": document}
        return document

    holds(nested(DEPTH_MAX))
    assert "deeper" in problems_of(nested(DEPTH_MAX + 1))[0][1]
    holds({"any": [small] * (TERMS_MAX - 1)})
    assert "parts" in problems_of({"any": [small] * TERMS_MAX})[0][1]
    fits = {"node": "charge", "eq": ""}
    room = PREDICATE_BYTES_MAX - len(json.dumps(fits))
    holds(fits | {"eq": "x" * room})
    assert "longer" in problems_of(fits | {"eq": "x" * (room + 1)})[0][1]
    many = {f"n{place}": ParentEnd(State.COMPLETED) for place in range(NODES_NAMED_MAX + 1)}
    each = [{"node": name, "eq": 1} for name in many]
    holds({"any": each[:-1]}, many)
    with pytest.raises(PredicateRefused):
        holds({"any": each}, many)
    assert nodes_named(parse_predicate(json.dumps({"any": each[:2]}))) == {"n0", "n1"}


@given(values, values, st.sampled_from(COMPARISONS))
def test_every_pair_of_values_has_an_answer(result: Any, asked: Any, operator: str) -> None:
    """A result that raises fails a batch of other workflows' nodes."""
    given_ = {"in": [asked], "exists": True}.get(operator, asked)
    if operator in ORDERS and (
        isinstance(given_, bool) or not isinstance(given_, (int, float, str))
    ):
        given_ = 0
    parents = {"a": ParentEnd(State.COMPLETED, json.dumps(result))}
    found = holds({"node": "a", operator: given_}, parents)
    again = holds({"not": {"not": {"node": "a", operator: given_}}}, parents)
    assert found is again
    if operator == "eq":
        assert found is (canonical(result) == canonical(asked))
        assert holds({"node": "a", "ne": asked}, parents) is not found


def canonical(value: Any) -> Any:
    """Another way to compare JSON: kinds are written beside the values."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__, value
    if isinstance(value, (int, float)):
        return "number", Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    if isinstance(value, list):
        return "list", [canonical(each) for each in value]
    return "object", {name: canonical(each) for name, each in value.items()}


@given(numbers, numbers)
def test_numbers_are_compared_exactly(found: Any, asked: Any) -> None:
    """Amounts beyond 2^53 would be equal to their neighbours."""
    left, right = Fraction(str(found)), Fraction(str(asked))
    parents = {"a": ParentEnd(State.COMPLETED, str(found))}
    expected = {
        "eq": left == right,
        "ne": left != right,
        "gt": left > right,
        "ge": left >= right,
        "lt": left < right,
        "le": left <= right,
    }
    for operator, answer in expected.items():
        assert holds(f'{{"node": "a", "{operator}": {asked}}}', parents) is answer, operator


@pytest.mark.parametrize(
    "text",
    [
        "9" * 60_000,
        "-" + "9" * 60_000,
        "1e99999999999999999999999",
        "1e-99999999999999999999999",
        "1e999999",
        "[" * 60_000,
        "[" * 30_000 + "]" * 30_000,
        '{"a":' * 12_000 + "1" + "}" * 12_000,
        "NaN",
        "Infinity",
        "",
        "\ud800",
        '"\\ud800"',
    ],
)
def test_a_hostile_result_is_compared_like_any_other(text: str) -> None:
    """A handler answers what it likes; the step that reads it must not fail, nor take long."""
    parents = {"a": ParentEnd(State.COMPLETED, text)}
    for operator in COMPARISONS:
        given_ = {"in": [1, "x", [[]]], "exists": True}.get(operator, 7)
        assert isinstance(holds({"node": "a", operator: given_}, parents), bool)
