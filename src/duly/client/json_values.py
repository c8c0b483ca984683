"""Python values as JSON and back, by type annotation: payloads, arguments and results.

msgspec carries the standard types, dataclasses, TypedDicts, named tuples, enums and structs. Types
of pydantic are validated and serialised by pydantic, which is imported only by programs that use
it. Every other class is refused when a task is declared, not when its first task runs.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

# Written as text and made from it.
AS_TEXT = ("pathlib", "ipaddress")
SCALARS = (str, int, float)
PYDANTIC = frozenset({"pydantic", "pydantic_core", "annotated_types"})
PYDANTIC_MARKS = ("__pydantic_validator__", "__get_pydantic_core_schema__")
Decode = Callable[[bytes], Any]


class CannotCarry(TypeError):
    """A type annotation that JSON cannot carry."""


def to_plain(value: Any) -> Any:
    """For msgspec: a value that it does not know, as one that it does."""
    serializer = getattr(type(value), "__pydantic_serializer__", None)
    if serializer is not None:
        return serializer.to_python(value, mode="json", by_alias=True)
    if is_text(type(value)):
        return str(value)
    for kind in SCALARS:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def is_text(kind: type) -> bool:
    """A path or an address; the modules themselves may never be needed."""
    return any(each.__module__.partition(".")[0] in AS_TEXT for each in kind.__mro__)


def from_plain(kind: type[Any], value: Any) -> Any:
    """For msgspec: an instance of a class that it does not know."""
    return value if kind is object else kind(value)


encode = msgspec.json.Encoder(enc_hook=to_plain).encode


def decoder(annotation: Any) -> Decode:
    """Raises msgspec.ValidationError for what does not fit; CannotCarry for the annotation."""
    if mentions_pydantic(annotation):
        return pydantic_decoder(annotation)
    check_carried(annotation)
    return msgspec.json.Decoder(annotation, dec_hook=from_plain).decode


def is_record(annotation: Any) -> bool:
    """A type that describes an object with named fields."""
    if not isinstance(annotation, type):
        return False
    return (
        issubclass(annotation, msgspec.Struct)
        or hasattr(annotation, "__dataclass_fields__")
        or is_typeddict(annotation)
        or hasattr(annotation, "__pydantic_fields__")
    )


def check_carried(annotation: Any) -> None:
    import msgspec.inspect

    try:
        found = msgspec.inspect.type_info(annotation)
    except TypeError as error:
        raise CannotCarry(str(error)) from error
    for kind in custom_types(found, set()):
        if not (kind is object or is_text(kind) or issubclass(kind, SCALARS)):
            raise CannotCarry(f"{kind.__module__}.{kind.__qualname__} cannot be carried as JSON")


def custom_types(node: Any, seen: set[int]) -> Iterator[type]:
    """Classes that msgspec leaves to its hooks, anywhere inside of a type."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        yield node.cls
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            yield from custom_types(getattr(node, name), seen)
    elif isinstance(node, tuple):
        for each in node:
            yield from custom_types(each, seen)


def mentions_pydantic(annotation: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """A model, or a constraint of pydantic's, anywhere inside of the annotation."""
    if "pydantic" not in sys.modules:
        return False
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        is_noted = any(type(each).__module__.partition(".")[0] in PYDANTIC for each in notes)
        return is_noted or mentions_pydantic(inner, seen)
    if isinstance(annotation, type) and not get_args(annotation):
        if any(hasattr(annotation, mark) for mark in PYDANTIC_MARKS):
            return True
        if annotation in seen or not is_record(annotation):
            return False
        hints = get_type_hints(annotation, include_extras=True)
        return any(mentions_pydantic(each, seen | {annotation}) for each in hints.values())
    return any(mentions_pydantic(each, seen) for each in get_args(annotation))


def pydantic_decoder(annotation: Any) -> Decode:
    pydantic = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(annotation)
    except pydantic.errors.PydanticUserError as error:
        raise CannotCarry(error.message.partition("\n")[0]) from error

    def decode(content: bytes) -> Any:
        try:
            return adapter.validate_json(content)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            steps = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
            )
            # As msgspec says it, so that one reader of such texts is enough.
            raise msgspec.ValidationError(f"{first['msg']} - at `${steps}`") from None

    return decode
