"""The role that does what workflows have to do without a caller: deadlines, the rest of large
cancels and cascades, callbacks, the steps of nodes that are no plain tasks, starts and ends of
workflows within them. And what tells of the ends of single tasks.

| event | what happens |
|---|---|
| a node's end stops or ends its workflow in this process | it is told here, and looks at once |
| in another process | that one tells us; where notifications are lost, the next look finds it |
| a deadline comes | the look before it saw it ahead, and the next one is at that instant |
| killed between two commits | the timer is still there, and found by the next look |
| two processes do one timer | the first deletes it in its commit; the second does nothing |
| one timer cannot be done | logged, and put off, longer each time; it hides none behind it |
"""

from collections.abc import Sequence
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.domain.errors import DulyError
from duly.domain.ids import has_callback, includes_marked, shard_of, shards_of, slot_of
from duly.environment import Environment
from duly.events import NodesReleased, TaskEvents, TasksFinished
from duly.role import Wakeup
from duly.store.control import publish_released
from duly.store.database import Database
from duly.store.finish import Released
from duly.store.notify import WORKFLOWS, Send
from duly.store.subworkflows import After, NewPools, Subworkflows
from duly.store.task_callbacks import DueCallback, store_callbacks
from duly.store.workflow_callbacks import WorkflowCallbacks
from duly.store.workflow_control import run_timer
from duly.store.workflow_timers import (
    TIMERS_AT_ONCE,
    WorkflowTimer,
    find_due_timers,
    postpone_timer,
)
from duly.telemetry import get_logger

# How late what another process left to do may begin; and how far ahead deadlines are seen.
LOOK_S = 3.0
PAUSE_S_MIN = 0.01
# How long a timer that could not be done is put off, doubled each time.
AGAIN_S = 5.0
AGAIN_S_MAX = 600.0

log = get_logger("duly.scheduler.workflows")


class WorkflowRole:
    """A role: each tick does the timers that are due in the slots we own."""

    name = "workflows"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        coordinator: Coordinator,
        callbacks: WorkflowCallbacks,
        subworkflows: Subworkflows,
        events: TaskEvents,
        send: Send | None,
    ) -> None:
        self.database = database
        self.environment = environment
        self.coordinator = coordinator
        self.callbacks = callbacks
        self.subworkflows = subworkflows
        self.events = events
        self.send = send
        self.wakeup = Wakeup()

    def on_finished(self, event: TasksFinished) -> None:
        if includes_marked([settlement.id for settlement in event.ended]):
            told = [settlement.id for settlement in event.ended if has_callback(settlement.id)]
            if told:
                self.expect(told)
        for answer in event.answers:
            if answer.workflows_due:
                self.expect(answer.workflows_due)

    def on_released(self, event: NodesReleased) -> None:
        self.expect(event.workflows)

    def expect(self, workflows: Sequence[UUID]) -> None:
        """They have something to do now: look, or tell who owns their slots."""
        slots = {slot_of(shard_of(workflow)) for workflow in workflows}
        if not slots.isdisjoint(self.coordinator.owned):
            self.wakeup.wake()
        others = slots.difference(self.coordinator.owned)
        if others and self.send is not None:
            self.send(WORKFLOWS, [str(slot) for slot in sorted(others)])

    def on_notify(self, hints: list[str]) -> None:
        if any(hint.isdigit() and int(hint) in self.coordinator.owned for hint in hints):
            self.wakeup.wake()

    async def tick(self) -> float:
        shards = [shard for slot in self.coordinator.owned for shard in shards_of(slot)]
        if not shards:
            return LOOK_S
        found = await find_due_timers(self.database, sorted(shards), LOOK_S)
        due = [timer for timer in found if timer.wait_s <= 0]
        await self.send_callbacks([timer for timer in due if has_callback(timer.workflow)])
        for timer in due:
            if not has_callback(timer.workflow):
                await self.run(timer)
        if len(due) == TIMERS_AT_ONCE:
            return 0.0
        waits = [timer.wait_s for timer in found if timer.wait_s > 0]
        return max(PAUSE_S_MIN, min([LOOK_S, *waits]))

    async def send_callbacks(self, timers: list[WorkflowTimer]) -> None:
        """Of the ends of single tasks: all in one commit, or each alone where that fails."""
        if not timers:
            return
        due = [DueCallback(timer.shard, timer.workflow, timer.fence) for timer in timers]
        try:
            after = await store_callbacks(self.database, self.callbacks.submitter, due)
        except Exception as error:
            if len(timers) == 1:
                await self.put_off(timers[0], error)
                return
            for timer in timers:
                await self.send_callbacks([timer])
        else:
            await after()

    async def put_off(self, timer: WorkflowTimer, error: Exception) -> None:
        """Whatever it is: the timers of all others come after this one."""
        await postpone_timer(self.database, timer, AGAIN_S, AGAIN_S_MAX)
        is_ours = not isinstance(error, DulyError)
        log.warning(
            "workflow timer failed",
            kind=timer.kind,
            workflow=str(timer.workflow),
            error=repr(error) if is_ours else str(error),
            exc_info=error if is_ours else None,
        )

    async def run(self, timer: WorkflowTimer) -> None:
        try:
            released, after = await self.carry_out(timer)
        except Exception as error:
            await self.put_off(timer, error)
            return
        publish_released(self.events, timer.tenant, released)
        if after is not None:
            await after()

    async def carry_out(self, timer: WorkflowTimer) -> tuple[Released, After | None]:
        asked = self.database, timer, self.callbacks.store, self.subworkflows.begin
        try:
            return await run_timer(*asked)
        except NewPools as new:
            await self.subworkflows.make_pools(new)
            return await run_timer(*asked)

    async def close(self) -> None:
        """Nothing is held: what is due stays due."""
