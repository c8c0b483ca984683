"""Between a payload and a handler's arguments, checked and converted by the handler's annotations.

| payload | handler | arguments |
|---|---|---|
| an object | `(ctx, to: str, copies: int = 1)` | its fields by name; no others |
| an object | `(ctx, order: Order)`, a struct, dataclass or TypedDict | all of it, as one |
| anything | `(ctx, payload)` | all of it, as one |
| no object | `(ctx, numbers: list[int])` | all of it, as one |
| null | `(ctx)` | none |
"""

import inspect
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any, Never, NoReturn, get_origin, get_type_hints

import msgspec

from duly.client.errors import InvalidPayload
from duly.client.json_values import (
    Decode,
    decoder,
    encode,
    from_plain,
    is_record,
    mentions_pydantic,
)
from duly.client.resources import injected_in
from duly.domain.errors import ConfigurationError

WHOLE = "payload"
UNKNOWN_FIELD = "unknown field"
AT = re.compile(r"^(?P<reason>.*?)(?P<paths>(?: - at `\$[^`]*`)*)$", re.DOTALL)
PATH = re.compile(r" - at `\$([^`]*)`")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
# What a context is not.
PLAIN = (str, int, float, bool, bytes, list, dict, tuple, set, datetime, date)
POSITIONAL = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Binder:
    """One handler's signature: arguments to a payload where a task is submitted, and back where it
    runs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        try:
            parameters, returned = parameters_of(function)
        except (TypeError, NameError) as error:
            self.refuse(str(error), error)
        self.takes_rest = takes_rest(parameters)
        # What the worker passes is no part of the payload.
        self.injected = injected_in(function)
        parameters = [each for each in parameters if each.name not in self.injected]
        self.fields = [each for each in parameters[1:] if each.kind in NAMED]
        self.signature = inspect.Signature(parameters[1:])
        self.positional = [each.name for each in self.fields if each.kind in POSITIONAL]
        self.allowed = {each.name for each in self.fields}
        self.required = {each.name for each in self.fields if each.default is each.empty}
        decoders = {each.name: self.decoder_of(each) for each in self.fields}
        # Types that msgspec does not know as parts of a struct are decoded after it.
        self.decoded_apart = {
            each.name: decoders[each.name]
            for each in self.fields
            if mentions_pydantic(each.annotation)
        }
        self.decode_fields: Decode = msgspec.json.Decoder(
            self.fields_struct(), dec_hook=from_plain
        ).decode
        alone = self.fields[0] if len(self.fields) == 1 and not self.takes_rest else None
        self.decode_alone: Decode | None = decoders[alone.name] if alone else None
        self.is_whole = alone is not None and (alone.name == WHOLE or is_record(alone.annotation))
        try:
            self.decode_result: Decode = decoder(returned)
        except TypeError as error:
            self.refuse(f"returns what cannot be kept: {error}", error)

    def decoder_of(self, parameter: inspect.Parameter) -> Decode:
        try:
            return decoder(parameter.annotation)
        except TypeError as error:
            self.refuse(f"has the parameter {parameter.name}: {error}", error)

    def refuse(self, problem: str, cause: BaseException) -> NoReturn:
        raise ConfigurationError(problem=f"the handler {self.name} {problem}") from cause

    def fields_struct(self) -> type:
        fields: list[Any] = []
        for each in self.fields:
            annotation = msgspec.Raw if each.name in self.decoded_apart else each.annotation
            is_required = each.name in self.required
            fields.append(
                (each.name, annotation)
                if is_required
                else (each.name, annotation, default_of(each.default))
            )
        # A name that the payload has and the handler has not would be lost without a word.
        is_strict = not self.takes_rest
        return msgspec.defstruct(
            "Payload", fields, kw_only=True, forbid_unknown_fields=is_strict, gc=False
        )

    def arguments(self, payload: msgspec.Raw) -> dict[str, Any]:
        """What the handler is called with; InvalidPayload if it cannot be."""
        try:
            return self.bind(bytes(payload))
        except msgspec.ValidationError as error:
            raise InvalidPayload(problem=reason_of(str(error)) + self.hint(str(error))) from None

    def hint(self, problem: str) -> str:
        """For a handler whose one parameter was meant for the whole payload, and is a field."""
        is_one = len(self.fields) == 1 and not self.takes_rest
        if not (is_one and UNKNOWN_FIELD in problem and "$" not in problem):
            return ""
        name = self.fields[0].name
        return (
            f"; {self.name} takes the field `{name}`, a parameter named `{WHOLE}` takes all of it"
        )

    def bind(self, payload: bytes) -> dict[str, Any]:
        is_object = payload[:1] == b"{"
        if self.decode_alone is not None and (self.is_whole or not is_object):
            if payload == b"null" and not self.required:
                return {}
            return {self.fields[0].name: self.decode_alone(payload)}
        if is_object:
            arguments = msgspec.structs.asdict(self.decode_fields(payload))
            for name, decode in self.decoded_apart.items():
                if isinstance(arguments[name], msgspec.Raw):
                    arguments[name] = decode_field(name, decode, arguments[name])
            return {**msgspec.json.decode(payload), **arguments} if self.takes_rest else arguments
        if payload == b"null" and not self.required:
            return {}
        problem = "payload: an object is expected, with a field for each parameter"
        raise InvalidPayload(problem=problem)

    def payload(self, values: tuple[Any, ...], named: dict[str, Any]) -> bytes:
        """The payload that becomes these arguments. TypeError for a call that does not fit the
        signature, InvalidPayload for a value that does not fit its annotation."""
        given = dict(zip(self.positional, values, strict=False))
        is_wrong = len(values) > len(self.positional) or not given.keys().isdisjoint(named)
        given.update(named)
        is_known = self.takes_rest or given.keys() <= self.allowed
        if is_wrong or not is_known or not given.keys() >= self.required:
            # Words it as Python does.
            self.signature.bind(*values, **named)
        content = self.encode(given)
        self.arguments(msgspec.Raw(content))
        return content

    def encode(self, given: dict[str, Any]) -> bytes:
        try:
            if not self.is_whole:
                return encode(given) if given or self.fields else b"null"
            return encode(given[self.fields[0].name]) if given else b"null"
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise InvalidPayload(problem=f"payload: {error}") from error


def decode_field(name: str, decode: Decode, content: msgspec.Raw) -> Any:
    try:
        return decode(bytes(content))
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error} - at `$.{name}`") from None


def parameters_of(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], Any]:
    """The first is the context; and what it returns. Annotations written as text are resolved."""
    hints = get_type_hints(
        function if inspect.isroutine(function) else type(function).__call__, include_extras=True
    )
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise TypeError("needs a first parameter for the context: (ctx, ...)")
    first = hints.get(parameters[0].name)
    if get_origin(first) in PLAIN or first in PLAIN or is_record(first):
        name = parameters[0].name
        raise TypeError(f"has {name} first, before which comes the context: (ctx, {name}, ...)")
    for each in parameters[1:]:
        if each.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise TypeError(f"has the parameter {each.name}, which no field can be passed to")
    returned = hints.get("return", Any)
    typed = [each.replace(annotation=hints.get(each.name, Any)) for each in parameters]
    return typed, None if returned in (NoReturn, Never) else returned


def takes_rest(parameters: list[inspect.Parameter]) -> bool:
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


def default_of(default: Any) -> Any:
    return msgspec.field(default_factory=lambda: default)


def reason_of(text: str) -> str:
    """msgspec's `Expected ... - at `$.to[0]`` with a JSON pointer: `payload/to/0: expected ...`."""
    match = AT.match(text)
    assert match is not None
    # The innermost is named first.
    path = "".join(reversed(PATH.findall(match["paths"])))
    steps = [name or index for name, index in STEP.findall(path)]
    pointer = "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
    reason = match["reason"]
    return f"payload{pointer}: {reason[:1].lower()}{reason[1:]}"
