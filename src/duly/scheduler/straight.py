"""The short way: a task that is due at once, that no gate can hold back, and that a consumer of
this process waits for, goes straight into its hands. Its lease is stored with it, in one commit;
there is no ticket.

| event | what happens |
|---|---|
| something else waits for its turn | the ordinary way: nobody is overtaken |
| its slot is not ours, or may not be | the ordinary way: its owner decides |
| killed after the commit | the lease runs out, as after any other |
"""

from duly.broker.contract import Broker
from duly.coordinator.ownership import Coordinator
from duly.domain.lanes import Lane
from duly.domain.task import band_of
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.loader import Loader
from duly.store.entries import Entry
from duly.store.hands import Hands
from duly.store.lease import Lease
from duly.store.load import Place
from duly.telemetry import Metrics


class Straight:
    def __init__(
        self,
        coordinator: Coordinator,
        loader: Loader,
        dispatcher: Dispatcher,
        broker: Broker,
        metrics: Metrics,
    ) -> None:
        self.coordinator = coordinator
        self.loader = loader
        self.dispatcher = dispatcher
        self.broker = broker
        self.metrics = metrics

    def find_hands(self, entries: list[Entry]) -> Hands | None:
        """Asked right before they are stored: a consumer that gets all of them, or none."""
        if not self.dispatcher.is_at_rest() or not all(map(self.may_pass, entries)):
            return None
        lanes = {lane_of_entry(entry) for entry in entries}
        hands = self.broker.reserve(lanes.pop(), len(entries)) if len(lanes) == 1 else None
        return None if hands is None else NotedHands(hands, self.metrics)

    def may_pass(self, entry: Entry) -> bool:
        task = entry.task
        return (
            task.run_at is None
            and not entry.delay_s
            and self.dispatcher.gatekeeper.is_plain(task.tenant, task.policy)
            and self.coordinator.owns(entry.shard) is not None
            and self.loader.has_read(Place(task.tenant, entry.shard, entry.lane))
        )


class NotedHands:
    """What comes into these was ready for no time at all, and that counts, too."""

    def __init__(self, hands: Hands, metrics: Metrics) -> None:
        self.hands = hands
        self.metrics = metrics
        self.holder = hands.holder
        self.lease_s = hands.lease_s

    def take(self, leases: list[Lease]) -> None:
        self.metrics.time_in_ready.observe_many(0.0 for _ in leases)
        self.hands.take(leases)


def lane_of_entry(entry: Entry) -> Lane:
    return Lane(entry.task.tenant, entry.pool, band_of(entry.task.priority))
