"""Direct dispatch: a task that is due at once, ungated, and wanted by an idle consumer of this
process. Its lease is stored with it, in one commit; there is no ticket.

| event | what happens |
|---|---|
| another task waits for its turn | the ordinary way: no task is overtaken |
| its slot is not ours, or may not be | the ordinary way: its owner decides |
| killed after the commit | the lease runs out, as after any other |
"""

from duly.broker.lease_queue import LeaseQueue
from duly.coordinator.ownership import Coordinator
from duly.domain.lanes import Lane
from duly.domain.task import band_of
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.loader import Loader
from duly.store.insert import IdleConsumer, InsertRow
from duly.store.load import TimerQueue


class DirectDispatch:
    def __init__(
        self,
        coordinator: Coordinator,
        loader: Loader,
        dispatcher: Dispatcher,
        lease_queue: LeaseQueue,
    ) -> None:
        self.coordinator = coordinator
        self.loader = loader
        self.dispatcher = dispatcher
        self.lease_queue = lease_queue

    def find_consumer(self, entries: list[InsertRow]) -> IdleConsumer | None:
        """Find a consumer right before the tasks are stored; it gets all of them, or none."""
        if not self.dispatcher.is_idle() or not all(map(self.may_pass, entries)):
            return None
        lanes = {lane_of_entry(entry) for entry in entries}
        return self.lease_queue.reserve(lanes.pop(), len(entries)) if len(lanes) == 1 else None

    def may_pass(self, entry: InsertRow) -> bool:
        task = entry.task
        return (
            task.run_at is None
            and not entry.delay_s
            and self.dispatcher.gatekeeper.is_ungated(task.tenant, task.policy)
            and self.coordinator.owns(entry.shard) is not None
            and self.loader.is_loaded(TimerQueue(task.tenant, entry.shard, entry.queue))
        )


def lane_of_entry(entry: InsertRow) -> Lane:
    return Lane(entry.task.tenant, entry.pool, band_of(entry.task.priority))
