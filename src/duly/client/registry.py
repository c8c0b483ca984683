"""`duly.TaskRegistry`: task types with functions, for workers and for programs that only submit.

tasks = TaskRegistry(pool="emails")

@tasks.task("email.send", priority=7)
async def send(ctx, to: str): ...

send.submit(to="a@example.com")
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack, cast

from duly.client.request import ScheduleOptions, TaskCall, WorkflowOptions
from duly.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from duly.client.handlers import Handler
    from duly.client.inline_mode import InlineMode
    from duly.client.resources import Resource
    from duly.client.task_handle import TaskDecorator, TaskHandle
    from duly.client.workflow_block import WorkflowBlock


Handle = TypeVar("Handle")


class CodeSchedule(NamedTuple):
    """A schedule that a program says of one of its handles."""

    name: str
    call: TaskCall[Any]
    options: ScheduleOptions


class TaskRegistry:
    """Task types by name. `worker.include(tasks)` lets a worker run them.

    `pool`: where the tasks go that name no other. `url` and `api_key`: as of a client, for the
    submits of the handles.
    """

    def __init__(
        self, *, pool: str | None = None, url: str | None = None, api_key: str | None = None
    ) -> None:
        self.pool = pool
        self.url = url
        self.api_key = api_key
        self.handlers: dict[str, Handler] = {}
        self.schedules: list[CodeSchedule] = []

    def task(
        self,
        type: str,  # noqa: A002 (what the API calls it)
        *,
        run: str | None = None,
        pool: str | None = None,
        priority: int | None = None,
        retry: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> "TaskDecorator":
        """Make a typed handle of a function that runs tasks of this type.

        `run`: "async" for an `async def`, else "thread", or "process" for what computes.
        `pool`, `priority`, `retry` and `timeout_s` go with each submit of the handle; `retry` and
        `timeout_s` also narrow what a task submitted otherwise allows.
        """
        from duly.client.handlers import make_handler
        from duly.client.task_handle import TaskHandle, function_of

        if callable(type):
            # `@worker.task` alone would register nothing.
            problem = 'a task is decorated with its type: @worker.task("mail.send")'
            raise ConfigurationError(problem=problem)

        def register(function: Callable[..., Any]) -> "TaskHandle[..., Any]":
            if type in self.handlers:
                raise ConfigurationError(problem=f"there are two handlers of {type!r}")
            handler = make_handler(type, function_of(function), run, retry, timeout_s)
            handler.check_signature()
            self.handlers[type] = handler
            options = given_options(
                pool=pool or self.default_pool(),
                priority=priority,
                retry=retry,
                timeout_s=timeout_s,
            )
            return TaskHandle(handler, options, self)

        return cast("TaskDecorator", register)

    def cron(
        self,
        rule: str,
        *,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[Handle], Handle]:
        """Above `task`: a schedule that submits the handle's tasks by this rule of cron, created or
        changed by its name when a worker starts.

        `name`: of the schedule; the task type if not given. `arguments`: of the handler.
        """
        return self.scheduled(name, arguments, {**options, "cron": rule})

    def every(
        self,
        seconds: float,
        *,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[Handle], Handle]:
        """`cron`, with an interval for a rule."""
        return self.scheduled(name, arguments, {**options, "every_s": seconds})

    def scheduled(
        self, name: str | None, arguments: Mapping[str, Any] | None, options: ScheduleOptions
    ) -> Callable[[Handle], Handle]:
        from duly.client.task_handle import TaskHandle

        def register(handle: Handle) -> Handle:
            if not isinstance(handle, TaskHandle):
                raise ConfigurationError(problem="cron and every stand above task(...), not below")
            known = name or handle.type
            if any(known == each.name for each in self.schedules):
                raise ConfigurationError(problem=f"there are two schedules named {known!r}")
            call = handle.call(**(arguments or {}))
            self.schedules.append(CodeSchedule(known, call, options))
            return handle

        return register

    def workflow(self, name: str, **options: Unpack[WorkflowOptions]) -> "WorkflowBlock":
        """`duly.workflow`, to the duly that its handles submit to."""
        from duly.client.workflow_block import WorkflowBlock

        return WorkflowBlock(name, options, self.url, self.api_key)

    def inline(self, resources: "Mapping[Resource[Any], Any] | None" = None) -> "InlineMode":
        """`with worker.inline() as inline:`; meanwhile every submit of this process runs its
        handler at once, without a server. `resources`: values in the place of theirs."""
        from duly.client.inline_mode import InlineMode

        return InlineMode(self, resources or {})

    def default_pool(self) -> str | None:
        return self.pool

    def resources(self) -> "list[Resource[Any]]":
        """What its handlers need."""
        return [
            each for handler in self.handlers.values() for each in handler.binder.injected.values()
        ]

    def include(self, *registries: "TaskRegistry") -> None:
        """Take over the task types of other registries."""
        for registry in registries:
            for name, handler in registry.handlers.items():
                if self.handlers.setdefault(name, handler) is not handler:
                    raise ConfigurationError(problem=f"there are two handlers of {name!r}")
            known = {each.name for each in self.schedules}
            if twice := known & {each.name for each in registry.schedules}:
                raise ConfigurationError(problem=f"there are two schedules named {min(twice)!r}")
            self.schedules += registry.schedules


def given_options(**options: Any) -> Any:
    return {name: value for name, value in options.items() if value is not None}
