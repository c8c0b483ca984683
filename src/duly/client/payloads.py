"""From a payload to a handler's arguments, checked and converted by the handler's own annotations.

| payload | handler | arguments |
|---|---|---|
| an object | `(ctx, to: str, copies: int = 1)` | its fields by name; no others |
| an object | `(ctx, order: Order)`, a struct, dataclass or TypedDict | all of it, as one |
| anything | `(ctx, payload)` | all of it, as one |
| no object | `(ctx, numbers: list[int])` | all of it, as one |
| null | `(ctx)` | none |
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints, is_typeddict

import msgspec

from duly.domain.errors import ConfigurationError

WHOLE = "payload"
AT = re.compile(r"^(?P<reason>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class InvalidPayload(Exception):
    """The payload is not what the handler takes; it never will be."""


class Binder:
    """One handler's way from payload to arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        name = getattr(function, "__qualname__", repr(function))
        try:
            parameters = parameters_of(function)
            self.takes_rest = takes_rest(parameters)
            self.fields = [each for each in parameters[1:] if each.kind in NAMED]
            self.decode_fields: Callable[[bytes], Any] = decoder(self.fields_struct())
            alone = self.fields[0] if len(self.fields) == 1 else None
            self.alone = alone.name if alone else None
            annotation = annotation_of(alone) if alone else Any
            self.decode_alone = decoder(annotation)
        except (TypeError, NameError) as error:
            raise ConfigurationError(problem=f"the handler {name} {error}") from error
        self.is_whole = alone is not None and (alone.name == WHOLE or is_record(annotation))
        self.needs_something = any(each.default is each.empty for each in self.fields)

    def fields_struct(self) -> type:
        fields: list[Any] = [
            (each.name, annotation_of(each))
            if each.default is each.empty
            else (each.name, annotation_of(each), default_of(each.default))
            for each in self.fields
        ]
        # A name that the payload has and the handler has not would be lost without a word.
        is_strict = not self.takes_rest
        return msgspec.defstruct(
            "Payload", fields, kw_only=True, forbid_unknown_fields=is_strict, gc=False
        )

    def arguments(self, payload: msgspec.Raw) -> dict[str, Any]:
        try:
            return self.bind(bytes(payload))
        except msgspec.ValidationError as error:
            raise InvalidPayload(reason_of(str(error))) from None

    def bind(self, payload: bytes) -> dict[str, Any]:
        is_object = payload[:1] == b"{"
        if self.alone is not None and (self.is_whole or not is_object):
            if payload == b"null" and not self.needs_something:
                return {}
            return {self.alone: self.decode_alone(payload)}
        if is_object:
            arguments = msgspec.structs.asdict(self.decode_fields(payload))
            return {**msgspec.json.decode(payload), **arguments} if self.takes_rest else arguments
        if payload == b"null" and not self.needs_something:
            return {}
        raise InvalidPayload("payload: an object is expected, with a field for each parameter")


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The first is the context. Annotations written as text are resolved."""
    hints = get_type_hints(
        function if inspect.isroutine(function) else type(function).__call__, include_extras=True
    )
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError("needs a first parameter for the context: (ctx, ...)")
    for each in parameters[1:]:
        if each.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise TypeError(f"has the parameter {each.name}, which no field can be passed to")
    return [each.replace(annotation=hints.get(each.name, Any)) for each in parameters]


def takes_rest(parameters: list[inspect.Parameter]) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


def annotation_of(parameter: inspect.Parameter) -> Any:
    return parameter.annotation


def default_of(default: Any) -> Any:
    return msgspec.field(default_factory=lambda: default)


def decoder(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind, dec_hook=construct).decode


def construct(kind: type[Any], value: Any) -> Any:
    """A class that JSON knows nothing of, such as a Path, is made from the value."""
    return kind(value)


def is_record(annotation: Any) -> bool:
    """A type that describes an object with named fields."""
    if not isinstance(annotation, type):
        return False
    return (
        issubclass(annotation, msgspec.Struct)
        or dataclasses.is_dataclass(annotation)
        or is_typeddict(annotation)
    )


def reason_of(text: str) -> str:
    """msgspec's `Expected ... - at `$.to[0]`` with a JSON pointer: `payload/to/0: expected ...`."""
    match = AT.match(text)
    assert match is not None
    steps = [name or index for name, index in STEP.findall(match["path"] or "")]
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
    reason = match["reason"]
    return f"payload{pointer}: {reason[:1].lower()}{reason[1:]}"
