"""Decode a request body: strict JSON, every error with a JSON pointer.

What Python's own parser lets through is refused here: duplicate keys, NaN, numbers out of range,
lone surrogates, other encodings than UTF-8, and nesting past a bound.
"""

import difflib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import UnionType
from typing import (
    Annotated,
    Any,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from duly.api.problems import ApiProblem, Code, invalid, invalid_query
from duly.domain.limits import NUL, NUL_REASON, Problem, has_nul

DEPTH_MAX = 64
ERRORS_MAX = 50
# In a longer body a U+0000 is refused without saying where: the search would hold up others.
NUL_SOUGHT_BYTES_MAX = 256 * 1024
AT = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
CONTAINERS = frozenset({dict, list})
# White space that can follow a quote; inside a text it has to be escaped, and one byte is
# looked for much faster than two.
OTHER_SPACE = (b"\n", b"\r", b"\t")

Model = TypeVar("Model")


def decode(body: bytes, model: type[Model]) -> Model:
    """Decode into the model, or raise ApiProblem with all problems."""
    check_framing(body)
    try:
        return msgspec.json.decode(body, type=model)
    except msgspec.ValidationError as error:
        raise invalid(all_problems(body, model, str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        malformed(error)


def check_framing(body: bytes) -> None:
    """Refuse what is not JSON, or is JSON that two readers would read differently."""
    if not body:
        raise ApiProblem(Code.MALFORMED_BODY, "the body is empty; a JSON object is expected")
    try:
        # The whole document: a payload that is carried unread must be as sound as what is read.
        document = msgspec.json.decode(body)
        names = count_names(document)
        if not is_written_once(body, names):
            PAIRS.decode(body.decode())
    except msgspec.ValidationError as error:
        raise ApiProblem(
            Code.MALFORMED_BODY, f"the body has a value out of range: {error}"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        malformed(error)
    if NUL in body and has_nul(body):
        is_short = len(body) <= NUL_SOUGHT_BYTES_MAX
        raise invalid([Problem(nul_pointer(document) or "" if is_short else "", NUL_REASON)])


def nul_pointer(value: Any) -> str | None:
    """Where a U+0000 stands: in a text, or in a name of this object."""
    if isinstance(value, str):
        return "" if "\x00" in value else None
    if isinstance(value, dict):
        if any("\x00" in name for name in value):
            return ""
        for name, each in value.items():
            if (pointer := nul_pointer(each)) is not None:
                return f"/{escape(name)}{pointer}"
    elif isinstance(value, list):
        for index, each in enumerate(value):
            if (pointer := nul_pointer(each)) is not None:
                return f"/{index}{pointer}"
    return None


def count_names(document: Any) -> int:
    """The members of all objects in it; a level at a time, and not deeper than is allowed."""
    names, level = 0, [document]
    for _ in range(DEPTH_MAX + 1):
        level = [value for value in level if type(value) in CONTAINERS]
        if not level:
            return names
        deeper: list[Any] = []
        for container in level:
            if type(container) is dict:
                names += len(container)
                deeper += container.values()
            else:
                deeper += container
        level = deeper
    raise ApiProblem(Code.MALFORMED_BODY, f"the body is nested deeper than {DEPTH_MAX} levels")


def is_written_once(body: bytes, names: int) -> bool:
    """Quickly, whether no object has a member twice; False says that one must look closely.

    Where nothing but a colon, comma or bracket follows a quote, each member written shows as `":`,
    as does a quote inside a text at times; so with no more of these than names nothing is twice.
    """
    if any(mark in body for mark in OTHER_SPACE) or b'" ' in body:
        return False
    return body.count(b'":') == names


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ApiProblem(
            Code.MALFORMED_BODY, f"the body has an object with two members {twice[:64]!r}"
        )
    return found


# Reads only to find members that occur twice; every number is left as it stands.
PAIRS = json.JSONDecoder(object_pairs_hook=unique, parse_float=str, parse_int=str)


def malformed(error: Exception) -> NoReturn:
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    raise ApiProblem(Code.MALFORMED_BODY, f"the body is not valid JSON: {reason}") from None


def convert_query(given: Mapping[str, str], model: type[Model]) -> Model:
    """Query parameters, which are all text, as the types that the model says."""
    struct: Any = model
    try:
        converted = msgspec.convert(dict(given), type=model, strict=False)
    except msgspec.ValidationError as error:
        known = {field.encode_name for field in msgspec.structs.fields(struct)}
        for name in given:
            if name not in known:
                raise invalid_query(unknown_parameter(name, known)) from None
        raise invalid_query(problem_from(str(error), model)) from None
    for field in msgspec.structs.fields(struct):
        name = field.encode_name
        if name in given and getattr(converted, field.name) is None:
            # The text "null", which msgspec would take for nothing: the whole list, unfiltered.
            raise invalid_query(Problem(f"/{name}", "is never null; leave it out"))
    return converted


def unknown_parameter(name: str, known: Iterable[str]) -> Problem:
    """Every call takes `tenant`."""
    close = difflib.get_close_matches(name[:64], [*known, "tenant"], n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return Problem(f"/{escape(name)}", f"is not a known parameter{hint}")


def all_problems(body: bytes, model: type, first: str) -> list[Problem]:
    """msgspec stops at its first error; the fields are asked one by one for the others."""
    document = msgspec.json.decode(body)
    found = list(islice(struct_problems(document, model, ""), ERRORS_MAX))
    return found or [problem_from(first, model)]


def struct_problems(document: Any, model: Any, pointer: str) -> Iterator[Problem]:
    if not isinstance(document, dict) or (fields := fields_of(model)) is None:
        return
    for name in document:
        if name not in fields:
            yield Problem(f"{pointer}/{escape(name)}", unknown_reason(name, fields))
    for name, (kind, is_required) in fields.items():
        if name in document:
            yield from field_problems(document[name], kind, f"{pointer}/{name}")
        elif is_required:
            yield Problem(f"{pointer}/{name}", "is required")


def field_problems(value: Any, kind: Any, pointer: str) -> Iterator[Problem]:
    """Of one value: those of its parts where the type has parts, else its own."""
    is_found = False
    for problem in part_problems(value, kind, pointer):
        is_found = True
        yield problem
    if not is_found:
        try:
            msgspec.json.decode(msgspec.json.encode(value), type=kind)
        except msgspec.ValidationError as error:
            problem = problem_from(str(error), kind)
            yield Problem(pointer + problem.pointer, problem.reason)


def part_problems(value: Any, kind: Any, pointer: str) -> Iterator[Problem]:
    for shape in shapes_of(kind):
        if isinstance(value, dict) and fields_of(shape) is not None:
            yield from struct_problems(value, shape, pointer)
        elif isinstance(value, list) and get_origin(shape) is list:
            (element,) = get_args(shape)
            for index, item in enumerate(value):
                yield from struct_problems(item, element, f"{pointer}/{index}")


def shapes_of(kind: Any) -> Iterator[Any]:
    """The plain types behind `Annotated` and unions."""
    if get_origin(kind) is Annotated:
        yield from shapes_of(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from shapes_of(part)
    else:
        yield kind


@functools.cache
def fields_of(model: Any) -> dict[str, tuple[Any, bool]] | None:
    """Of a Struct: each field's type, and whether it must be given."""
    if not (isinstance(model, type) and issubclass(model, msgspec.Struct)):
        return None
    hints = get_type_hints(model, include_extras=True)
    return {
        field.encode_name: (hints[field.name], field.required)
        for field in msgspec.structs.fields(model)
    }


def problem_from(message: str, model: Any) -> Problem:
    """msgspec's sentence as a pointer and a reason in our words."""
    match = AT.match(message)
    assert match is not None
    reason, pointer = match["reason"], pointer_of(match["path"] or "$")
    if unknown := UNKNOWN_FIELD.match(reason):
        fields = fields_of(model) or {}
        return Problem(
            f"{pointer}/{escape(unknown['name'])}", unknown_reason(unknown["name"], fields)
        )
    if missing := MISSING_FIELD.match(reason):
        return Problem(f"{pointer}/{missing['name']}", "is required")
    return Problem(pointer, reason.replace("`", "").replace("Expected", "expected", 1))


def unknown_reason(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name[:64], known, n=1)
    return f"is not a known field; did you mean {close[0]}?" if close else "is not a known field"


def pointer_of(path: str) -> str:
    return "".join(f"/{escape(name or index)}" for name, index in STEP.findall(path))


def escape(name: str) -> str:
    return name[:64].replace("~", "~0").replace("/", "~1")
