"""Composition of one node's scheduler: its roles, what each needs, and the events they react to."""

from dataclasses import dataclass

from duly.broker.lease_queue import LeaseQueue
from duly.coordinator.ownership import Coordinator
from duly.domain.fairness import AGING_S
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.environment import Environment
from duly.events import (
    NodesReleased,
    SettlementsReplayed,
    SlotsChanged,
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
from duly.scheduler.freed_capacity import FreedCapacity
from duly.scheduler.gatekeeper import Bounds, BoundsReader, Gatekeeper
from duly.scheduler.in_flight import InFlight
from duly.scheduler.loader import Loader
from duly.scheduler.ready_state import ReadyState
from duly.scheduler.reaper import Reaper
from duly.scheduler.shard_spread import ShardSpread
from duly.scheduler.wakeups import SchedulerWakeups
from duly.scheduler.workflows import WorkflowRole
from duly.store.database import Database
from duly.store.fire_schedules import BeginTrace, ScheduleFirer, no_trace
from duly.store.notify import Send
from duly.store.submit import Submitter
from duly.store.subworkflows import Subworkflows
from duly.store.tenant_shards import TenantShards
from duly.store.workflow_callbacks import WorkflowCallbacks
from duly.telemetry import Metrics


@dataclass(frozen=True)
class Scheduler:
    coordinator: Coordinator
    loader: Loader
    dispatcher: Dispatcher
    reaper: Reaper
    bounds: BoundsReader
    spread: ShardSpread
    doorbell: Doorbell
    freed_capacity: FreedCapacity
    cron_role: CronRole
    submitter: Submitter
    workflows: WorkflowRole

    @property
    def roles(self) -> list[Role]:
        return [
            self.coordinator,
            self.loader,
            self.bounds,
            self.dispatcher,
            self.reaper,
            self.spread,
            self.cron_role,
            self.workflows,
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
        events.subscribe(TasksFinished, self.freed_capacity.on_ended)
        events.subscribe(TasksRescheduled, self.freed_capacity.on_ended)
        events.subscribe(TasksRescheduled, self.doorbell.on_rescheduled)
        events.subscribe(TasksFinished, self.doorbell.on_finished)
        events.subscribe(TasksFinished, self.workflows.on_finished)
        events.subscribe(NodesReleased, self.doorbell.on_released)
        events.subscribe(NodesReleased, self.workflows.on_released)
        events.subscribe(SlotsChanged, self.dispatcher.on_slots)
        events.subscribe(SlotsChanged, self.loader.on_slots)
        events.subscribe(SlotsChanged, self.cron_role.on_slots)


def make_scheduler(
    database: Database,
    environment: Environment,
    coordinator: Coordinator,
    lease_queue: LeaseQueue,
    metrics: Metrics,
    events: TaskEvents,
    send: Send | None = None,
    aging_s: float = AGING_S,
    lane_depth: int = LANE_DEPTH_MAX,
    begin_trace: BeginTrace = no_trace,
) -> Scheduler:
    """In the order in which each part needs the ones before it. What wakes each other shares
    `SchedulerWakeups`; what reacts to commits and owned slots subscribes to `events`."""
    time, wakeups = DatabaseTime(environment.clock), SchedulerWakeups()
    ready_state = ReadyState(0.0, aging_s=aging_s, lane_depth=lane_depth)
    gatekeeper = Gatekeeper(time, InFlight(), coordinator)
    loader = Loader(
        database, environment, coordinator, ready_state, time, gatekeeper.scope, wakeups
    )
    dispatcher = Dispatcher(
        *(environment, coordinator, ready_state, time, lease_queue, metrics),
        *(gatekeeper, wakeups, loader.reload_from, lane_depth),
    )
    tenant_shards = TenantShards(is_known=False)
    direct_dispatch = DirectDispatch(coordinator, loader, dispatcher, lease_queue)
    submitter = Submitter(
        database, environment, events, tenant_shards, direct_dispatch.find_consumer
    )
    schedule_firer = ScheduleFirer(submitter, environment, begin_trace)
    limits = LimitsReader(ready_state, tenant_shards, dispatcher)
    closed_lanes = ClosedLanes(database, ready_state, lane_depth)
    doorbell = Doorbell(gatekeeper.scope, loader, dispatcher, send)
    callbacks = WorkflowCallbacks(submitter)
    scheduler = Scheduler(
        coordinator,
        loader,
        dispatcher,
        Reaper(database, environment, loader, dispatcher, metrics, events, wakeups.reaper),
        BoundsReader(database, gatekeeper, limits.learn, closed_lanes, wakeups.bounds),
        ShardSpread(database, environment, gatekeeper),
        doorbell,
        FreedCapacity(dispatcher, send),
        CronRole(database, environment, coordinator, time, schedule_firer, metrics, send),
        submitter,
        WorkflowRole(
            *(database, environment, coordinator, callbacks, Subworkflows(submitter)),
            *(events, send),
        ),
    )
    scheduler.subscribe(events)
    return scheduler


@dataclass(frozen=True)
class LimitsReader:
    """What follows when the limits of tenants were read again."""

    ready_state: ReadyState
    tenant_shards: TenantShards
    dispatcher: Dispatcher

    def learn(self, bounds: Bounds) -> None:
        self.ready_state.weights = {each.id: each.weight for each in bounds.tenants.values()}
        self.tenant_shards.learn(bounds.tenants)
        self.dispatcher.on_limits()
