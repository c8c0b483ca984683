"""What a workflow asks of results that are not there yet: `charge["failed"] > 0`.

A path into the result of a node is compared, and the comparisons are joined by `&`, `|` and `~`:
conditions of `if_`, which the server evaluates when the parents have ended.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NoReturn

import msgspec

from duly.client.errors import InvalidWorkflow


class Condition:
    """Whether a node runs: `flow.task("refund", after=charge, if_=charge["failed"] > 0)`. Joined by
    `&`, `|`, `~`, with parentheses around comparisons; Python's `and`, `or`, `not` cannot be."""

    def __init__(self, fields: dict[str, Any]) -> None:
        # As the API has it.
        self.fields = fields

    def __and__(self, other: "Condition") -> "Condition":
        return joined("all", self, other)

    def __or__(self, other: "Condition") -> "Condition":
        return joined("any", self, other)

    def __invert__(self) -> "Condition":
        return Condition({"not": self.fields})

    def __bool__(self) -> NoReturn:
        problem = "a condition is known when its workflow runs: join with &, | and ~"
        raise InvalidWorkflow(problem=problem)

    def __repr__(self) -> str:
        return f"<Condition {self.fields}>"


class Compared:
    """What can be compared of a node that has not run yet."""

    def subject(self) -> dict[str, Any]:
        raise NotImplementedError

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return Condition(self.subject() | {"eq": value})

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return Condition(self.subject() | {"ne": value})

    def one_of(self, values: Collection[Any]) -> Condition:
        """Whether it is one of these."""
        return Condition(self.subject() | {"in": list(values)})

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise InvalidWorkflow(problem="what a node answers is known when it has run: compare it")


class NodeState(Compared):
    """How a node ends: `charge.state == "FAILED"`."""

    def __init__(self, node: str) -> None:
        self.node = node

    def subject(self) -> dict[str, Any]:
        return {"node": self.node, "of": "state"}


class NodeResult(Compared):
    """A place in the result of a node: `charge["totals"]["failed"]`, a whole one: `charge.result`.
    Compared with a number or a text, and of another type than that, no order holds."""

    def __init__(self, node: str, path: tuple[str, ...] = ()) -> None:
        self.node = node
        self.path = path

    def __getitem__(self, member: str | int) -> "NodeResult":
        return NodeResult(self.node, (*self.path, str(member)))

    # Without this, `in` and loops would try one index after another, for ever.
    __iter__: Any = None
    __contains__: Any = None

    @property
    def pointer(self) -> str:
        """As a JSON pointer."""
        return "".join(f"/{each.replace('~', '~0').replace('/', '~1')}" for each in self.path)

    def subject(self) -> dict[str, Any]:
        return {"node": self.node, "path": self.pointer}

    def exists(self, *, is_there: bool = True) -> Condition:
        """Whether the result has this place, whatever is there."""
        return Condition(self.subject() | {"exists": is_there})

    def __gt__(self, value: float | str) -> Condition:
        return Condition(self.subject() | {"gt": value})

    def __ge__(self, value: float | str) -> Condition:
        return Condition(self.subject() | {"ge": value})

    def __lt__(self, value: float | str) -> Condition:
        return Condition(self.subject() | {"lt": value})

    def __le__(self, value: float | str) -> Condition:
        return Condition(self.subject() | {"le": value})

    def __repr__(self) -> str:
        return f"<NodeResult {self.node}{self.pointer}>"


class SignalResult(msgspec.Struct, frozen=True):
    """What a wait for a signal answers: what was sent, and by which credential with which role.
    `timed_out`: none came in time, and the workflow goes on without it."""

    payload: Any = None
    sender: str | None = None
    role: str | None = None
    received_at: datetime | None = None
    timed_out: bool = False


class MapResult(msgspec.Struct, frozen=True):
    """What a map answers: how its items ended. Those that were not run when it failed count as
    cancelled."""

    items: int
    completed: int
    failed: int
    cancelled: int


class InnerResult(msgspec.Struct, frozen=True):
    """What a node answers that starts a workflow: how that ended, and the results of the last nodes
    of its graph, by name; with `has_more`, not of all of them."""

    workflow: str
    state: str
    counts: dict[str, int]
    results: dict[str, Any]
    has_more: bool = False


def decode_inner(content: bytes) -> InnerResult:
    return msgspec.json.decode(content, type=InnerResult)


def decode_map(content: bytes) -> MapResult:
    return msgspec.json.decode(content, type=MapResult)


def decode_signal(content: bytes) -> SignalResult:
    return msgspec.json.decode(content, type=SignalResult)


def joined(kind: str, left: Condition, right: Condition) -> Condition:
    """Of three in a row one list, as they were written."""
    if not isinstance(right, Condition):
        raise InvalidWorkflow(problem=f"{right!r} is no condition; parentheses may be missing")
    before = left.fields[kind] if left.fields.keys() == {kind} else [left.fields]
    return Condition({kind: [*before, right.fields]})
