"""`duly.transactional`: submit inside your own transaction, in the database that duly lives in.

The task is stored by the SQL function `duly.submit_task`: your commit makes it visible, your
rollback leaves nothing. `submit` takes a connection of psycopg or Django, or a Connection or
Session of SQLAlchemy; `asubmit` the asynchronous ones of psycopg and SQLAlchemy, and asyncpg's.
Nothing here commits.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Unpack
from uuid import UUID

import msgspec

from duly.client.drivers import asker, awaited_asker, fault_of, state_of
from duly.client.errors import ApiError, Conflict, IdempotencyMismatch, Invalid, NotFound
from duly.client.request import SubmitOptions, task_fields
from duly.domain.errors import ConfigurationError
from duly.domain.limits import Problem

if TYPE_CHECKING:
    from duly.validation.schema import PayloadSchema

# Everything travels as text and is cast there, so that no driver's idea of a type gets in between.
SUBMIT = """
SELECT duly.submit_task(
    tenant => CAST({tenant} AS text), type => CAST({type} AS text),
    payload => CAST(CAST({payload} AS text) AS json),
    run_at => CAST(CAST({run_at} AS text) AS timestamptz),
    delay_s => CAST(CAST({delay_s} AS text) AS double precision),
    start_by => CAST(CAST({start_by} AS text) AS timestamptz),
    options => CAST(CAST({options} AS text) AS jsonb),
    notify => CAST(CAST({notify} AS text) AS boolean))
"""
SCHEMA = "SELECT duly.task_type_schema(CAST({tenant} AS text), CAST({type} AS text))"
# What the function says when it refuses; docs/how-to/submit-in-your-transaction.md names them too.
INVALID, NO_TENANT, MISMATCH, TOO_MANY_POOLS = "DU001", "DU002", "DU003", "DU004"
REFUSALS: dict[str, tuple[type[ApiError], int, str]] = {
    INVALID: (Invalid, 422, "invalid"),
    NO_TENANT: (NotFound, 404, "not_found"),
    MISMATCH: (IdempotencyMismatch, 409, "idempotency_mismatch"),
    TOO_MANY_POOLS: (Conflict, 409, "too_many"),
}


class Request(NamedTuple):
    tenant: str
    type: str
    payload: bytes
    arguments: dict[str, str | None]

    @property
    def names(self) -> dict[str, str | None]:
        return {"tenant": self.tenant, "type": self.type}


def submit(
    connection: Any,
    tenant: str,
    type: str,  # noqa: A002 (what the API calls it)
    payload: object = None,
    *,
    check_schema: bool = True,
    notify: bool = True,
    **options: Unpack[SubmitOptions],
) -> UUID:
    """The id of the task that your commit will make. `check_schema=False` saves a round trip where
    no schema is kept; `notify=False` lets the scheduler find it by itself, some seconds later."""
    request = request_of(tenant, type, payload, options, notify=notify)
    ask = asker(connection)
    with translated_refusals():
        if check_schema:
            schema = ask(connection, SCHEMA, request.names)
            found = None if schema is None else payload_problem(schema, request)
            if not (found is None or isinstance(found, Problem)):
                found = costly_problem(found, request.payload)
            refuse_payload(request, found)
        return as_uuid(ask(connection, SUBMIT, request.arguments))


async def asubmit(
    connection: Any,
    tenant: str,
    type: str,  # noqa: A002
    payload: object = None,
    *,
    check_schema: bool = True,
    notify: bool = True,
    **options: Unpack[SubmitOptions],
) -> UUID:
    """`submit`, awaited."""
    request = request_of(tenant, type, payload, options, notify=notify)
    ask = awaited_asker(connection)
    with translated_refusals():
        if check_schema:
            schema = await ask(connection, SCHEMA, request.names)
            found = None if schema is None else payload_problem(schema, request)
            if not (found is None or isinstance(found, Problem)):
                found = await asyncio.to_thread(costly_problem, found, request.payload)
            refuse_payload(request, found)
        return as_uuid(await ask(connection, SUBMIT, request.arguments))


def request_of(
    tenant: str, task_type: str, payload: object, options: Mapping[str, Any], *, notify: bool
) -> Request:
    content = msgspec.json.encode(payload)
    fields = {name: value for name, value in task_fields(options).items() if value is not None}
    instants = {name: fields.pop(name, None) for name in ("run_at", "start_by")}
    delay_s = fields.pop("delay_s", None)
    arguments = {
        "tenant": tenant,
        "type": task_type,
        "payload": content.decode(),
        **{name: instant_text(name, value) for name, value in instants.items()},
        "delay_s": None if delay_s is None else repr(float(delay_s)),
        "options": msgspec.json.encode(fields).decode(),
        "notify": "true" if notify else "false",
    }
    return Request(tenant, task_type, content, arguments)


def instant_text(name: str, instant: datetime | None) -> str | None:
    if instant is None:
        return None
    if instant.tzinfo is None:
        refuse(INVALID, "the task is not valid", [problem(f"/{name}", "has no offset from UTC")])
    return instant.isoformat()


def problem(pointer: str, detail: str) -> dict[str, str]:
    return {"pointer": pointer, "detail": detail}


def payload_problem(schema: str, request: Request) -> "Problem | PayloadSchema | None":
    """Imported late: most programs keep no schemas, and their library is the largest of all."""
    try:
        from duly.client import payload_schema
    except ModuleNotFoundError as error:
        problem = (
            f"tasks of type {request.type} have a JSON Schema, and checking payloads needs"
            " `pip install 'duly[schema]'`; check_schema=False submits without the check"
        )
        raise ConfigurationError(problem=problem) from error
    return payload_schema.payload_problem(schema, request.payload)


def costly_problem(schema: "PayloadSchema", payload: bytes) -> Problem | None:
    from duly.client import payload_schema

    return payload_schema.costly_problem(schema, payload)


def refuse_payload(request: Request, found: Problem | None) -> None:
    if found is not None:
        errors = [problem(found.pointer, found.reason)]
        refuse(INVALID, f"the payload is not what {request.type} takes", errors)


def refuse(
    state: str, detail: str, errors: list[dict[str, str]], cause: BaseException | None = None
) -> NoReturn:
    kind, status, code = REFUSALS[state]
    raise kind(status, {"code": code, "detail": detail, "errors": errors}, None) from cause


@contextmanager
def translated_refusals() -> Iterator[None]:
    """The function's refusals as the client's own errors; every other error stays the driver's."""
    try:
        yield
    except Exception as error:
        state = state_of(error)
        if state not in REFUSALS:
            raise
        message, detail = words_of(fault_of(error))
        errors = msgspec.json.decode(detail) if state == INVALID and detail else []
        refuse(state, message.partition(":")[0], errors, error)


def words_of(fault: BaseException) -> tuple[str, str | None]:
    """Message and detail, where each driver keeps them."""
    inner = fault.__cause__ if hasattr(fault.__cause__, "detail") else fault
    said = getattr(fault, "diag", None)
    if said is not None:
        return str(said.message_primary), said.message_detail
    return str(getattr(inner, "message", fault)), getattr(inner, "detail", None)


def as_uuid(value: Any) -> UUID:
    return value if type(value) is UUID else UUID(str(value))
