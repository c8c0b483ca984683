"""What a task can be asked for with, as typed keyword arguments, and its JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Required, TypedDict, TypeVar

from duly.client.errors import Invalid
from duly.client.json_values import encode

if TYPE_CHECKING:
    from duly.client.workflow_results import Condition

When = Literal["all_completed", "none_failed", "all_done", "any_completed", "any_failed"]
R_co = TypeVar("R_co", covariant=True)
# Attributes of a client, and their classes in namespaces.py.
RESOURCES = {
    "schedules": "Schedules",
    "dead_letters": "DeadLetters",
    "tenants": "Tenants",
    "keys": "Keys",
    "task_types": "TaskTypes",
    "pauses": "Pauses",
    "breakers": "Breakers",
    "webhook_secrets": "WebhookSecrets",
    "notifications": "Notifications",
    "bulk": "Bulk",
    "erasures": "Erasures",
    "stats": "Stats",
    "audit": "Audit",
    "nodes": "Nodes",
    "workers": "Workers",
    "workflows": "Workflows",
    "workflow_types": "WorkflowTypes",
}


def no_resource(client: object, name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, RESOURCES, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{type(client).__name__!r} object has no attribute {name!r}{hint}"


class SubmitOptions(TypedDict, total=False):
    """Everything but type and payload. What is not given, the type's defaults say, then duly's.

    run_at: when it fires, with an offset; at most 7 days ago. Not together with `delay_s`.
    delay_s: fires so many seconds from now, by the server's clock.
    target: `{"pool": ...}` or `{"url": ..., "headers": {...}}`; the pool "default" if not given.
    pool: short for `target={"pool": ...}`: the workers that may take it.
    url: short for `target={"url": ...}`: the webhook that is called.
    priority: 0 to 9, higher is more urgent; 5 if not given.
    retry: `max_attempts`, `backoff`, `initial_s`, `factor`, `max_s`, `jitter`, `non_retryable`.
    timeout_s: the longest that one attempt may take.
    start_by: not started by then, it fails with the reason "expired".
    jitter_s: fires up to so many seconds later, by chance, so that many do not fire at once.
    concurrency_key: of tasks with this key, so many run at once as `concurrency_limit` says.
    concurrency_limit: for the key; 1 if not given.
    idempotency_key: the same key and request again is the same task, for 7 days. Visible ASCII
        without spaces, up to 255 characters.
    tags: names and values of your own, to find it by.
    unique: `{"period_s": ...}`: one task of its type and payload in that time; with "key", of it.
    debounce: `{"wait_s": ...}`: fires that long after the last such submit; "max_wait_s", "key".
    throttle: `{"limit": ..., "period_s": ...}`: at most so many of its type start in that time.
    callback: told of its end: a typed handle, or `{"type": ..., "target": {...}}`.
    """

    run_at: datetime
    delay_s: float
    target: Mapping[str, Any]
    pool: str
    url: str
    priority: int
    retry: Mapping[str, Any]
    timeout_s: float
    start_by: datetime
    jitter_s: float
    concurrency_key: str
    concurrency_limit: int
    idempotency_key: str
    tags: Mapping[str, str]
    unique: Mapping[str, Any]
    debounce: Mapping[str, Any]
    throttle: Mapping[str, Any]
    callback: "Mapping[str, Any] | TypedTask"


class TypedTask(Protocol):
    """What a typed handle says of its tasks."""

    @property
    def type(self) -> str: ...

    @property
    def defaults(self) -> SubmitOptions: ...


class NodeFields(Protocol):
    """A node of a handle with a payload of its own, `handle.node(...)`."""

    def fields(self) -> dict[str, Any]: ...


class NodeOptions(TypedDict, total=False):
    """What a node of a workflow can be asked for with, beside what it comes after.

    name: its name in the graph; its type if not given, numbered where that is taken.
    when: by which ends of its parents it runs: "all_completed" (if not given), "none_failed",
        "all_done", "any_completed", "any_failed".
    if_: a condition on results of its parents, without which it is skipped: `charge["failed"] > 0`,
        joined by `&`, `|`, `~`; or a predicate as the API has it.
    delay_s: fires so many seconds after its parents let it.
    target: as of a task.
    pool: as of a task.
    url: as of a task.
    priority: as of a task.
    retry: as of a task.
    timeout_s: as of a task.
    jitter_s: as of a task.
    concurrency_key: as of a task; the nodes of a workflow have one between them.
    concurrency_limit: as of a task.
    tags: as of a task.
    envelope: the webhook's body is `{"payload": ..., "parents": {...}}`.
    compensate: what undoes it once its workflow failed, with `on_failure="compensate"`: a handle, a
        node with a payload of its own, `refund.node(...)`, a type, or what the API has.
    """

    name: str
    when: When
    if_: "Condition | Mapping[str, Any]"
    delay_s: float
    target: Mapping[str, Any]
    pool: str
    url: str
    priority: int
    retry: Mapping[str, Any]
    timeout_s: float
    jitter_s: float
    concurrency_key: str
    concurrency_limit: int
    tags: Mapping[str, str]
    envelope: bool
    compensate: "str | TypedTask | NodeFields | Mapping[str, Any]"


class WorkflowOptions(TypedDict, total=False):
    """What a workflow can be asked for with, beside its name and its nodes.

    idempotency_key: the same name, key and nodes again is the same workflow.
    deadline_s: stopped when it has not ended so many seconds after its start.
    on_failure: "finish_branches" (if not given), "stop" or "compensate": what the first failed node
        means for the nodes that do not depend on it, and whether those that completed are undone.
    defaults: `pool`, `url` or `target`, `priority`, `retry`, `timeout_s`, `jitter_s` of its nodes.
    callback: told of its end: a typed handle, or `{"type": ..., "target": {...}}`.
    tags: names and values of your own, to find it by.
    """

    idempotency_key: str
    deadline_s: float
    on_failure: Literal["finish_branches", "stop", "compensate"]
    defaults: Mapping[str, Any]
    callback: "Mapping[str, Any] | TypedTask"
    tags: Mapping[str, str]


class TaskSpec(SubmitOptions, total=False):
    type: Required[str]
    payload: Any


class ScheduleOptions(TypedDict, total=False):
    """When a schedule fires: by `cron` or `every_s`; and what becomes of late occurrences.

    cron: five fields or a name such as "@daily".
    every_s: an interval, a whole number of seconds.
    timezone: of IANA, such as "Europe/Berlin"; UTC if not given.
    misfire: "coalesce" (the default), "fire_all" or "skip".
    misfire_window_s: how late "fire_all" may fire; 3600 if not given.
    overlap: "allow" (the default), "skip", "queue_one" or "cancel_previous".
    max_running: so many at once, with "allow".
    dst_gap: for times that a clock change skips: "shift" (the default) or "skip".
    dst_repeat: for times that come twice: "first" (the default), "second" or "both".
    jitter_s: a part of it, fixed for each schedule, is added to each time.
    start_at: not before.
    end_at: not after.
    max_fires: it ends after so many.
    exclude_dates: not on these local dates.
    """

    cron: str
    every_s: float
    timezone: str
    misfire: str
    misfire_window_s: float
    overlap: str
    max_running: int
    dst_gap: str
    dst_repeat: str
    jitter_s: float
    start_at: datetime
    end_at: datetime
    max_fires: int
    exclude_dates: Sequence[date]


class TaskCall(Generic[R_co]):
    """One task to be submitted: type, payload and options; and how to read its result."""

    __slots__ = ("decode_result", "options", "payload", "type")

    def __init__(
        self,
        type: str,  # noqa: A002 (what the API calls it)
        payload: object,
        options: SubmitOptions,
        decode_result: Callable[[bytes], R_co] | None = None,
    ) -> None:
        self.type = type
        self.payload = payload
        self.options = options
        self.decode_result = decode_result

    def spec(self) -> TaskSpec:
        """For `client.submit_many`, beside tasks named by their type."""
        return {"type": self.type, "payload": self.payload, **self.options}


def task_call(
    asked: str | TaskCall[Any], payload: object, options: SubmitOptions
) -> "TaskCall[Any]":
    """A call of a handle, or a type and its payload, with what was said besides."""
    if isinstance(asked, str):
        return TaskCall(asked, payload, options)
    merged: SubmitOptions = {**asked.options, **options}
    return TaskCall(asked.type, asked.payload, merged, asked.decode_result)


def calls_of(tasks: Iterable[TaskSpec | TaskCall[Any]]) -> Iterator[TaskCall[Any]]:
    """Both ways to name a task, as one."""
    for each in tasks:
        if isinstance(each, TaskCall):
            yield each
        else:
            options: Any = dict(each)
            yield TaskCall(options.pop("type"), options.pop("payload", None), options)


def encode_task(task_type: str, payload: object, options: Mapping[str, Any]) -> bytes:
    return encode({"type": task_type, "payload": payload, **task_fields(options)})


def encode_spec(spec: TaskSpec) -> bytes:
    return encode(task_fields(spec))


def task_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """As the API names them: `pool` and `url` are short for a target."""
    fields = dict(options)
    check_key(fields.get("idempotency_key"))
    target = {name: fields.pop(name) for name in ("pool", "url") if name in fields}
    if target:
        fields["target"] = {**fields.get("target", {}), **target}
    if fields.get("callback") is not None:
        fields["callback"] = callback_fields(fields["callback"])
    return fields


def callback_fields(callback: Mapping[str, Any] | TypedTask) -> dict[str, Any]:
    """The task of a handle goes where its other tasks go."""
    if isinstance(callback, Mapping):
        return task_fields(callback)
    target = task_fields(callback.defaults).get("target", {"pool": "default"})
    return {"type": callback.type, "target": target}


def check_key(key: object) -> None:
    """As the server would refuse it: in a header, another encoding would make another key of it."""
    if isinstance(key, str):
        from duly.domain.limits import key_reason

        reason = key_reason(key)
        if reason is None:
            return
        errors = [{"pointer": "/idempotency_key", "detail": reason}]
        problem = {"code": "invalid", "detail": f"idempotency_key {reason}", "errors": errors}
        raise Invalid(422, problem, None)
