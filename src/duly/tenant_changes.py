"""Tenant changes: that something of a tenant changed, at most once a second: for pages that stay
open, in this process and, by NOTIFY, in the others. What changed is read from the database.

| event | what happens |
|---|---|
| many changes in a second | one signal at the beginning, one at the end |
| slow subscriber | its signals merge: it is behind by at most one |
| signal lost, no notifications (a pooler) | a subscriber looks again after its own timeout |
| more tenants than `TENANTS_MAX` change in a second | the rest is lost, like any signal may be |
| stored by the SQL function of a user's transaction | no signal until its task is leased or ends |
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from duly.domain.errors import Overloaded
from duly.events import TaskEvent
from duly.store.notify import CHANGED, PacedHints, Send

PACE_S = 1.0
TENANTS_MAX = 10_000
SUBSCRIBERS_MAX = 1000


class TenantSubscription:
    """One subscriber's queue, of length one: a change that was not waited for yet."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Whether something changed since the last wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        is_changed = self.changed.is_set()
        self.changed.clear()
        return is_changed


class TenantChanges:
    def __init__(self, send: Send | None = None) -> None:
        """`send`: to other processes, where there are any."""
        self.subscribers: dict[int, list[TenantSubscription]] = {}
        self.subscriber_count = 0
        self.here = PacedHints(self.notify_subscribers, CHANGED, PACE_S, TENANTS_MAX)
        self.elsewhere = None if send is None else PacedHints(send, CHANGED, PACE_S, TENANTS_MAX)
        self.is_closed = False

    @contextlib.contextmanager
    def subscribe(self, tenant: int) -> Iterator[TenantSubscription]:
        if self.subscriber_count >= SUBSCRIBERS_MAX:
            raise Overloaded(what="subscriptions to changes", most=SUBSCRIBERS_MAX)
        subscription = TenantSubscription()
        subscribers = self.subscribers.setdefault(tenant, [])
        subscribers.append(subscription)
        self.subscriber_count += 1
        if self.is_closed:
            subscription.changed.set()
        try:
            yield subscription
        finally:
            self.subscriber_count -= 1
            subscribers.remove(subscription)
            if not subscribers:
                self.subscribers.pop(tenant, None)

    def on_event(self, event: TaskEvent) -> None:
        if self.elsewhere is not None or self.subscribers:
            changed = [str(tenant) for tenant in event.tenants]
            self.note_here(changed)
            if self.elsewhere is not None:
                self.elsewhere.add(changed)

    def on_notify(self, hints: list[str]) -> None:
        """Tenants of which another process committed something."""
        self.note_here([hint for hint in hints if hint.isdecimal()])

    def note_here(self, changed: Sequence[str]) -> None:
        waited_for = [tenant for tenant in changed if int(tenant) in self.subscribers]
        if waited_for:
            self.here.add(waited_for)

    def notify_subscribers(self, _channel: str, changed: list[str]) -> None:
        for tenant in changed:
            for subscription in self.subscribers.get(int(tenant), ()):
                subscription.changed.set()

    def close(self) -> None:
        """Subscribers are woken: the process stops."""
        self.is_closed = True
        for subscriptions in self.subscribers.values():
            for subscription in subscriptions:
                subscription.changed.set()
