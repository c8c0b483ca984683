"""A body that is mostly one list (tasks, settlements, heartbeats), decoded in slices.

The items are counted before any of them is decoded, and no single one may be longer than a body
that holds nothing else: so what is refused costs little, and what is taken holds the event loop for
a few milliseconds at a time.

| pass over the bytes | at 16 MiB |
|---|---|
| count the items, up to the first too many or the first that is no object | up to 40 ms |
| find the members of the body, each once | up to 40 ms |
| find where each item begins and ends | up to 40 ms |
| decode and check each item | in slices |
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duly.api.admission import WorkSlicer
from duly.api.json_body import (
    ERRORS_MAX,
    check_framing,
    decode,
    escape,
    malformed,
    problem_from,
    unknown_reason,
)
from duly.api.problems import ApiProblem, Code, invalid
from duly.domain.limits import Problem

# Up to here its items need not be counted before; up to there it is decoded at once all the same.
SHORT_BYTES_MAX = 16 * 1024
WHOLE_BYTES_MAX = 256 * 1024
ITEM_BYTES_MAX = 256 * 1024
# Everything but the list.
REST_BYTES_MAX = 16 * 1024

Model = TypeVar("Model", bound=msgspec.Struct)
Item = TypeVar("Item")


class TooMany(ValueError):
    """More items than the list may have; msgspec stops at the one that raises it."""


class CountedItem(msgspec.Struct, gc=False):
    """An item whose content is skipped. Decoding is never interrupted, so one count is enough."""

    def __post_init__(self) -> None:
        ItemCounter.count += 1
        if ItemCounter.count > ItemCounter.most:
            raise TooMany


class ItemCounter:
    count = 0
    most = 0


class MemberName(str):
    """A name of the body, seen while it is decoded: a dict would hide that it was there twice."""

    __slots__ = ()


class MemberRefused(ValueError):
    """A member of the body that is none of its model's, or comes again; msgspec stops there."""

    def __init__(self, problem: ApiProblem) -> None:
        super().__init__()
        self.problem = problem


class Shape(msgspec.Struct, frozen=True):
    """How a model is read: its list, what that holds, and how much of it."""

    list_name: str
    item: Any
    most: int
    # The same body with items that are only counted.
    counted: Any
    types: dict[str, Any]


@functools.cache
def shape_of(model: type[msgspec.Struct]) -> Shape:
    """Exactly one field of such a model is a list of structs, with a bound."""
    hints = get_type_hints(model, include_extras=True)
    (list_name,) = (name for name, hint in hints.items() if is_list(hint))
    bounded, meta = get_args(hints[list_name])
    (item,) = get_args(bounded)
    fields: list[Any] = [(list_name, Annotated[list[CountedItem], Meta(min_length=1)])]
    for field in msgspec.structs.fields(model):
        if field.name != list_name and field.required:
            fields.append((field.name, msgspec.Raw))
        elif field.name != list_name:
            fields.append((field.name, msgspec.Raw | UnsetType, UNSET))
    counted = msgspec.defstruct("Counts", fields, forbid_unknown_fields=True, kw_only=True)
    return Shape(list_name, item, meta.max_length, counted, hints)


def is_list(hint: Any) -> bool:
    return get_origin(hint) is Annotated and get_origin(get_args(hint)[0]) is list


async def decode_list(body: bytes, model: type[Model], pace: WorkSlicer) -> Model:
    """Of this model, or Refused with what is wrong, as far as it was looked."""
    if len(body) <= SHORT_BYTES_MAX:
        return decode(body, model)
    shape = shape_of(model)
    count = count_items(body, shape, model)
    if len(body) <= WHOLE_BYTES_MAX:
        return decode(body, model)
    if len(body) > count * ITEM_BYTES_MAX + REST_BYTES_MAX:
        raise invalid([Problem(f"/{shape.list_name}", too_long_reason())])
    await pace.step(len(body))
    members = members_of(body, model)
    await pace.step(len(body))
    items = coarsely(memoryview(members.pop(shape.list_name)), list[msgspec.Raw], model)
    await pace.step(len(body))
    fields = {name: decode_member(raw, shape.types[name], name) for name, raw in members.items()}
    pointer = f"/{shape.list_name}"
    fields[shape.list_name] = await decode_chunks(items, shape.item, pointer, pace)
    return model(**fields)


def count_items(body: bytes, shape: Shape, model: Any) -> int:
    ItemCounter.count, ItemCounter.most = 0, shape.most
    if coarsely(body, shape.counted, model) is None:
        raise invalid([Problem(f"/{shape.list_name}", f"has more than {shape.most} items")])
    return ItemCounter.count


def members_of(body: bytes, model: Any) -> dict[str, msgspec.Raw]:
    """Unread. A million unknown names cost no more than the first of them."""
    known = {field.encode_name for field in msgspec.structs.fields(model)}
    names: set[str] = set()

    def seen(kind: type[MemberName], name: str) -> MemberName:
        if name not in known:
            reason = unknown_reason(name, dict.fromkeys(known))
            raise MemberRefused(invalid([Problem(f"/{escape(name)}", reason)]))
        if name in names:
            detail = f"the body has an object with two members {name!r}"
            raise MemberRefused(ApiProblem(Code.MALFORMED_BODY, detail))
        names.add(name)
        return kind(name)

    kind = dict[MemberName, msgspec.Raw]
    members: dict[str, msgspec.Raw] = coarsely(body, kind, model, seen)
    return {str(name): raw for name, raw in members.items()}


