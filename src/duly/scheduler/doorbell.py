"""The doorbell: fresh near-term timers go straight to the owner of their slot.

In this process, the timers themselves; in another, a hint which queue to load. A lost hint costs
time until the next load, never a task.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from duly.events import NodesReleased, TasksFinished, TasksRescheduled, TasksStored
from duly.scheduler.dispatch_scope import DispatchScope
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.loader import Loader
from duly.store.load import DueTimer, Hint, TimerQueue
from duly.store.notify import DOORBELL
from duly.telemetry import get_logger

DECODER = msgspec.json.Decoder(tuple[int, int, int, datetime])

log = get_logger("duly.scheduler.doorbell")


class Doorbell:
    def __init__(
        self,
        scope: DispatchScope,
        loader: Loader,
        dispatcher: Dispatcher,
        send: Callable[[str, list[str]], None] | None,
    ) -> None:
        self.scope = scope
        self.loader = loader
        self.dispatcher = dispatcher
        self.send = send

    def on_stored(self, event: TasksStored) -> None:
        if event.at is not None:
            self.admit(event.timers, event.at)
        if event.hints:
            self.announce(event.hints)

    def on_rescheduled(self, event: TasksRescheduled) -> None:
        self.announce(event.hints)

    def admit(self, timers: Sequence[DueTimer], database_now: datetime) -> None:
        """Just committed in this process, at that instant by the database's clock."""
        self.loader.observe(database_now)
        self.announce_timers(timers)

    def on_finished(self, event: TasksFinished) -> None:
        """Ended workflow nodes made others due."""
        for answer in event.answers:
            if answer.released:
                self.announce_timers(answer.released)

    def on_released(self, event: NodesReleased) -> None:
        self.announce_timers(event.timers)

    def announce_timers(self, timers: Sequence[DueTimer]) -> None:
        ours = [due for due in timers if self.scope.owns(due.tenant, due.shard) is not None]
        if ours:
            self.loader.admit(ours)
            self.dispatcher.wakeup.wake()
        if len(ours) < len(timers):
            foreign = [due for due in timers if self.scope.owns(due.tenant, due.shard) is None]
            self.send_hints([(due.timer_queue, due.due_at) for due in foreign])

    def announce(self, hints: Sequence[Hint]) -> None:
        """Timers of these queues are due at these instants: a retry, a release, a reschedule."""
        ours = [hint for hint in hints if self.is_ours(hint[0])]
        for timer_queue, due_at in ours:
            self.loader.reload_from(timer_queue, due_at)
        if ours:
            self.loader.wakeup.wake()
        others = [hint for hint in hints if not self.is_ours(hint[0])]
        if others:
            self.send_hints(others)

    def is_ours(self, timer_queue: TimerQueue) -> bool:
        return self.scope.owns(timer_queue.tenant, timer_queue.shard) is not None

    def send_hints(self, hints: list[Hint]) -> None:
        """Send one line for each queue, with its earliest instant."""
        if self.send is None:
            return
        earliest: dict[TimerQueue, datetime] = {}
        for timer_queue, due_at in hints:
            earliest[timer_queue] = min(due_at, earliest.get(timer_queue, due_at))
        self.send(
            DOORBELL,
            [
                msgspec.json.encode((*timer_queue, due_at)).decode()
                for timer_queue, due_at in earliest.items()
            ],
        )

    def on_notify(self, hints: list[str]) -> None:
        """A hint from another process; hints for slots of other owners are ignored."""
        for hint in hints:
            try:
                tenant, shard, queue, due_at = DECODER.decode(hint)
            except msgspec.MsgspecError:
                log.warning("doorbell hint not understood", hint=hint[:100])
                continue
            timer_queue = TimerQueue(tenant, shard, queue)
            if self.is_ours(timer_queue):
                self.loader.reload_from(timer_queue, due_at)
                self.loader.wakeup.wake()
