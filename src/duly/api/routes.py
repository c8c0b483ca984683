"""All endpoints of the API in one list, and the objects that they share."""

import asyncio

from duly.api.admission import Admission
from duly.api.asgi import AsgiApplication, Endpoint
from duly.api.audit import AuditRoutes
from duly.api.bearer_tokens import JwtSettings
from duly.api.breakers import BreakerRoutes
from duly.api.bulk import BulkRoutes
from duly.api.compat import CompatRoutes
from duly.api.credentials import Authenticator
from duly.api.dead_letters import DeadLetterRoutes
from duly.api.docs import DescriptionRoutes
from duly.api.erasures import ErasureRoutes
from duly.api.explain import ExplainRoutes
from duly.api.forecast import ForecastRoutes
from duly.api.health import HealthRoutes
from duly.api.keys import KeyRoutes
from duly.api.live_events import LiveEventRoutes
from duly.api.map_items import MapItemRoutes
from duly.api.notifications import DeliveryMeans, NotificationRoutes
from duly.api.operators import OperatorRoutes
from duly.api.pages import PageRoutes
from duly.api.pauses import PauseRoutes
from duly.api.rate_limit import Throttle
from duly.api.schedule_backfill import BackfillRoutes
from duly.api.schedule_changes import Expect, ScheduleChanges
from duly.api.schedule_control import ScheduleControlRoutes
from duly.api.schedules import ScheduleRoutes
from duly.api.search import SearchRoutes
from duly.api.sessions import SessionRoutes
from duly.api.stats import StatsRoutes
from duly.api.submit_options import SubmitOptions
from duly.api.task_batch import TaskBatchRoutes
from duly.api.task_control import TaskControlRoutes
from duly.api.task_logs import TaskLogRoutes
from duly.api.task_rules import TaskRules
from duly.api.task_types import TaskTypeRoutes
from duly.api.task_wait import TaskWaits
from duly.api.tasks import TaskRoutes
from duly.api.tenants import TenantRoutes
from duly.api.webhook_secrets import WebhookSecretRoutes
from duly.api.worker_protocol import WorkerRoutes
from duly.api.workflow_appends import AppendChecks, WorkflowAppendRoutes
from duly.api.workflow_body import WorkflowChecks
from duly.api.workflow_resumes import WorkflowResumeRoutes
from duly.api.workflow_signals import WorkflowSignalRoutes
from duly.api.workflow_types import WorkflowTypeRoutes
from duly.api.workflows import WorkflowRoutes
from duly.domain.addresses import STRICT, OutboundRules
from duly.domain.lanes import LANE_DEPTH_MAX
from duly.environment import Environment
from duly.events import TaskEvents
from duly.execution.worker_leases import WorkerLeases
from duly.store.database import Database
from duly.store.explain import LaneDepth
from duly.store.fire_schedules import ScheduleFirer
from duly.store.read import ReadBatcher
from duly.store.settle import Settler
from duly.store.submit import GroupCommit, Submitter
from duly.store.task_logs import QUOTA_BYTES, LogQuota
from duly.store.workflow_appends import WorkflowAppends
from duly.store.workflow_inputs import NodeInputs
from duly.store.workflow_starts import WorkflowStarts
from duly.store.workflows import WorkflowStarter
from duly.telemetry import Metrics
from duly.tenant_changes import TenantChanges
from duly.tracing import OFF, Tracing


