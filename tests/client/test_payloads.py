"""From payloads to arguments: what fits is converted, what does not is refused with its place."""

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest

from duly.client.errors import InvalidPayload
from duly.client.payloads import Binder
from duly.domain.errors import ConfigurationError


class Order(msgspec.Struct):
    id: str
    amounts: list[int]


@dataclass
class Address:
    street: str


class Line(TypedDict):
    sku: str


def fields(ctx: Any, to: str, at: datetime, copies: int = 1) -> None: ...


def struct(ctx: Any, order: Order) -> None: ...


def record(ctx: Any, address: Address) -> None: ...


def typed(ctx: Any, line: Line) -> None: ...


def whole(ctx: Any, payload: Any) -> None: ...


def numbers(ctx: Any, values: list[int]) -> None: ...


def nothing(ctx: Any) -> None: ...


def optional(ctx: Any, size: int = 3) -> None: ...


def rest(ctx: Any, to: str, **more: Any) -> None: ...


def custom(ctx: Any, path: Path, address: IPv4Address) -> None: ...


def untyped(ctx, a, *, b): ...  # type: ignore[no-untyped-def]


def bound(function: Any, payload: str) -> dict[str, Any]:
    return Binder(function).arguments(msgspec.Raw(payload.encode()))


@pytest.mark.parametrize(
    ("function", "payload", "arguments"),
    [
        (
            fields,
            '{"to": "a", "at": "2026-01-01T00:00:00Z"}',
            {"to": "a", "at": datetime(2026, 1, 1, tzinfo=UTC), "copies": 1},
        ),
        (struct, '{"id": "o", "amounts": [1], "new": 1}', {"order": Order("o", [1])}),
        (record, '{"street": "s"}', {"address": Address("s")}),
        (typed, '{"sku": "s"}', {"line": {"sku": "s"}}),
        (whole, '{"a": 1}', {"payload": {"a": 1}}),
        (whole, "null", {"payload": None}),
        (numbers, "[1, 2]", {"values": [1, 2]}),
        (numbers, '{"values": [1]}', {"values": [1]}),
        (nothing, "null", {}),
        (nothing, "{}", {}),
        (optional, "null", {}),
        (optional, "7", {"size": 7}),
        (rest, '{"to": "a", "x": 1}', {"to": "a", "x": 1}),
        (
            custom,
            '{"path": "/x", "address": "10.0.0.1"}',
            {"path": Path("/x"), "address": IPv4Address("10.0.0.1")},
        ),
        (untyped, '{"a": 1, "b": [2]}', {"a": 1, "b": [2]}),
    ],
)
def test_a_payload_that_fits_becomes_arguments(
    function: Any, payload: str, arguments: dict[str, Any]
) -> None:
    """A handler that gets text for an instant fails later, and less clearly."""
    assert bound(function, payload) == arguments


@pytest.mark.parametrize(
    ("function", "payload", "reason"),
    [
        (fields, '{"to": 3, "at": "2026-01-01T00:00:00Z"}', "payload/to: expected `str`"),
        (fields, '{"to": "a"}', "payload: object missing required field `at`"),
        (
            optional,
            '{"syze": 3}',
            "payload: object contains unknown field `syze`; optional takes the field `size`, a",
        ),
        (struct, '{"id": "o", "amounts": [1, "x"]}', "payload/amounts/1: expected `int`"),
        (typed, "[]", "payload: expected `object`"),
        (numbers, '["x"]', "payload/0: expected `int`"),
        (custom, '{"path": "/x", "address": "x"}', "payload/address: expected 4 octets"),
        (fields, "3", "payload: an object is expected"),
        (fields, "null", "payload: an object is expected"),
        (nothing, '{"a": 1}', "payload: object contains unknown field `a`"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_its_place(
    function: Any, payload: str, reason: str
) -> None:
    """The error must say which of forty fields it was."""
    with pytest.raises(InvalidPayload) as refused:
        bound(function, payload)
    assert str(refused.value).startswith(reason)


def no_context() -> None: ...


def starred(ctx: Any, *values: int) -> None: ...


def impossible(ctx: Any, value: "NotThere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("function", [no_context, starred, impossible])
def test_a_signature_that_no_payload_fits_is_refused_at_the_start(function: Any) -> None:
    """Else each of its tasks would be leased first, and fail one after the other."""
    with pytest.raises(ConfigurationError, match=function.__name__):
        Binder(function)
