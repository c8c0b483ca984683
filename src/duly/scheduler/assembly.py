"""Composition of one node's scheduler: its roles and what they share.

The process gives each role a loop; nothing else needs to know how loader, dispatcher, reaper and
doorbell are connected.
"""

from dataclasses import dataclass
from functools import partial

from duly.broker.lease_queue import LeaseQueue
from duly.coordinator.ownership import Coordinator
from duly.domain.fairness import AGING_S
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.environment import Environment
from duly.events import (
    SettlementsReplayed,
    TaskEvents,
    TasksFinished,
    TasksLeased,
    TasksRescheduled,
    TasksStored,
)
from duly.role import Role
from duly.scheduler.closed_lanes import ClosedLanes
from duly.scheduler.cron import CronRole
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.direct_dispatch import DirectDispatch
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.doorbell import Doorbell
from duly.scheduler.freed import Freed
from duly.scheduler.gatekeeper import Bounds, BoundsKeeper
from duly.scheduler.loader import Loader
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.reaper import Reaper
from duly.scheduler.shard_spread import ShardSpread
from duly.store.database import Database
from duly.store.fire_schedules import ScheduleFirer
from duly.store.notify import Send
from duly.store.submit import Submitter
from duly.store.tenants import read_gate_inputs
from duly.telemetry import Metrics


@dataclass(frozen=True)
class Scheduler:
    coordinator: Coordinator
    loader: Loader
    dispatcher: Dispatcher
    reaper: Reaper
    bounds: BoundsKeeper
    spread: ShardSpread
    doorbell: Doorbell
    freed: Freed
    recur: CronRole

    @property
    def roles(self) -> list[Role]:
        return [
            self.coordinator,
            self.loader,
            self.bounds,
            self.dispatcher,
            self.reaper,
            self.spread,
            self.recur,
        ]

    @property
    def bystander_roles(self) -> list[Role]:
        """Roles of a process that owns no slots: it announces itself, and places tasks as owners
        do."""
        return [self.coordinator, self.bounds, self.spread]

    def subscribe(self, events: TaskEvents) -> None:
        """What this node's scheduler learns from its own process."""
        events.subscribe(TasksStored, self.doorbell.on_stored)
        events.subscribe(TasksStored, self.spread.on_stored)
        events.subscribe(TasksLeased, self.dispatcher.on_leased)
        events.subscribe(TasksFinished, self.dispatcher.on_ended)
        events.subscribe(TasksRescheduled, self.dispatcher.on_ended)
        events.subscribe(SettlementsReplayed, self.dispatcher.on_ended)
        events.subscribe(TasksFinished, self.freed.on_ended)
        events.subscribe(TasksRescheduled, self.freed.on_ended)
        events.subscribe(TasksRescheduled, self.doorbell.on_rescheduled)


def make_scheduler(
    database: Database,
    environment: Environment,
    coordinator: Coordinator,
    lease_queue: LeaseQueue,
    metrics: Metrics,
    submitter: Submitter,
    events: TaskEvents,
    send: Send | None = None,
    aging_s: float = AGING_S,
    lane_depth: int = LANE_DEPTH_MAX,
) -> Scheduler:
    time = DatabaseTime(environment.clock)
    ready_state = ReadyState(0.0, aging_s=aging_s, lane_depth=lane_depth)
    dispatcher = Dispatcher(
        environment, coordinator, ready_state, time, lease_queue, metrics, lane_depth
    )
    loader = Loader(database, environment, coordinator, ready_state, time, dispatcher.scope)
    doorbell = Doorbell(dispatcher.scope, loader, dispatcher, send)
    reaper = Reaper(database, environment, loader, dispatcher, metrics, events)

    def learn(bounds: Bounds) -> None:
        ready_state.weights = {tenant.id: tenant.weight for tenant in bounds.tenants.values()}
        place_by(submitter, bounds)
        dispatcher.forget_foreign()
        dispatcher.release_parked()
        dispatcher.show_gauges()
        dispatcher.wake()

    closed_lanes = ClosedLanes(database, ready_state, lane_depth)
    bounds = BoundsKeeper(database, dispatcher.gatekeeper, learn, closed_lanes)
    loader.wake_dispatcher = lambda: dispatcher.wake()
    loader.on_time_known = lambda: bounds.wake()
    dispatcher.wake_loader = lambda: loader.wake()
    dispatcher.expect = loader.expect
    dispatcher.wake_counter = lambda: reaper.wake()

    def change_slots(_gained: frozenset[int], _lost: frozenset[int]) -> None:
        dispatcher.forget_foreign()
        loader.wake()
        recur.change_slots()

    coordinator.on_change = change_slots
    submitter.find_consumer = DirectDispatch(
        coordinator, loader, dispatcher, lease_queue
    ).find_consumer
    submitter.load_tenant_limits = partial(load_tenant_limits, database, submitter)
    spread = ShardSpread(database, environment, dispatcher.gatekeeper)
    freed = Freed(dispatcher, send)
    schedule_firer = ScheduleFirer(submitter, environment)
    recur = CronRole(database, environment, coordinator, time, schedule_firer, metrics, send)
    scheduler = Scheduler(
        coordinator, loader, dispatcher, reaper, bounds, spread, doorbell, freed, recur
    )
    scheduler.subscribe(events)
    return scheduler


async def load_tenant_limits(database: Database, submitter: Submitter) -> None:
    """Before the first task is placed."""
    place_by(submitter, Bounds(await read_gate_inputs(database)))


def place_by(submitter: Submitter, bounds: Bounds) -> None:
    submitter.spreads = {tenant.id: tenant.spread for tenant in bounds.tenants.values()}
    submitter.at_home = bounds.at_home
