"""The `if` of a workflow node: a bounded JSON predicate on how its parents ended. Pure, and total.

Results of parents are what their handlers said: any JSON, or none. Every comparison has an answer
for any pair of values, so that a hostile result decides one node, and fails nothing.

| asked | where the path leads nowhere, or to another type |
|---|---|
| `eq`, `in`, `gt`, `ge`, `lt`, `le` | false |
| `ne` | true |
| `exists` | whether the path leads somewhere, also to null |
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from duly.domain.limits import Problem
from duly.domain.states import TERMINAL, State

PREDICATE_BYTES_MAX = 8 * 1024
# Parts of a predicate: comparisons, and what joins them.
TERMS_MAX = 200
DEPTH_MAX = 16
PATH_CHARACTERS_MAX = 512
# Results that one evaluation reads, each at most as long as a result may be.
NODES_NAMED_MAX = 10
PROBLEMS_MAX = 20
# Longer integers are compared as decimals: Python converts no more than 4,300 digits.
INTEGER_DIGITS_MAX = 1000
INDEX_DIGITS_MAX = 8

JOINS = ("all", "any")
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": lambda found, asked: found > asked,
    "ge": lambda found, asked: found >= asked,
    "lt": lambda found, asked: found < asked,
    "le": lambda found, asked: found <= asked,
}
COMPARISONS = ("eq", "ne", *ORDERS, "in", "exists")
STATE_COMPARISONS = ("eq", "ne", "in")
STATES = frozenset(state.value for state in TERMINAL)


class ParentEnd(NamedTuple):
    """How a parent ended, and its result as JSON."""

    state: State
    result: str | None = None


class Missing:
    """What stands where a path leads nowhere."""


MISSING = Missing()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of the value at `path` in the result of `node`, or of its state where there is no path."""

    node: str
    path: tuple[str, ...] | None
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Junction:
    """`all`, `any` or `not` of its parts."""

    kind: str
    parts: "tuple[Predicate, ...]"


Predicate = Comparison | Junction


class PredicateRefused(Exception):
    """What is wrong with a predicate, with a pointer to each. Raised by `parse_predicate` alone."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__()
        self.problems = problems


def parse_predicate(text: str, parents: Collection[str] | None = None) -> Predicate:
    """Checked against the names of the node's parents; without these, it was checked before."""
    if len(text.encode()) > PREDICATE_BYTES_MAX:
        raise PredicateRefused([Problem("", f"is longer than {PREDICATE_BYTES_MAX} bytes")])
    document = read_json(text)
    if parents is not None:
        problems = list(document_problems(document, frozenset(parents)))[:PROBLEMS_MAX]
        if problems:
            raise PredicateRefused(problems)
    return build(document)


def build(document: dict[str, Any]) -> Predicate:
    for kind in JOINS:
        if kind in document:
            return Junction(kind, tuple(map(build, document[kind])))
    if "not" in document:
        return Junction("not", (build(document["not"]),))
    path = None if document.get("of") == "state" else path_tokens(document.get("path", ""))
    (operator,) = (name for name in COMPARISONS if name in document)
    return Comparison(document["node"], path, operator, document[operator])


def path_tokens(path: str) -> tuple[str, ...]:
    """Of a JSON pointer."""
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:])


def nodes_named(predicate: Predicate) -> frozenset[str]:
    """The parents whose ends it asks for."""
    if isinstance(predicate, Comparison):
        return frozenset({predicate.node})
    return frozenset().union(*map(nodes_named, predicate.parts))


def evaluate(predicate: Predicate, parents: Mapping[str, ParentEnd]) -> bool:
    """Whether the node runs. The parents that it names have ended, or decided for its rule."""
    results: dict[str, Any] = {}

    def value_at(node: str, path: tuple[str, ...]) -> Any:
        if node not in results:
            end = parents.get(node)
            results[node] = MISSING if end is None else read_result(end.result)
        return look_up(results[node], path)

    def holds(part: Predicate) -> bool:
        if isinstance(part, Junction):
            if part.kind == "not":
                return not holds(part.parts[0])
            return (all if part.kind == "all" else any)(map(holds, part.parts))
        if part.path is not None:
            return compare(part.operator, value_at(part.node, part.path), part.value)
        end = parents.get(part.node)
        return compare(part.operator, MISSING if end is None else end.state.value, part.value)

    return holds(predicate)


