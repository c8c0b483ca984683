"""The role that runs bulk operations, batch by batch, in the process that leads maintenance.

| event | what happens |
|---|---|
| not the leader | no statement is issued |
| an operation starts, here or elsewhere | its event or signal wakes; a lost one costs `IDLE_S` |
| two leaders for a moment | the row's lock lets one of them take each batch |
| the process ends | the next leader goes on from the row |
| a batch fails | its operation is tried again after a pause; the others go on |
"""

from collections.abc import Callable

from duly.environment import Environment
from duly.events import BulkOperationDue, TaskEvents
from duly.role import Wakeup
from duly.store.bulk import BulkState, find_running, run_batch
from duly.store.database import Database
from duly.telemetry import get_logger

# How soon another leader goes on with an operation, or one that another process has is looked at.
LOOK_S = 1.5
# While there is none: the next one wakes.
IDLE_S = 10.0
PAUSE_S_MIN = 0.01
# Of all tenants, one batch of each in turn: those whose batch is due first.
AT_ONCE_MAX = 20

log = get_logger("duly.maintenance.bulk_operations")


class BulkOperationsRole:
    """A role: each tick runs one batch of every operation whose batch is due."""

    name = "bulk_operations"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        events: TaskEvents,
        is_leader: Callable[[], bool],
    ) -> None:
        self.database = database
        self.environment = environment
        self.events = events
        self.is_leader = is_leader
        self.wakeup = Wakeup()

    def on_due(self, _event: BulkOperationDue) -> None:
        self.wakeup.wake()

    def on_notify(self, _rings: list[str]) -> None:
        self.wakeup.wake()

    async def tick(self) -> float:
        if not self.is_leader():
            return LOOK_S
        found = await find_running(self.database, AT_ONCE_MAX)
        if not found:
            return IDLE_S
        took = 0
        for due in found:
            if due.wait_s > 0:
                break
            batch = await run_batch(self.database, self.environment, due)
            if batch is None:
                continue
            took += 1
            for event in batch.events:
                self.events.publish(event)
            if batch.state is not BulkState.RUNNING:
                log.info("bulk operation paused or ended", id=str(due.id), state=batch.state.value)
        if took:
            return PAUSE_S_MIN
        waits = [due.wait_s for due in found if due.wait_s > 0]
        return max(PAUSE_S_MIN, min([LOOK_S, *waits]))

    async def close(self) -> None:
        """Nothing is held: the rows say where to go on."""
