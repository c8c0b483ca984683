"""What a call to duly can end with, as exceptions that carry the server's problem details."""

from collections.abc import Mapping
from typing import Any

from duly.domain.errors import DulyError


class ServerNotFound(DulyError):
    """no duly was found: {problem}"""


class Unreachable(DulyError):
    """duly at {url} cannot be reached: {problem}"""


class WaitTimedOut(DulyError):
    """{kind} {id} has not ended within {timeout_s:g} s; it is {state}"""


class InvalidWorkflow(DulyError):
    """{problem}"""


class WorkflowTimedOut(WaitTimedOut):
    """workflow {id} has not ended within {timeout_s:g} s; it is {state}"""


class InvalidPayload(DulyError):
    """{problem}"""


class InvalidResult(DulyError):
    """the result of task {id} is not what its handler says it returns: {problem}"""


class TaskFailed(DulyError):
    """task {id} ({type}) is {state}: {problem}"""

    def __init__(self, **facts: object) -> None:
        self.task: Any = facts.pop("task")
        super().__init__(**facts)


class TaskCancelled(TaskFailed):
    """task {id} ({type}) is {state}: {problem}"""


class ApiError(DulyError):
    """{code}: {detail}"""

    def __init__(
        self, status: int, problem: Mapping[str, Any], retry_after_s: float | None
    ) -> None:
        self.status = status
        self.code: str = problem.get("code", "unknown")
        self.detail: str = problem.get("detail", "")
        # Each with a JSON pointer and what is wrong there.
        self.errors: list[dict[str, str]] = list(problem.get("errors", []))
        self.retry_after_s = retry_after_s
        unsaid = [item for item in self.errors if item["detail"] not in self.detail]
        wrong = "; ".join(f"{item['pointer']} {item['detail']}" for item in unsaid)
        detail = f"{self.detail} ({wrong})" if wrong else self.detail
        super().__init__(code=self.code, detail=detail)


class Invalid(ApiError):
    """{code}: {detail}"""


class Unauthenticated(ApiError):
    """{code}: {detail}"""


class Forbidden(ApiError):
    """{code}: {detail}"""


class NotFound(ApiError):
    """{code}: {detail}"""


class Conflict(ApiError):
    """{code}: {detail}"""


class IdempotencyMismatch(Conflict):
    """{code}: {detail}"""


class RateLimited(ApiError):
    """{code}: {detail}"""


class Unavailable(ApiError):
    """{code}: {detail}"""


BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: RateLimited,
    503: Unavailable,
}


def error_of(status: int, problem: Mapping[str, Any], retry_after_s: float | None) -> ApiError:
    kind = BY_STATUS.get(status, ApiError)
    if problem.get("code") == "idempotency_mismatch":
        kind = IdempotencyMismatch
    return kind(status, problem, retry_after_s)
