"""References to workflow types: a name, and its latest version or one of them."""

import re
from typing import NamedTuple

from duly.domain.limits import type_reason

VERSION_MAX = 1_000_000
VERSION_PATTERN = re.compile(r"[1-9][0-9]{0,6}")


class TypeReference(NamedTuple):
    """`version` None: the latest at the time of the start."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def read_reference(text: str) -> TypeReference | None:
    """`invoice.month` or `invoice.month@3`; None: it is neither."""
    name, at, version = text.partition("@")
    if type_reason(name) is not None:
        return None
    if not at:
        return TypeReference(name)
    if VERSION_PATTERN.fullmatch(version) is None or int(version) > VERSION_MAX:
        return None
    return TypeReference(name, int(version))
