"""TTL cache for what nearly every request needs: keys, tenants, webhook secrets.

A change made elsewhere takes effect within `keep_s`; one made through this process, at once.
Concurrent requests for one key share one load. Missing entries (None) are cached apart, so that
invented names evict no existing one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from duly.child_tasks import ChildTasks
from duly.environment import Clock

KEEP_S = 2.0
ENTRIES_MAX = 10_000
ABSENT_MAX = 1_000

Name = TypeVar("Name", bound=Hashable)
Thing = TypeVar("Thing")


class TtlCache(Generic[Name, Thing]):
    def __init__(
        self,
        clock: Clock,
        look: Callable[[Name], Coroutine[Any, Any, Thing]],
        entries_max: int = ENTRIES_MAX,
        keep_s: float = KEEP_S,
    ) -> None:
        self.clock = clock
        self.look = look
        self.entries_max = entries_max
        self.keep_s = keep_s
        self.kept: OrderedDict[Name, tuple[float, Thing]] = OrderedDict()
        self.absent: OrderedDict[Name, tuple[float, Thing]] = OrderedDict()
        self.looking: dict[Name, asyncio.Future[Thing]] = {}
        self.loads = ChildTasks()

    def knows(self, name: Name) -> bool:
        """It existed when it was last looked for, a moment or longer ago."""
        return name in self.kept

    def last(self, name: Name) -> Thing | None:
        """As it was when it was last looked for, however long ago."""
        entry = self.kept.get(name)
        return None if entry is None else entry[1]

    async def get(self, name: Name) -> Thing:
        entry = self.kept.get(name) or self.absent.get(name)
        if entry is not None and self.clock.monotonic() < entry[0]:
            return entry[1]
        flight = self.looking.get(name)
        if flight is None:
            flight = self.loads.start(self.fetch(name))
            self.looking[name] = flight
            flight.add_done_callback(lambda ended: self.land(name, ended))
        # A cancelled caller must not cancel the load that others wait for.
        return await asyncio.shield(flight)

    async def fetch(self, name: Name) -> Thing:
        thing = await self.look(name)
        if self.looking.get(name) is not asyncio.current_task():
            # Changed during the load: the loaded value may be outdated.
            return thing
        self.kept.pop(name, None)
        self.absent.pop(name, None)
        kept, most = (self.absent, ABSENT_MAX) if thing is None else (self.kept, self.entries_max)
        kept[name] = (self.clock.monotonic() + self.keep_s, thing)
        if len(kept) > most:
            kept.popitem(last=False)
        return thing

    def land(self, name: Name, flight: asyncio.Future[Thing]) -> None:
        if self.looking.get(name) is flight:
            del self.looking[name]

    def forget(self, name: Name) -> None:
        self.kept.pop(name, None)
        self.absent.pop(name, None)
        self.looking.pop(name, None)

    async def close(self) -> None:
        await self.loads.close()
