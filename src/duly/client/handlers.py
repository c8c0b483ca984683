"""Handlers: the function for each task type, and how it runs. Errors are raised at the start."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args

from duly.client.errors import InvalidPayload
from duly.client.leased_tasks import LeasedTask
from duly.client.outcomes import HandlerOutcome, completed, judged, rejected
from duly.client.payloads import Binder
from duly.client.tracing import handler_span
from duly.domain.errors import ConfigurationError
from duly.domain.limits import TIMEOUT_S_MAX, TIMEOUT_S_MIN, retry_problems, type_reason
from duly.domain.retry import RetryPolicy

Function = Callable[..., Any]
Mode = Literal["async", "thread", "process"]


class Interrupted(BaseException):
    """Raised inside a thread whose attempt has to stop."""


@dataclass(frozen=True)
class Handler:
    """`timeout_s` and `retry` can make the task's own bounds narrower, never wider."""

    type: str
    function: Function
    mode: Mode
    retry: RetryPolicy | None = None
    timeout_s: float | None = None

    @functools.cached_property
    def binder(self) -> Binder:
        return Binder(self.function)

    def check_signature(self) -> None:
        """At the decoration; at the start of a worker only for an annotation that names, as text, a
        class that is defined further down."""
        try:
            binder = self.binder
        except ConfigurationError as error:
            if not isinstance(error.__cause__, NameError):
                raise
            return
        if binder.injected and self.mode == "process":
            refuse(self.type, "a process has no resources: start them in the handler itself")


def make_handler(
    task_type: str,
    function: Function,
    run: str | None,
    retry: Mapping[str, Any] | None,
    timeout_s: float | None,
) -> Handler:
    if reason := type_reason(task_type):
        refuse(task_type, f"the type {reason}")
    if timeout_s is not None and not TIMEOUT_S_MIN <= timeout_s <= TIMEOUT_S_MAX:
        refuse(task_type, f"timeout_s is not from {TIMEOUT_S_MIN:g} to {TIMEOUT_S_MAX:g}")
    mode = mode_of(task_type, function, run)
    return Handler(task_type, function, mode, policy_of(task_type, retry), timeout_s)


def mode_of(task_type: str, function: Function, run: str | None) -> Mode:
    is_async = is_coroutine_function(function)
    if run is None:
        return "async" if is_async else "thread"
    if run not in get_args(Mode):
        refuse(task_type, f"run is {run!r}; it can be {', '.join(get_args(Mode))}")
    if is_async != (run == "async"):
        refuse(task_type, f"run={run!r} does not fit {'an async' if is_async else 'a plain'} def")
    mode: Mode = "async" if run == "async" else "thread" if run == "thread" else "process"
    return mode


def is_coroutine_function(function: Function) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (an object may be async in its call)
    )


def policy_of(task_type: str, retry: Mapping[str, Any] | None) -> RetryPolicy | None:
    if retry is None:
        return None
    given = dict(retry)
    known = RetryPolicy.__dataclass_fields__
    for name in given.keys() - known.keys():
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it can have {', '.join(known)}"
        refuse(task_type, f"its retry policy has no {name}; {hint}")
    if "non_retryable" in given:
        given["non_retryable"] = tuple(given["non_retryable"])
    try:
        policy = RetryPolicy(**given)
        problems = retry_problems(policy)
    except TypeError as error:
        refuse(task_type, f"its retry policy is wrong: {error}")
    if problems:
        refuse(task_type, "; ".join(f"{each.pointer[1:]} {each.reason}" for each in problems))
    return policy


def refuse(task_type: str, problem: str) -> NoReturn:
    raise ConfigurationError(problem=f"the handler of {task_type!r}: {problem}")


def perform(work: Callable[[], Any], task: LeasedTask) -> HandlerOutcome:
    """A call of a plain function, in any thread or process, and what came of it."""
    try:
        with handler_span(task):
            return completed(work())
    except Interrupted:
        raise
    except InvalidPayload as error:
        return rejected(str(error), "InvalidPayload")
    except BaseException as error:
        return judged(error)