def compare(operator: str, found: Any, asked: Any) -> bool:
    match operator:
        case "exists":
            return (found is not MISSING) is asked
        case "eq":
            return is_same(found, asked)
        case "ne":
            return not is_same(found, asked)
        case "in":
            return any(is_same(found, each) for each in asked)
        case _:
            is_ordered = is_number(found) and is_number(asked)
            is_ordered |= isinstance(found, str) and isinstance(asked, str)
            return is_ordered and ORDERS[operator](found, asked)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def is_same(one: Any, other: Any) -> bool:
    """As JSON: true is not 1, and 1 is 1.0. Without recursion, however deep they are."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if is_number(left) and is_number(right):
            if left != right:
                return False
        elif type(left) is not type(right):
            return False
        elif isinstance(left, dict):
            if left.keys() != right.keys():
                return False
            pairs += [(value, right[name]) for name, value in left.items()]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif left != right:
            return False
    return True


def look_up(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
            continue
        place = index_of(name) if isinstance(value, list) else None
        if place is None or place >= len(value):
            return MISSING
        value = value[place]
    return value


def index_of(index: str) -> int | None:
    """As JSON pointers write them, within any list that fits a result."""
    is_index = index.isascii() and index.isdecimal() and len(index) <= INDEX_DIGITS_MAX
    return int(index) if is_index and (index == "0" or index[0] != "0") else None


def read_result(text: str | None) -> Any:
    if text is None:
        return MISSING
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return MISSING


def read_json(text: str) -> Any:
    """Numbers exactly as they are written."""
    return json.loads(text, parse_int=integer, parse_float=number, parse_constant=lambda _: MISSING)


def integer(text: str) -> Any:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else number(text)


def number(text: str) -> Any:
    try:
        return Decimal(text)
    except InvalidOperation:
        # An exponent of twenty digits: as good as infinite, or nothing.
        return float(text)


def document_problems(document: Any, parents: frozenset[str]) -> Iterator[Problem]:
    """Of all parts, level by level."""
    level = [("", document)]
    terms, named = 0, set()
    for _ in range(DEPTH_MAX):
        deeper: list[tuple[str, Any]] = []
        for at, part in level:
            terms += 1
            if terms > TERMS_MAX:
                yield Problem("", f"has more than {TERMS_MAX} parts")
                return
            yield from part_problems(part, at, parents)
            deeper += inner_parts(part, at)
            if isinstance(part, dict) and isinstance(part.get("node"), str):
                named.add(part["node"])
        level = deeper
    if level:
        yield Problem("", f"is nested deeper than {DEPTH_MAX} levels")
    if len(named) > NODES_NAMED_MAX:
        yield Problem("", f"names more than {NODES_NAMED_MAX} nodes")


def inner_parts(part: Any, at: str) -> list[tuple[str, Any]]:
    if not isinstance(part, dict):
        return []
    inner = [
        (f"{at}/{kind}/{place}", each)
        for kind in JOINS
        if isinstance(part.get(kind), list)
        for place, each in enumerate(part[kind])
    ]
    return inner + ([(f"{at}/not", part["not"])] if "not" in part else [])


def part_problems(part: Any, at: str, parents: frozenset[str]) -> Iterator[Problem]:
    if not isinstance(part, dict):
        yield Problem(at, "is not an object")
        return
    joins = [name for name in (*JOINS, "not") if name in part]
    if not joins:
        yield from comparison_problems(part, at, parents)
        return
    if len(part) > 1:
        yield Problem(at, f"has {joins[0]} and other members")
    for name in joins:
        if name != "not" and not (isinstance(part[name], list) and part[name]):
            yield Problem(f"{at}/{name}", "is not a list with at least one part")


def comparison_problems(
    part: dict[str, Any], at: str, parents: frozenset[str]
) -> Iterator[Problem]:
    known = ("node", "of", "path", *COMPARISONS)
    for name in part:
        if name not in known:
            yield Problem(f"{at}/{escaped(name)}", f"is none of all, any, not, {', '.join(known)}")
    node = part.get("node")
    if not isinstance(node, str):
        yield Problem(f"{at}/node", "is the name of a parent")
    elif node not in parents:
        yield Problem(f"{at}/node", f"is {node[:64]!r}, which is not in after")
    yield from place_problems(part, at)
    asked = [name for name in COMPARISONS if name in part]
    if len(asked) != 1:
        yield Problem(at, f"needs exactly one of {', '.join(COMPARISONS)}")
        return
    yield from value_problems(part, f"{at}/{asked[0]}", asked[0])


def place_problems(part: dict[str, Any], at: str) -> Iterator[Problem]:
    of, path = part.get("of", "result"), part.get("path", "")
    if of not in ("result", "state"):
        yield Problem(f"{at}/of", "is result or state")
    if reason := path_reason(path):
        yield Problem(f"{at}/path", reason)
    elif of == "state" and "path" in part:
        yield Problem(f"{at}/path", "belongs to a result; a state has none")


def path_reason(path: Any) -> str | None:
    """What is wrong with a path into a result."""
    if not isinstance(path, str) or (path and not path.startswith("/")):
        return "is no JSON pointer, such as /failed"
    if len(path) > PATH_CHARACTERS_MAX:
        return f"is longer than {PATH_CHARACTERS_MAX} characters"
    return None


def value_problems(part: dict[str, Any], at: str, operator: str) -> Iterator[Problem]:
    value = part[operator]
    if operator == "exists" and not isinstance(value, bool):
        yield Problem(at, "is true or false")
    elif operator == "in" and not isinstance(value, list):
        yield Problem(at, "is not a list")
    elif operator in ORDERS and not (is_number(value) or isinstance(value, str)):
        yield Problem(at, "is not a number or a text")
    elif part.get("of") == "state":
        asked = value if operator == "in" else [value]
        if operator not in STATE_COMPARISONS:
            yield Problem(at, f"does not compare states; {', '.join(STATE_COMPARISONS)} do")
        elif not all(isinstance(each, str) and each in STATES for each in asked):
            yield Problem(at, f"is none of {', '.join(sorted(STATES))}")


def escaped(name: str) -> str:
    return name[:64].replace("~", "~0").replace("/", "~1")
