"""The items of a map in the result of a parent: what its handler said, and therefore anything."""

import msgspec

from duly.domain.predicate import index_of, path_tokens

PARTS_OF_LIST = msgspec.json.Decoder(list[msgspec.Raw])
PARTS_OF_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
NAMES = {"{": "an object", '"': "a text", "t": "true", "f": "false", "n": "null"}


class NoItems(Exception):
    """Why a map has no items: `detail` names its source. Raised and caught where they are read."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def items_at(result: str | None, path: str) -> list[str]:
    """The items of the list at a JSON pointer in a result, each as it was written."""
    value = "null" if result is None else result.strip()
    try:
        for token in path_tokens(path):
            value = part_at(value, token, path)
        if value[:1] != "[":
            raise NoItems(f"is {NAMES.get(value[:1], 'a number')}, not a list")
        return [bytes(each).decode().strip() for each in PARTS_OF_LIST.decode(value)]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NoItems("cannot be read") from None


def part_at(value: str, token: str, path: str) -> str:
    missing = NoItems(f"has nothing at {path}")
    if value[:1] == "{":
        members = PARTS_OF_OBJECT.decode(value)
        if token not in members:
            raise missing
        return bytes(members[token]).decode().strip()
    place = index_of(token) if value[:1] == "[" else None
    if place is None:
        raise missing
    parts = PARTS_OF_LIST.decode(value)
    if place >= len(parts):
        raise missing
    return bytes(parts[place]).decode().strip()