class ApiRoutes:
    def __init__(
        self,
        database: Database,
        environment: Environment,
        metrics: Metrics,
        submitter: Submitter,
        events: TaskEvents,
        expect: Expect,
        health: HealthRoutes,
        tokens: JwtSettings | None = None,
        lane_depth: LaneDepth | None = None,
        lane_depth_max: int = LANE_DEPTH_MAX,
        workers: WorkerLeases | None = None,
        outbound: OutboundRules = STRICT,
        reserved: Database | None = None,
        admission: Admission | None = None,
        bulk: Database | None = None,
        tracing: Tracing = OFF,
        log_quota: int = QUOTA_BYTES,
        *,
        has_relay: bool = False,
        has_command: bool = False,
        is_secure: bool = False,
        changes: TenantChanges | None = None,
    ) -> None:
        self.database = database
        self.is_secure = is_secure
        self.changes = changes or TenantChanges()
        self.admission = admission or Admission()
        # For reads and bulk changes, beside the connections that submits use.
        self.bulk = bulk or database
        self.environment = environment
        self.tracing = tracing
        self.metrics = metrics
        self.events = events
        self.backfilling = asyncio.Lock()
        self.health = health
        # A heartbeat that waits for a connection before it is let in is a lease lost.
        self.authenticator = Authenticator(database, environment, tokens, reserved, self.admission)
        self.group_commit = GroupCommit(submitter, metrics.batch_sizes.of("submit"))
        self.workflow_starts = WorkflowStarts(WorkflowStarter(database, submitter))
        self.appends = WorkflowAppends(submitter, Settler(database, environment, events))
        self.reading = ReadBatcher(database, metrics.batch_sizes.of("read"))
        self.rules = TaskRules(database, environment, outbound)
        self.submitter = submitter
        self.means = DeliveryMeans(outbound, has_relay, has_command)
        self.throttle = Throttle(database, environment)
        schedule_firer = ScheduleFirer(submitter, environment, tracing.begin_occurrence)
        self.scheduling = ScheduleChanges(database, schedule_firer, expect, self.throttle)
        self.waiting = TaskWaits(database)
        # Where the ready queue is in memory, the database cannot tell.
        self.lane_depth, self.lane_depth_max = lane_depth, lane_depth_max
        self.workers = workers
        self.log_quota = LogQuota(database, environment, log_quota)

    def endpoints(self) -> list[Endpoint]:
        tasks = TaskRoutes(
            self.database,
            self.environment,
            self.group_commit,
            self.reading,
            self.rules,
            self.throttle,
            self.waiting,
            SubmitOptions(self.database, self.environment, self.events),
            self.tracing,
        )
        control = TaskControlRoutes(self.environment, self.events)
        explain = ExplainRoutes(self.lane_depth, self.lane_depth_max)
        return [
            *tasks.endpoints(),
            *TaskBatchRoutes(tasks, self.admission).endpoints(),
            *control.endpoints(),
            *explain.endpoints(),
            *self.workflows().endpoints(),
            *WorkflowAppendRoutes(self.appending()).endpoints(),
            *self.workflow_resumes().endpoints(),
            *WorkflowSignalRoutes(self.events).endpoints(),
            *MapItemRoutes(self.database, self.events).endpoints(),
            *WorkflowTypeRoutes(self.database, self.workflow_checks(), self.admission).endpoints(),
            *self.recurring(),
            *CompatRoutes(self.environment, tasks, self.schedules()).endpoints(),
            *self.working(),
            *self.control_plane(),
            *LiveEventRoutes(self.changes).endpoints(),
            *SessionRoutes(self.authenticator, is_secure=self.is_secure).endpoints(),
            *self.health.endpoints(),
        ]

    def workflows(self) -> WorkflowRoutes:
        return WorkflowRoutes(
            self.database,
            self.workflow_starts,
            self.workflow_checks(),
            self.admission,
            self.throttle,
            self.waiting,
            self.events,
            self.tracing,
        )

    def workflow_resumes(self) -> WorkflowResumeRoutes:
        return WorkflowResumeRoutes(
            self.database, self.environment, self.rules, self.throttle, self.events
        )

    def workflow_checks(self) -> WorkflowChecks:
        return WorkflowChecks(self.environment, self.rules)

    def appending(self) -> AppendChecks:
        return AppendChecks(self.workflow_checks(), self.admission, self.throttle, self.appends)

    def working(self) -> list[Endpoint]:
        if self.workers is None:
            return []
        inputs = NodeInputs(self.database, self.tracing.on_inputs)
        return [
            *WorkerRoutes(self.workers, self.reading, inputs, self.appending()).endpoints(),
            *TaskLogRoutes(
                self.database, self.reading, self.environment, self.log_quota
            ).endpoints(),
        ]

    def schedules(self) -> ScheduleRoutes:
        return ScheduleRoutes(
            self.environment, self.scheduling, self.rules, self.workflow_checks(), self.admission
        )

    def recurring(self) -> list[Endpoint]:
        group_commit = self.scheduling
        schedules = self.schedules()
        backfill = BackfillRoutes(group_commit, self.backfilling)
        schedule_routes = (
            schedules,
            ScheduleControlRoutes(group_commit),
            backfill,
            ForecastRoutes(self.bulk),
        )
        return [endpoint for each in schedule_routes for endpoint in each.endpoints()]

    def control_plane(self) -> list[Endpoint]:
        tenants = TenantRoutes(self.database, self.authenticator, self.throttle)
        keys = KeyRoutes(self.environment, self.authenticator, self.rules)
        task_types = TaskTypeRoutes(self.environment, self.rules)
        letters = DeadLetterRoutes(self.environment, self.events)
        schedule_routes = (
            tenants,
            keys,
            task_types,
            PauseRoutes(),
            BreakerRoutes(),
            AuditRoutes(),
            letters,
            BulkRoutes(self.environment, self.events),
            SearchRoutes(),
            ErasureRoutes(),
            OperatorRoutes(),
            WebhookSecretRoutes(self.environment),
            NotificationRoutes(self.environment, self.submitter, self.means),
            StatsRoutes(self.environment),
        )
        return [endpoint for each in schedule_routes for endpoint in each.endpoints()]

    def application(self, *, only_probes: bool = False) -> AsgiApplication:
        """`only_probes`: of a process without the role `api`, which is looked at all the same."""
        endpoints = self.health.endpoints() if only_probes else self.endpoints()
        endpoints += DescriptionRoutes(endpoints).endpoints()
        if not only_probes:
            endpoints += PageRoutes().endpoints()
        return AsgiApplication(
            endpoints, self.database, self.authenticator, self.metrics, self.admission, self.bulk
        )

    async def close(self) -> None:
        """Answer the requests that were admitted."""
        await self.group_commit.close()
        await self.workflow_starts.close()
        await self.reading.close()
        await self.rules.close()
        await self.authenticator.close()
        await self.throttle.close()
