"""All the doors of the API, put together. The one list of what can be asked over HTTP."""

import asyncio
from collections.abc import Callable

from duly.api.admission import Admission
from duly.api.audit import AuditDoor
from duly.api.bearer_tokens import JwtSettings
from duly.api.breakers import BreakerDoor
from duly.api.credentials import Authenticator
from duly.api.dead_letters import DeadLetterDoor
from duly.api.docs import DescriptionDoor
from duly.api.door import Door, Endpoint
from duly.api.erasures import ErasureDoor
from duly.api.explain import ExplainDoor
from duly.api.forecast import ForecastDoor
from duly.api.health import HealthDoor
from duly.api.keys import KeyDoor
from duly.api.operators import OperatorDoor
from duly.api.pauses import PauseDoor
from duly.api.schedule_backfill import BackfillDoor
from duly.api.schedule_control import ScheduleControlDoor
from duly.api.schedule_desk import Expect, ScheduleDesk
from duly.api.schedules import ScheduleDoor
from duly.api.stats import StatsDoor
from duly.api.task_batch import TaskBatchDoor
from duly.api.task_control import TaskControlDoor
from duly.api.task_rules import TaskRules
from duly.api.task_types import TaskTypeDoor
from duly.api.tasks import TaskDoor
from duly.api.tenants import TenantDoor
from duly.api.throttle import Throttle
from duly.api.waiting import Waiting
from duly.api.webhook_secrets import WebhookSecretDoor
from duly.api.worker_protocol import WorkerDoor
from duly.domain.addresses import STRICT, OutboundRules
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.environment import Environment
from duly.execution.leasing import WorkerDesk
from duly.store.database import Database
from duly.store.desk import ReadDesk, SubmitDesk
from duly.store.explain import LaneDepth
from duly.store.load import Hint
from duly.store.recur import Firer
from duly.store.submit import Submitter
from duly.telemetry import Metrics


class FrontDoor:
    def __init__(
        self,
        database: Database,
        environment: Environment,
        metrics: Metrics,
        submitter: Submitter,
        ring: Callable[[list[Hint]], None],
        expect: Expect,
        health: HealthDoor,
        tokens: JwtSettings | None = None,
        lane_depth: LaneDepth | None = None,
        lane_depth_max: int = LANE_DEPTH_MAX,
        workers: WorkerDesk | None = None,
        outbound: OutboundRules = STRICT,
        reserved: Database | None = None,
        admission: Admission | None = None,
        bulk: Database | None = None,
    ) -> None:
        self.database = database
        self.admission = admission or Admission()
        # For reads and bulk changes, beside the connections that submits use.
        self.bulk = bulk or database
        self.environment = environment
        self.metrics = metrics
        self.ring = ring
        self.backfilling = asyncio.Lock()
        self.health = health
        # A heartbeat that waits for a connection before it is let in is a lease lost.
        self.authenticator = Authenticator(database, environment, tokens, reserved, self.admission)
        self.desk = SubmitDesk(submitter)
        self.reading = ReadDesk(database)
        self.rules = TaskRules(database, environment, outbound)
        self.throttle = Throttle(database, environment)
        firer = Firer(submitter, environment)
        self.scheduling = ScheduleDesk(database, firer, expect, self.throttle)
        self.waiting = Waiting(database)
        # Where the ready queue is in memory, the database cannot tell.
        self.lane_depth, self.lane_depth_max = lane_depth, lane_depth_max
        self.workers = workers
        if workers is not None:
            workers.settling.listeners.append(self.waiting.on_settled)

    def endpoints(self) -> list[Endpoint]:
        tasks = TaskDoor(
            self.database,
            self.environment,
            self.desk,
            self.reading,
            self.rules,
            self.throttle,
            self.waiting,
        )
        control = TaskControlDoor(self.environment, self.waiting, self.ring)
        explain = ExplainDoor(self.lane_depth, self.lane_depth_max)
        return [
            *tasks.endpoints(),
            *TaskBatchDoor(tasks, self.admission).endpoints(),
            *control.endpoints(),
            *explain.endpoints(),
            *self.recurring(),
            *self.working(),
            *self.control_plane(),
            *self.health.endpoints(),
        ]

    def working(self) -> list[Endpoint]:
        if self.workers is None:
            return []
        return WorkerDoor(self.workers, self.reading).endpoints()

    def recurring(self) -> list[Endpoint]:
        desk = self.scheduling
        schedules = ScheduleDoor(self.environment, desk, self.rules)
        backfill = BackfillDoor(desk, self.backfilling)
        doors = (schedules, ScheduleControlDoor(desk), backfill, ForecastDoor(self.bulk))
        return [endpoint for door in doors for endpoint in door.endpoints()]

    def control_plane(self) -> list[Endpoint]:
        tenants = TenantDoor(self.database, self.authenticator, self.throttle)
        keys = KeyDoor(self.environment, self.authenticator, self.rules)
        task_types = TaskTypeDoor(self.environment, self.rules)
        letters = DeadLetterDoor(self.environment, self.ring)
        doors = (
            tenants,
            keys,
            task_types,
            PauseDoor(),
            BreakerDoor(),
            AuditDoor(),
            letters,
            ErasureDoor(),
            OperatorDoor(),
            WebhookSecretDoor(self.environment),
            StatsDoor(self.environment),
        )
        return [endpoint for door in doors for endpoint in door.endpoints()]

    def application(self, *, only_probes: bool = False) -> Door:
        """`only_probes`: of a process without the role `api`, which is looked at all the same."""
        endpoints = self.health.endpoints() if only_probes else self.endpoints()
        endpoints += DescriptionDoor(endpoints).endpoints()
        return Door(
            endpoints, self.database, self.authenticator, self.metrics, self.admission, self.bulk
        )

    async def close(self) -> None:
        """Answer whoever was let in."""
        await self.desk.close()
        await self.reading.close()
        await self.rules.close()
