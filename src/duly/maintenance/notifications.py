"""Notifications: events become tasks that tell of them, and bounds are looked at."""

from duly.domain.errors import DulyError
from duly.maintenance.service import Report
from duly.store.database import Database
from duly.store.notifications import (
    BOUNDS_PAGE,
    PENDING_AT_ONCE,
    Pending,
    find_pending,
    look_at_bounds,
    store_messages,
)
from duly.store.submit import Submitter

FIRST = Pending(0, "")


class NotificationDelivery:
    name = "notifications"
    period_s = 5.0

    def __init__(self, database: Database, submitter: Submitter) -> None:
        self.database = database
        self.submitter = submitter

    async def run_once(self) -> Report:
        """One batch of each notification that has events waiting. One that fails is tried again,
        and the others go on."""
        found = await find_pending(self.database)
        messages, has_more = 0, len(found) == PENDING_AT_ONCE
        failure: DulyError | None = None
        for pending in found:
            try:
                stored = await store_messages(self.database, self.submitter, pending)
            except DulyError as error:
                failure = error
                continue
            messages += stored.messages
            has_more = has_more or stored.has_more
            if stored.after is not None:
                await stored.after()
        if failure is not None:
            raise failure
        return Report(messages, has_more)


class NotificationBounds:
    name = "notification_bounds"
    period_s = 30.0

    def __init__(self, database: Database) -> None:
        self.database = database
        self.after = FIRST

    async def run_once(self) -> Report:
        """One page; the last one is followed by the first, a period later."""
        page, noted = await look_at_bounds(self.database, self.after)
        has_more = len(page) == BOUNDS_PAGE
        self.after = page[-1] if has_more else FIRST
        return Report(noted, has_more)
