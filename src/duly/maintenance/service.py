"""The shape of every housekeeping service. No service lives here."""

from typing import NamedTuple, Protocol


class Report(NamedTuple):
    """What one run did: rows or tables changed, and whether a full batch says that more is left."""

    changed: int = 0
    has_more: bool = False
    note: str = ""


class Service(Protocol):
    """One bounded piece of housekeeping, wanted once in each period."""

    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float: ...

    async def run_once(self) -> Report: ...
