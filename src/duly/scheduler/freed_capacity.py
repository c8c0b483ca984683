"""Freed capacity under a cap: notify the slot owner that counts it of leases that ended here.

The hint names the lease, so that the owner need not ask the database. It is sent after the commit,
and no lease or ticket of that fence can come to life again: late or repeated, it frees nothing that
is in use. A lost hint costs time until the owner counts again, never capacity under a cap.
"""

from uuid import UUID

from duly.domain.ids import shard_of
from duly.events import TasksFinished, TasksRescheduled
from duly.scheduler.dispatcher import Dispatcher
from duly.store.notify import FREED, WAITING_MAX, PacedHints, Send
from duly.telemetry import get_logger

log = get_logger("duly.scheduler.freed_capacity")


class FreedCapacity:
    def __init__(self, dispatcher: Dispatcher, send: Send | None) -> None:
        self.dispatcher = dispatcher
        self.hints = PacedHints(send, FREED, waiting_max=WAITING_MAX) if send is not None else None

    def on_ended(self, event: TasksFinished | TasksRescheduled) -> None:
        """Only leases that count against a cap, and where another process counts them."""
        if self.hints is None:
            return
        capped, scope = self.dispatcher.gatekeeper.bounds.capped, self.dispatcher.scope
        self.hints.add(
            f"{task.id.hex} {task.fence}"
            for task, answer in zip(event.ended, event.answers, strict=True)
            if (answer.has_key or answer.tenant in capped)
            and answer.tenant is not None
            and scope.owns(answer.tenant, shard_of(task.id)) is None
        )

    def on_notify(self, hints: list[str]) -> None:
        """A hint from another process; leases that other owners count are ignored."""
        counts = self.dispatcher.counts
        ours = [lease for lease in map(decode_hint, hints) if lease and counts.find(lease[0])]
        if ours:
            self.dispatcher.free(ours)


def decode_hint(hint: str) -> tuple[UUID, int] | None:
    try:
        task_id, fence = hint.split()
        return UUID(hex=task_id), int(fence)
    except ValueError:
        log.warning("freed capacity hint not understood", hint=hint[:100])
        return None
