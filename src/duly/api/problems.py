"""Problem details (RFC 9457) of every refused request.

The one place where errors become HTTP answers: `problem_of` translates them. A `detail` says what
to do about it and never exposes internals.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus

import msgspec

from duly.domain.errors import (
    CheckProcessUnavailable,
    DatabaseUnavailable,
    DatabaseUnfit,
    DulyError,
    Overloaded,
    StatementRefused,
    TooManyPools,
)
from duly.domain.limits import Problem

PROBLEM_CONTENT_TYPE = b"application/problem+json"
RETRY_AFTER_S = 1
# SQLSTATEs of values that do not fit: sending them again changes nothing.
DATA_CLASS = "22"
# A statement that reached its time limit.
QUERY_CANCELED = "57014"
NAME_CHARACTERS_MAX = 128
# Of the problems of one call, in the words of its detail; all of them are in `errors`.
SENTENCES_MAX = 3
INDEX = re.compile(r"/(\d+)(?=/|$)")
# First words of reasons that follow the name of a field without a colon.
PREDICATES = frozenset(
    {
        *("is", "are", "has", "does", "must", "may", "contains", "needs", "differs", "belong"),
        *("cannot", "leads", "lies", "never", "fires"),
    }
)


class Code(StrEnum):
    """Stable names of everything that can be wrong."""

    MALFORMED_REQUEST = "malformed_request"
    MALFORMED_BODY = "malformed_body"
    INVALID = "invalid"
    INVALID_QUERY = "invalid_query"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    TENANT_SUSPENDED = "tenant_suspended"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    ALREADY_TERMINAL = "already_terminal"
    RUNNING = "running"
    WAITING = "waiting"
    STALE = "stale"
    CONFLICT = "conflict"
    TOO_MANY = "too_many"
    GONE = "gone"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXCEEDED = "quota_exceeded"
    CONCURRENCY_LIMITED = "concurrency_limited"
    REQUEST_TIMEOUT = "request_timeout"
    URL_TOO_LONG = "url_too_long"
    HEADERS_TOO_LARGE = "headers_too_large"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


STATUS: dict[Code, int] = {
    Code.MALFORMED_REQUEST: 400,
    Code.MALFORMED_BODY: 400,
    Code.INVALID: 422,
    Code.INVALID_QUERY: 400,
    Code.BODY_TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.TENANT_SUSPENDED: 403,
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.IDEMPOTENCY_MISMATCH: 409,
    Code.ALREADY_TERMINAL: 409,
    Code.RUNNING: 409,
    Code.WAITING: 409,
    Code.STALE: 409,
    Code.CONFLICT: 409,
    Code.TOO_MANY: 409,
    Code.GONE: 410,
    Code.RATE_LIMITED: 429,
    Code.QUOTA_EXCEEDED: 429,
    Code.CONCURRENCY_LIMITED: 429,
    Code.REQUEST_TIMEOUT: 408,
    Code.URL_TOO_LONG: 414,
    Code.HEADERS_TOO_LARGE: 431,
    Code.TIMEOUT: 503,
    Code.OVERLOADED: 503,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
}


class ErrorItem(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where: a JSON pointer into the body, or a query parameter."""

    pointer: str
    detail: str


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457. `code` is stable; `detail` is for people."""

    type: str
    title: str
    status: int
    code: Code
    detail: str = ""
    errors: list[ErrorItem] = []


class ApiProblem(Exception):
    """A request that is answered with a problem. Raised only inside `api/`."""

    def __init__(
        self,
        code: Code,
        detail: str,
        errors: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = errors
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def body(self) -> bytes:
        return msgspec.json.encode(self.details())

    def details(self) -> ProblemDetails:
        return ProblemDetails(
            type=f"/docs#problem-{self.code}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            errors=[ErrorItem(problem.pointer, problem.reason) for problem in self.errors],
        )


def not_found(kind: str, name: object) -> ApiProblem:
    """`kind` is a noun, `name` what was asked for. The same for a foreign id as for one that never
    was: whether it exists elsewhere shows in no byte."""
    return ApiProblem(Code.NOT_FOUND, f"{kind} {quoted(str(name))} was not found")


def quoted(name: str) -> str:
    """Text of the caller inside a sentence: cut, and nothing in it that a terminal would obey."""
    cut = name[:NAME_CHARACTERS_MAX]
    return cut if cut.isprintable() else ascii(cut)


def invalid(problems: Sequence[Problem]) -> ApiProblem:
    said = "; ".join(sentence_of(problem) for problem in problems[:SENTENCES_MAX])
    more = len(problems) - SENTENCES_MAX
    return ApiProblem(Code.INVALID, f"{said}; and {more} more" if more > 0 else said, problems)


def sentence_of(problem: Problem) -> str:
    """`retry.max_attempts is not from 1 to 100`; a reason that is no predicate follows a colon."""
    field = INDEX.sub(r"[\1]", problem.pointer.removeprefix("/")).replace("/", ".")
    if not field:
        return problem.reason
    is_predicate = problem.reason.partition(" ")[0] in PREDICATES
    return f"{quoted(field)}{' ' if is_predicate else ': '}{problem.reason}"


def invalid_query(problem: Problem) -> ApiProblem:
    return ApiProblem(Code.INVALID_QUERY, sentence_of(problem), [problem])


def later(code: Code, detail: str, retry_after_s: int = RETRY_AFTER_S) -> ApiProblem:
    return ApiProblem(code, detail, headers={"retry-after": str(retry_after_s)})


def problem_of(error: DulyError) -> ApiProblem:
    """The problem for a DulyError. The log has the rest."""
    match error:
        case Overloaded():
            return later(Code.OVERLOADED, "too many calls are waiting; try again")
        case TooManyPools():
            return ApiProblem(Code.TOO_MANY, str(error))
        case DatabaseUnavailable() | DatabaseUnfit():
            return later(Code.UNAVAILABLE, "the database cannot be reached; try again")
        case CheckProcessUnavailable():
            return later(Code.UNAVAILABLE, "payloads cannot be checked now; try again")
        case StatementRefused() if str(error.facts["code"]).startswith(DATA_CLASS):
            return ApiProblem(Code.INVALID, "a value contains text that cannot be stored")
        case StatementRefused() if error.facts["code"] == QUERY_CANCELED:
            return later(
                Code.TIMEOUT, "the database took too long; ask for less, or try again later"
            )
        case StatementRefused():
            return later(
                Code.UNAVAILABLE, "the database is busy with a conflicting change; try again"
            )
        case _:
            return ApiProblem(Code.INTERNAL, "internal error; the server log has the details")