def coarsely(
    body: bytes | memoryview, kind: Any, model: Any, seen: Callable[..., Any] | None = None
) -> Any:
    """None: a list has too many items."""
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=seen)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TooMany):
            return None
        if isinstance(error.__cause__, MemberRefused):
            raise error.__cause__.problem from None
        raise invalid([problem_from(str(error), model)]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        malformed(error)


def decode_member(raw: msgspec.Raw, kind: Any, name: str, most: int = REST_BYTES_MAX) -> Any:
    """Everything but the list is short, and as sound as a body of its own."""
    member = bytes(raw)
    if len(member) > most:
        raise invalid([Problem(f"/{name}", f"is longer than {most} bytes")])
    check_framing(member)
    try:
        return msgspec.json.decode(member, type=kind)
    except msgspec.ValidationError as error:
        found = problem_from(str(error), kind)
        raise invalid([Problem(f"/{name}{found.pointer}", found.reason)]) from None


async def decode_values(
    body: bytes, model: type[Model], list_name: str, most: int, pace: WorkSlicer
) -> Model:
    """Of a body whose list has values of any kind, which are carried unread."""
    if len(body) <= SHORT_BYTES_MAX:
        return decode(body, model)
    members = members_of(body, model)
    await pace.step(len(body))
    raw = memoryview(members.get(list_name, msgspec.Raw()))
    values = coarsely(raw, list[msgspec.Raw], model) if raw[:1].tobytes() == b"[" else []
    if not 1 <= len(values) <= most:
        raise invalid([Problem(f"/{list_name}", f"has not from 1 to {most} items")])
    await pace.step(len(body))
    return decode(body, model)


async def decode_chunks(
    items: Sequence[msgspec.Raw], kind: Any, pointer: str, pace: WorkSlicer
) -> list[Any]:
    """Many at a time, which takes half as long as one by one; where something is wrong, one by one
    to find it."""
    decoded: list[Any] = []
    for chunk in chunks_of(items):
        whole = b"[" + b",".join(chunk) + b"]"
        await pace.step(len(whole))
        try:
            if len(whole) > ITEM_BYTES_MAX:
                break
            decoded += decode(whole, list[kind])
        except ApiProblem:
            break
    if len(decoded) == len(items):
        return decoded
    return await decode_items(items, kind, pointer, pace)


def chunks_of(items: Sequence[msgspec.Raw]) -> Iterator[list[bytes]]:
    """Each a slice's worth, or one item that is longer."""
    chunk: list[bytes] = []
    size = 0
    for item in items:
        raw = bytes(item)
        if chunk and size + len(raw) > WorkSlicer.SLICE:
            yield chunk
            chunk, size = [], 0
        chunk.append(raw)
        size += len(raw)
    yield chunk


async def decode_items(
    items: Sequence[msgspec.Raw], kind: type[Item], pointer: str, pace: WorkSlicer
) -> list[Item]:
    """All of them, or what is wrong with the first few that are not right."""
    decoded: list[Item] = []
    problems: list[Problem] = []
    for ordinal, item in enumerate(items):
        raw, at = bytes(item), f"{pointer}/{ordinal}"
        await pace.step(len(raw))
        try:
            decoded.append(decode_item(raw, kind))
        except ApiProblem as refused:
            errors = refused.errors or [Problem("", refused.detail)]
            problems += [Problem(at + error.pointer, error.reason) for error in errors]
            if refused.code is not Code.INVALID:
                raise ApiProblem(refused.code, refused.detail, problems) from None
            if len(problems) >= ERRORS_MAX:
                break
    if problems:
        raise invalid(problems[:ERRORS_MAX])
    return decoded


def decode_item(raw: bytes, kind: type[Item]) -> Item:
    if len(raw) > ITEM_BYTES_MAX:
        raise invalid([Problem("", too_long_reason())])
    return decode(raw, kind)


def too_long_reason() -> str:
    return f"has an item longer than {ITEM_BYTES_MAX} bytes"


async def decode_lines(
    body: bytes, kind: type[Item], most: int, pointer: str, pace: WorkSlicer
) -> list[Item]:
    """One item on each line that is not blank."""
    lines: list[msgspec.Raw] = []
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + WorkSlicer.SLICE)
        end = len(body) if end < 0 else end
        window = body[start:end]
        await pace.step(len(window))
        start = end + 1
        if window.isspace():
            continue
        found = [line for line in window.split(b"\n") if line and not line.isspace()]
        lines.extend(map(msgspec.Raw, found))
        if len(lines) > most:
            break
    if not 1 <= len(lines) <= most:
        raise invalid([Problem(pointer, f"has not from 1 to {most} lines")])
    return await decode_items(lines, kind, pointer, pace)
