"""What a client can do beside tasks, by resource: `client.schedules.upsert(...)`,
`await async_client.schedules.upsert(...)`. Each call is defined once, for both clients.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import msgspec

from duly.client.bulk_namespaces import AsyncBulk as AsyncBulk
from duly.client.bulk_namespaces import AsyncErasures as AsyncErasures
from duly.client.bulk_namespaces import AsyncStats as AsyncStats
from duly.client.bulk_namespaces import Bulk as Bulk
from duly.client.bulk_namespaces import Erasures as Erasures
from duly.client.bulk_namespaces import Stats as Stats
from duly.client.errors import Conflict, NotFound
from duly.client.json_values import encode
from duly.client.operations import Blocking, Operations, given, listing, operation, text
from duly.client.paths import path
from duly.client.request import ScheduleOptions, TaskCall, TaskSpec, task_fields
from duly.client.schedule_plan import ScheduleStep, plan_step
from duly.client.task import TaskData
from duly.client.views import (
    ApiKey,
    AuditRecord,
    Backfill,
    Breaker,
    DeadLetter,
    DeadLetterGroup,
    ManyDone,
    Node,
    Notification,
    NotificationTest,
    Occurrence,
    Pause,
    Preview,
    Schedule,
    TaskType,
    Tenant,
    WebhookSecret,
    WorkerHistory,
    WorkerView,
    WorkflowData,
)
from duly.client.workflow_namespaces import AsyncWorkflows as AsyncWorkflows
from duly.client.workflow_namespaces import AsyncWorkflowTypes as AsyncWorkflowTypes
from duly.client.workflow_namespaces import Workflows as Workflows
from duly.client.workflow_namespaces import WorkflowTypes as WorkflowTypes


class TenantLimits(TypedDict, total=False):
    """Limits of a tenant; None takes one away."""

    weight: float
    in_flight_max: int | None
    dispatch_rate: float | None
    dispatch_burst: float | None
    submit_rate: float | None
    submit_burst: float | None
    stored_max: int | None
    schedule_s_min: int


Template = TaskSpec | TaskCall[Any]
# `list` is a method's name below.
Page = list


class AsyncSchedules(Operations):
    """Rules that make tasks. Named by id, or by name where a method says so."""

    @listing
    async def list(
        self,
        *,
        name_prefix: str | None = None,
        type: str | None = None,  # noqa: A002 (what the API calls it)
        paused: bool | None = None,
        flagged: bool | None = None,
    ) -> AsyncIterator[Page[Schedule]]:
        """Newest first. `flagged`: those that do not keep their cadence (or do)."""
        query = {"name_prefix": name_prefix, "type": type}
        query |= {"paused": word(paused), "flagged": word(flagged)}
        async for page in self.pages(Schedule, "/v1/schedules", query):
            yield page

    @operation
    async def get(self, schedule_id: str) -> Schedule:
        """The schedule with this id; NotFound if there is none."""
        return await self.ask(Schedule, "GET", path("schedules", schedule_id))

    @operation
    async def find(self, name: str) -> Schedule | None:
        """The schedule with this name; None if there is none."""
        answer = await self.ask(Items[Schedule], "GET", "/v1/schedules", query={"name": name})
        return answer.items[0] if answer.items else None

    @operation
    async def plan(
        self,
        name: str,
        task: Template | None = None,
        *,
        workflow: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStep:
        """What `upsert` would do: "create", "change" (and which fields) or "unchanged"."""
        return await self.planned(name, made(task, workflow), options)

    @operation
    async def upsert(
        self,
        name: str,
        task: Template | None = None,
        *,
        workflow: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Create the schedule of this name, or make it as it is said here. What is not said has its
        default. `task`: a call of a handle, or a dictionary with `type` and options. Or `workflow`:
        `{"type": "invoice.month"}`, or `name` and `nodes`."""
        wanted = made(task, workflow)
        while True:
            step = await self.planned(name, wanted, options)
            try:
                if step.action == "create":
                    return await self.ask(Schedule, "POST", "/v1/schedules", step.wanted)
                assert step.id is not None
                at = path("schedules", step.id)
                if step.action == "change":
                    return await self.ask(Schedule, "PUT", at, step.wanted)
                return await self.ask(Schedule, "GET", at)
            except (Conflict, NotFound):
                # Created or deleted by another program meanwhile: the plan says another thing now.
                if (await self.planned(name, wanted, options)).action == step.action:
                    raise

    async def planned(
        self, name: str, wanted: dict[str, Any], options: ScheduleOptions
    ) -> ScheduleStep:
        definition: dict[str, Any] = msgspec.json.decode(
            encode({"name": name, **wanted, **options})
        )
        answer = await self.ask(Items[Any], "GET", "/v1/schedules", query={"name": name})
        known = answer.items[0] if answer.items else None
        if known is not None and known.get("workflow"):
            # A list leaves out its graph.
            known = await self.ask(Any, "GET", path("schedules", known["id"]))
        return plan_step(known, definition)

    @operation
    async def delete(self, schedule_id: str) -> None:
        """Its tasks stay."""
        await self.ask(Any, "DELETE", path("schedules", schedule_id))

    @operation
    async def preview(
        self,
        *,
        count: int = 10,
        after: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Preview:
        """When it would fire, and what the next clock changes do to it. Nothing is stored."""
        body = {**options, **given(count=count, after=after)}
        return await self.ask(Preview, "POST", "/v1/schedules/preview", body)

    @operation
    async def pause(self, schedule_id: str, reason: str) -> Schedule:
        """No occurrence fires until `resume`."""
        return await self.ask(
            Schedule, "POST", path("schedules", schedule_id, "pause"), {"reason": reason}
        )

    @operation
    async def resume(self, schedule_id: str, reason: str | None = None) -> Schedule:
        """Fire again; what was missed meanwhile goes by the misfire policy."""
        body = given(reason=reason)
        return await self.ask(Schedule, "POST", path("schedules", schedule_id, "resume"), body)

    @operation
    async def trigger(self, schedule_id: str) -> TaskData | WorkflowData:
        """One task or workflow of it now, beside its rule."""
        at = path("schedules", schedule_id, "trigger")
        found = await self.ask(dict[str, Any], "POST", at)
        if "nodes" in found:
            return msgspec.convert(found, WorkflowData)
        return msgspec.convert(found, TaskData)

    @operation
    async def backfill(
        self,
        schedule_id: str,
        since: datetime,
        until: datetime,
        *,
        rate_per_s: float | None = None,
        dry_run: bool = False,
    ) -> Backfill:
        """Fire the occurrences of a range in the past that have not fired; both ends included."""
        body = {"from": since, "to": until, **given(rate_per_s=rate_per_s), "dry_run": dry_run}
        return await self.ask(Backfill, "POST", path("schedules", schedule_id, "backfill"), body)

    @listing
    async def occurrences(
        self, schedule_id: str, *, verdict: str | None = None, since: datetime | None = None
    ) -> AsyncIterator[Page[Occurrence]]:
        """What became of each nominal time, newest first."""
        query = {"verdict": verdict, "since": text(since)}
        at = path("schedules", schedule_id, "occurrences")
        async for page in self.pages(Occurrence, at, query):
            yield page


class AsyncDeadLetters(Operations):
    """Tasks that ended without success, with their payloads."""

    @listing
    async def list(
        self,
        *,
        type: str | None = None,  # noqa: A002
        reason: str | None = None,
        fingerprint: str | None = None,
        replayed: bool | None = None,
    ) -> AsyncIterator[Page[DeadLetter]]:
        """Newest first, without payloads."""
        query = {"type": type, "reason": reason, "fingerprint": fingerprint}
        query["replayed"] = word(replayed)
        async for page in self.pages(DeadLetter, "/v1/dead-letters", query):
            yield page

    @operation
    async def groups(
        self,
        *,
        type: str | None = None,  # noqa: A002
        reason: str | None = None,
    ) -> Page[DeadLetterGroup]:
        """By kind of failure, the most frequent first."""
        query = {"group_by": "fingerprint", "type": type, "reason": reason, "limit": 200}
        answer = await self.ask(Items[DeadLetterGroup], "GET", "/v1/dead-letters", query=query)
        return answer.items

    @operation
    async def get(self, task_id: str) -> DeadLetter:
        """With its payload."""
        return await self.ask(DeadLetter, "GET", path("dead-letters", task_id))

    @operation
    async def replay(self, task_id: str) -> TaskData:
        """A new task with the same payload and execution key."""
        return await self.ask(TaskData, "POST", path("dead-letters", task_id, "replay"))

    @operation
    async def replay_many(
        self,
        *,
        type: str | None = None,  # noqa: A002
        reason: str | None = None,
        fingerprint: str | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
    ) -> ManyDone:
        """Those that match; at most so many a second, if a rate is given."""
        found = given(type=type, reason=reason, fingerprint=fingerprint)
        body = {"filter": found, **given(rate_per_s=rate_per_s), "dry_run": dry_run}
        return await self.ask(ManyDone, "POST", "/v1/dead-letters/replay", body)

    @operation
    async def delete(self, task_id: str) -> None:
        """It cannot be replayed any more."""
        await self.ask(Any, "DELETE", path("dead-letters", task_id))

    @operation
    async def purge(
        self,
        *,
        type: str | None = None,  # noqa: A002
        reason: str | None = None,
        fingerprint: str | None = None,
        replayed: bool | None = None,
        dry_run: bool = False,
    ) -> ManyDone:
        """Delete those that match."""
        found = given(type=type, reason=reason, fingerprint=fingerprint, replayed=replayed)
        body = {"filter": found, "dry_run": dry_run}
        return await self.ask(ManyDone, "POST", "/v1/dead-letters/purge", body)


class AsyncTenants(Operations):
    """Who shares the installation, and their limits; for admins of the installation."""

    @listing
    async def list(self) -> AsyncIterator[Page[Tenant]]:
        """By name."""
        async for page in self.pages(Tenant, "/v1/tenants", {}):
            yield page

    @operation
    async def get(self, name: str) -> Tenant:
        """One tenant's limits."""
        return await self.ask(Tenant, "GET", path("tenants", name))

    @operation
    async def upsert(self, name: str, **limits: Unpack[TenantLimits]) -> Tenant:
        """Create the tenant, or change the limits that are given."""
        at = path("tenants", name)
        try:
            if not limits:
                return await self.ask(Tenant, "GET", at)
            return await self.ask(Tenant, "PATCH", at, limits)
        except NotFound:
            try:
                return await self.ask(Tenant, "POST", "/v1/tenants", {"name": name, **limits})
            except Conflict:
                return await self.ask(Tenant, "PATCH", at, limits)

    @operation
    async def suspend(self, name: str) -> Tenant:
        """Its calls are refused and its tasks wait."""
        return await self.ask(Tenant, "PATCH", path("tenants", name), {"suspended": True})

    @operation
    async def resume(self, name: str) -> Tenant:
        """Takes `suspend` back."""
        return await self.ask(Tenant, "PATCH", path("tenants", name), {"suspended": False})


class AsyncKeys(Operations):
    """API keys; for admins."""

    @listing
    async def list(self) -> AsyncIterator[Page[ApiKey]]:
        """Without their secrets."""
        async for page in self.pages(ApiKey, "/v1/keys", {}):
            yield page

    @operation
    async def get(self, key_id: str) -> ApiKey:
        """Without its secret."""
        return await self.ask(ApiKey, "GET", path("keys", key_id))

    @operation
    async def create(
        self,
        name: str,
        role: str,
        *,
        reach: str = "tenant",
        types: Sequence[str] | None = None,
        signing: bool = False,
        expires_in_s: float | None = None,
        request_rate: float | None = None,
    ) -> ApiKey:
        """`role`: "viewer", "producer", "worker", "operator", "admin". `key`: the secret, once."""
        body = {"name": name, "role": role, "reach": reach, "signing": signing}
        body |= given(types=types, expires_in_s=expires_in_s, request_rate=request_rate)
        return await self.ask(ApiKey, "POST", "/v1/keys", body)

    @operation
    async def rotate(self, key_id: str, *, grace_s: float | None = None) -> ApiKey:
        """A new secret; the old one works for `grace_s` more, an hour if not given."""
        body = given(grace_s=grace_s)
        return await self.ask(ApiKey, "POST", path("keys", key_id, "rotate"), body)

    @operation
    async def revoke(self, key_id: str) -> ApiKey:
        """It is refused from now on."""
        return await self.ask(ApiKey, "DELETE", path("keys", key_id))


class AsyncTaskTypes(Operations):
    """What payloads of a type must fit, its defaults, and who may submit it."""

    @listing
    async def list(self) -> AsyncIterator[Page[TaskType]]:
        """By name."""
        async for page in self.pages(TaskType, "/v1/task-types", {}):
            yield page

    @operation
    async def get(self, name: str) -> TaskType:
        """One task type."""
        return await self.ask(TaskType, "GET", path("task-types", name))

    @operation
    async def upsert(
        self,
        name: str,
        *,
        schema: object = None,
        defaults: Mapping[str, Any] | None = None,
        keys: Sequence[str] | None = None,
    ) -> TaskType:
        """Make the task type what is said here. `schema`: a JSON Schema of its payloads."""
        body = given(schema=schema, defaults=defaults, keys=keys)
        return await self.ask(TaskType, "PUT", path("task-types", name), body)

    @operation
    async def delete(self, name: str) -> None:
        """Payloads of the type are not checked any more."""
        await self.ask(Any, "DELETE", path("task-types", name))


class AsyncPauses(Operations):
    """What is stopped: a tenant, a task type or a pool."""

    @listing
    async def list(self) -> AsyncIterator[Page[Pause]]:
        """All that are in force."""
        async for page in self.pages(Pause, "/v1/pauses", {}):
            yield page

    @operation
    async def pause(self, kind: str, name: str | None = None, *, reason: str) -> Pause:
        """`kind`: "tenant", "type" or "pool". Running tasks end; no other starts."""
        body = {"kind": kind, "reason": reason, **given(name=name)}
        return await self.ask(Pause, "POST", "/v1/pauses", body)

    @operation
    async def resume(self, kind: str, name: str | None = None) -> Pause:
        """Go on where it was paused."""
        return await self.ask(
            Pause, "POST", "/v1/pauses/resume", {"kind": kind, **given(name=name)}
        )


class AsyncBreakers(Operations):
    """Hosts, task types and pools that are left alone because nearly all of their tasks fail."""

    @listing
    async def list(self) -> AsyncIterator[Page[Breaker]]:
        """All that are not closed."""
        async for page in self.pages(Breaker, "/v1/breakers", {}):
            yield page

    @operation
    async def close(
        self,
        *,
        host: str | None = None,
        type: str | None = None,  # noqa: A002
        pool: str | None = None,
    ) -> Breaker:
        """Let its tasks through again, now."""
        body = given(host=host, type=type, pool=pool)
        return await self.ask(Breaker, "POST", "/v1/breakers/close", body)


class AsyncWebhookSecrets(Operations):
    """What webhooks are signed with."""

    @listing
    async def list(self) -> AsyncIterator[Page[WebhookSecret]]:
        """The valid ones, without the secrets themselves."""
        yield (await self.ask(Items[WebhookSecret], "GET", "/v1/webhook-secrets")).items

    @operation
    async def create(self, *, grace_s: float | None = None) -> WebhookSecret:
        """Sign with a new one, for `grace_s` with the older ones too, a day if not given. `secret`
        is answered this once."""
        body = given(grace_s=grace_s)
        return await self.ask(WebhookSecret, "POST", "/v1/webhook-secrets", body)

    @operation
    async def delete(self, secret_id: str) -> None:
        """Sign with it no more, at once."""
        await self.ask(Any, "DELETE", path("webhook-secrets", secret_id))


class AsyncNotifications(Operations):
    """Who is told of failures, and how."""

    @listing
    async def list(self) -> AsyncIterator[Page[Notification]]:
        """By name."""
        yield (await self.ask(Items[Notification], "GET", "/v1/notifications")).items

    @operation
    async def get(self, name: str) -> Notification:
        """The notification of this name; NotFound if there is none."""
        return await self.ask(Notification, "GET", path("notifications", name))

    @operation
    async def upsert(
        self,
        name: str,
        *,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        mail: Sequence[str] | None = None,
        command: bool = False,
        dead_letters: bool = False,
        missed_schedules: bool = False,
        lag_s: float | None = None,
        failures_per_minute: float | None = None,
        per_minute: int | None = None,
    ) -> Notification:
        """Create the notification of this name, or make it as it is said here. It goes to a `url`,
        to `mail` addresses, or to the `command` of the server's configuration."""
        to = given(url=url, headers=headers, mail=mail)
        body = {
            "to": {**to, "command": True} if command else to,
            "dead_letters": dead_letters,
            "missed_schedules": missed_schedules,
            **given(lag_s=lag_s, failures_per_minute=failures_per_minute, per_minute=per_minute),
        }
        return await self.ask(Notification, "PUT", path("notifications", name), body)

    @operation
    async def test(self, name: str) -> str:
        """Send a message that says it is a test; answers the id of the task that delivers it."""
        at = path("notifications", name, "test")
        return (await self.ask(NotificationTest, "POST", at)).task

    @operation
    async def delete(self, name: str) -> None:
        """What it has not told yet is not told."""
        await self.ask(Any, "DELETE", path("notifications", name))


class AsyncAudit(Operations):
    """Who changed what in the control plane."""

    @listing
    async def list(
        self, *, action: str | None = None, actor: str | None = None
    ) -> AsyncIterator[Page[AuditRecord]]:
        """Newest first."""
        query = {"action": action, "actor": actor}
        async for page in self.pages(AuditRecord, "/v1/audit", query):
            yield page


class AsyncNodes(Operations):
    """The processes of duly itself."""

    @listing
    async def list(self) -> AsyncIterator[Page[Node]]:
        """Live ones and those that were seen lately."""
        async for page in self.pages(Node, "/v1/nodes", {}):
            yield page


class AsyncWorkers(Operations):
    """The tenant's own processes that lease tasks."""

    @listing
    async def list(self) -> AsyncIterator[Page[WorkerView]]:
        """Those that live; each start of a worker's process is one."""
        async for page in self.pages(WorkerView, "/v1/workers", {}):
            yield page

    @listing
    async def history(self) -> AsyncIterator[Page[WorkerHistory]]:
        """What each did, also those that are gone: last seen first."""
        async for page in self.pages(WorkerHistory, "/v1/workers/history", {}):
            yield page


class Schedules(Blocking, AsyncSchedules):
    awaited = AsyncSchedules


class DeadLetters(Blocking, AsyncDeadLetters):
    awaited = AsyncDeadLetters


class Tenants(Blocking, AsyncTenants):
    awaited = AsyncTenants


class Keys(Blocking, AsyncKeys):
    awaited = AsyncKeys


class TaskTypes(Blocking, AsyncTaskTypes):
    awaited = AsyncTaskTypes


class Pauses(Blocking, AsyncPauses):
    awaited = AsyncPauses


class Breakers(Blocking, AsyncBreakers):
    awaited = AsyncBreakers


class WebhookSecrets(Blocking, AsyncWebhookSecrets):
    awaited = AsyncWebhookSecrets


class Notifications(Blocking, AsyncNotifications):
    awaited = AsyncNotifications


class Audit(Blocking, AsyncAudit):
    awaited = AsyncAudit


class Nodes(Blocking, AsyncNodes):
    awaited = AsyncNodes


class Workers(Blocking, AsyncWorkers):
    awaited = AsyncWorkers


T = TypeVar("T")


class Items(msgspec.Struct, Generic[T]):
    items: list[T]


def made(task: Template | None, workflow: Mapping[str, Any] | None) -> dict[str, Any]:
    """What occurrences make."""
    if (task is None) == (workflow is None):
        raise TypeError("give a task or a workflow")
    return {"workflow": workflow} if task is None else {"task": template(task)}


def template(task: Template) -> dict[str, Any]:
    return task_fields(task.spec() if isinstance(task, TaskCall) else task)


def word(flag: bool | None) -> str | None:
    return None if flag is None else str(flag).lower()
