"""The role that runs bulk operations, bite by bite, in the process that leads maintenance.

| event | what happens |
|---|---|
| not the leader | no statement is issued |
| two leaders for a moment | the row's lock lets one of them take each bite |
| the process ends | the next leader goes on from the row |
| a bite fails | its operation is tried again after a pause; the others go on |
"""

from collections.abc import Callable

from duly.environment import Environment
from duly.events import TaskEvents
from duly.store.bulk import BulkState, find_running, run_bite
from duly.store.database import Database
from duly.telemetry import get_logger

# How soon an operation begins, and how soon another leader goes on with it.
LOOK_S = 1.5
PAUSE_S_MIN = 0.01
# Of all tenants, one bite of each in turn: those whose bite is due first.
AT_ONCE_MAX = 20

log = get_logger("duly.maintenance.bulk_operations")


class BulkOperationsRole:
    """A role: each tick runs one bite of every operation whose bite is due."""

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

    async def tick(self) -> float:
        if not self.is_leader():
            return LOOK_S
        found = await find_running(self.database, AT_ONCE_MAX)
        took = 0
        for due in found:
            if due.wait_s > 0:
                break
            bite = await run_bite(self.database, self.environment, due)
            if bite is None:
                continue
            took += 1
            for event in bite.events:
                self.events.publish(event)
            if bite.state is not BulkState.RUNNING:
                log.info("bulk operation paused or ended", id=str(due.id), state=bite.state.value)
        if took:
            return PAUSE_S_MIN
        waits = [due.wait_s for due in found if due.wait_s > 0]
        return max(PAUSE_S_MIN, min([LOOK_S, *waits]))

    async def close(self) -> None:
        """Nothing is held: the rows say where to go on."""
