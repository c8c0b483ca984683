"""ASGI application: route, authenticate, authorise, read the body, run the handler, answer.

An endpoint is declared once (`Endpoint`); routing, validation, authorisation, audit, idempotency
and the OpenAPI description all come from that declaration.

| kind | what its handler gets |
|---|---|
| OPEN | nothing: no credential is needed |
| HOT | no transaction; it batches with other callers, and names its tenant in every row |
| READ | a transaction bound to the tenant by row-level security |
| CONTROL | the same; the audit entry and the idempotent answer commit with the change |
| INSTALLATION | like CONTROL, but over all tenants; needs a credential with that reach |
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec

from duly.api.admission import Admission, FairLimiter, WorkSlicer
from duly.api.credentials import Authenticator
from duly.api.cursors import Cursors
from duly.api.json_body import convert_query, decode, unknown_parameter
from duly.api.problems import (
    PROBLEM_CONTENT_TYPE,
    ApiProblem,
    Code,
    invalid_query,
    later,
    not_found,
    problem_of,
    quoted,
)
from duly.api.request import CONTROL_CHARACTER, Answer, Call, Receive, Scope, Send
from duly.domain.access import Access, Reach
from duly.domain.errors import DulyError, StatementRefused
from duly.domain.limits import key_reason
from duly.store.audit import append_audit
from duly.store.call_idempotency import claim_call, keep_answer
from duly.store.database import CONFLICT_CODES, Database
from duly.telemetry import Metrics, get_logger

BODY_BYTES_MAX = 256 * 1024
REQUEST_TIMEOUT_S = 30.0
ESCAPED_SLASH = re.compile(rb"%2[fF]")
CONFLICT_TRIES_MAX = 3
NO_CONTENT_TYPE = b""
# In the scope: the call has a valid credential; its connection is reserved for probes and
# operators.
PROVEN = "duly.proven"
RESERVED = "duly.reserved"
ENDPOINT = "duly.endpoint"
# The label of requests that no endpoint takes.
OTHER = "(other)"

log = get_logger("duly.api")

Handler = Callable[..., Awaitable[Answer]]


class Kind(Enum):
    OPEN = auto()
    HOT = auto()
    READ = auto()
    CONTROL = auto()
    INSTALLATION = auto()


@dataclass(frozen=True)
class Endpoint:
    """One route. `body` and `query` are msgspec Structs; `answers` maps a status to its body."""

    method: str
    path: str
    summary: str
    handler: Handler
    kind: Kind
    access: frozenset[Access] = frozenset()
    body: type | None = None
    query: type | None = None
    answers: dict[int, Any] = field(default_factory=dict)
    refusals: tuple[Code, ...] = ()
    tag: str = ""
    body_bytes_max: int = BODY_BYTES_MAX
    is_body_optional: bool = False
    media_types: tuple[str, ...] = ("application/json",)
    # Media type of successful answers; refusals are always problem documents.
    answer_media_type: str = "application/json"
    # Longer for calls that wait on purpose.
    timeout_s: float = REQUEST_TIMEOUT_S
    # Decodes a body that holds many things, or is not one JSON document, in slices.
    decode: Callable[[Call, bytes, WorkSlicer], Awaitable[Any]] | None = None
    # Also allowed for a suspended tenant: running tasks may finish.
    is_for_suspended: bool = False
    # Reads or changes many rows: on connections of its own, a few calls of a tenant at a time.
    is_bulk: bool = False
    # Stores many rows; a few calls of a tenant at a time.
    is_batch: bool = False
    # The handler checks the task types it changes against the credential (`permit_type`). Endpoints
    # that do not are refused to a credential limited to task types, unless they only read.
    checks_types: bool = False
    # Runs before the transaction, for work that takes long or needs a connection of its own: calls
    # that each hold one connection and wait for a second would deadlock.
    prepare: Callable[..., Awaitable[None]] | None = None

    @property
    def segments(self) -> list[str]:
        return self.path.strip("/").split("/")

    @cached_property
    def roles(self) -> frozenset[Access]:
        """Who may call it: what an operator may read, a viewer may."""
        is_look = self.method == "GET" and Access.OPERATOR in self.access
        return self.access | {Access.VIEWER} if is_look else self.access

    @cached_property
    def takes_cursor(self) -> bool:
        """Its query, or else its body, has a `cursor`, and its answer a `next_cursor`."""
        asked: Any = self.query or self.body
        return asked is not None and "cursor" in asked.__struct_fields__


class Routes:
    """Paths by exact text, then by resource and length; `{name}` stands for one segment."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.exact: dict[str, dict[str, Endpoint]] = {}
        self.patterns: dict[object, list[tuple[list[str], dict[str, Endpoint]]]] = {}
        for endpoint in endpoints:
            self.methods_of(endpoint)[endpoint.method] = endpoint

    def methods_of(self, endpoint: Endpoint) -> dict[str, Endpoint]:
        if "{" not in endpoint.path:
            return self.exact.setdefault(endpoint.path, {})
        candidates = self.patterns.setdefault(route_key(endpoint.segments), [])
        for segments, known in candidates:
            if segments == endpoint.segments:
                return known
        methods: dict[str, Endpoint] = {}
        candidates.append((endpoint.segments, methods))
        return methods

    def find(self, path: str, raw: bytes = b"") -> tuple[dict[str, Endpoint], dict[str, str]]:
        """The endpoints of a path by method, and its parameters. `raw`: the path as it was sent; a
        slash that is escaped there belongs to a parameter, and separates nothing."""
        if ESCAPED_SLASH.search(raw):
            given = [unquote(each) for each in raw.decode("latin-1").strip("/").split("/")]
        else:
            methods = self.exact.get(path)
            if methods is not None:
                return methods, {}
            given = path.strip("/").split("/")
        for segments, found in self.patterns.get(route_key(given), ()):
            params = parameters(segments, given)
            if params is not None:
                return found, params
        return {}, {}


def route_key(segments: list[str]) -> tuple[int, str]:
    """Paths that can match the same request share one key."""
    return len(segments), segments[1] if len(segments) > 1 else ""


def parameters(segments: list[str], given: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for segment, text in zip(segments, given, strict=True):
        if segment[0] == "{":
            params[segment[1:-1]] = text
        elif segment != text:
            return None
    return params


class AsgiApplication:
    """The ASGI application."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        database: Database,
        authenticator: Authenticator,
        metrics: Metrics,
        admission: Admission | None = None,
        bulk: Database | None = None,
    ) -> None:
        assert not any(each.takes_cursor for each in endpoints if each.kind is Kind.HOT)
        self.routes = Routes(endpoints)
        self.cursors = Cursors(database)
        self.database = database
        # Connections of reads and bulk changes, which hot calls never wait for.
        self.bulk = bulk or database
        self.admission = admission or Admission()
        self.authenticator = authenticator
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "uvicorn is told to speak nothing else"
        clock = asyncio.get_running_loop()
        began = clock.time()
        answer = await self.answer(scope, receive)
        self.note_answer(scope, answer.status, clock.time() - began)
        if answer.stream is not None:
            await send_stream(answer, answer.stream, send)
            return
        body = answer.encoded() if answer.status != 204 else b""
        headers = [(b"content-length", str(len(body)).encode())]
        if body:
            headers.append((b"content-type", answer.content_type))
        for name, value in answer.headers.items():
            headers.append((name.encode(), value.encode("latin-1")))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def note_answer(self, scope: Scope, status: int, took_s: float) -> None:
        """By the path of the endpoint: what callers make up shares one label."""
        endpoint: Endpoint | None = scope.get(ENDPOINT)
        method, route = (OTHER, OTHER) if endpoint is None else (endpoint.method, endpoint.path)
        self.metrics.http_requests.add(1, method, route, str(status))
        self.metrics.http_time.of(route).observe(took_s)

    async def answer(self, scope: Scope, receive: Receive) -> Answer:
        """Answer every request: a problem document for an expected refusal, 500 for a fault of
        ours."""
        try:
            call = Call(scope, receive)
            endpoint = scope[ENDPOINT] = self.endpoint_of(call)
            if endpoint.kind is Kind.HOT:
                # Bounded by what it waits for: the statement timeout, the body timeout, `wait_s`.
                return await self.serve(endpoint, call)
            async with asyncio.timeout(endpoint.timeout_s):
                return await self.serve(endpoint, call)
        except ApiProblem as refused:
            return refusal(refused)
        except DulyError as error:
            log.warning("request failed", path=scope["path"], error=str(error))
            return refusal(problem_of(error))
        except asyncio.CancelledError:
            # Only the server's own stop cancels a request; its asyncio task ends with this answer.
            log.info("request cancelled by the shutdown", path=scope["path"])
            return refusal(later(Code.UNAVAILABLE, "the server is stopping; try again"))
        except TimeoutError:
            return refusal(later(Code.TIMEOUT, "the call took too long and was ended; try again"))
        except Exception:
            log.exception("unhandled exception in request", path=scope["path"])
            return refusal(
                ApiProblem(Code.INTERNAL, "internal error; the server log has the details")
            )

    def endpoint_of(self, call: Call) -> Endpoint:
        methods, call.params = self.routes.find(call.path, call.scope.get("raw_path") or b"")
        if call.params and CONTROL_CHARACTER.search(call.path):
            raise ApiProblem(Code.MALFORMED_REQUEST, "the path contains a control character")
        endpoint = methods.get(call.method)
        if endpoint is None:
            if not methods:
                raise ApiProblem(
                    Code.NOT_FOUND, f"path {quoted(call.path)} was not found; /docs lists all"
                )
            raise ApiProblem(
                Code.METHOD_NOT_ALLOWED,
                f"{quoted(call.path)} does not take {call.method[:16]}",
                headers={"allow": ", ".join(sorted(methods))},
            )
        return endpoint

    async def serve(self, endpoint: Endpoint, call: Call) -> Answer:
        if endpoint.kind is Kind.OPEN:
            if endpoint.access and (call.header(b"authorization") or call.header(b"x-duly-key")):
                # Some open endpoints show more to a credential, so a given credential is checked.
                call.optional_credential = await self.authenticator.identify(call, 0)
            return await endpoint.handler(call)
        try:
            return await self.serve_caller(endpoint, call)
        finally:
            if call.admitted:
                call.release()

    async def serve_caller(self, endpoint: Endpoint, call: Call) -> Answer:
        credential = await self.authenticator.identify(call, endpoint.body_bytes_max)
        call.credential = credential
        call.scope[PROVEN] = True
        if credential.request_rate is not None and credential.key_id is not None:
            rates = self.authenticator.request_rates
            await rates.admit(credential.key_id, credential.request_rate)
        if credential.reach is Reach.INSTALLATION:
            return await self.serve_known(endpoint, call, is_operator=True)
        if credential.is_suspended and not endpoint.is_for_suspended:
            detail = f"the tenant {credential.tenant_name} is suspended; ask its operator"
            raise ApiProblem(Code.TENANT_SUSPENDED, detail)
        if RESERVED in call.scope:
            raise later(Code.OVERLOADED, "too many connections are open; try again")
        self.admission.begin_call(credential.tenant)
        try:
            return await self.serve_known(endpoint, call, is_operator=False)
        finally:
            self.admission.end_call(credential.tenant)

    async def serve_known(self, endpoint: Endpoint, call: Call, *, is_operator: bool) -> Answer:
        """Admit in the order of cost: body bytes before they are read, then the work itself.
        Operators are only limited in bytes."""
        await self.authorise(endpoint, call)
        raw = b""
        if endpoint.method != "GET":
            raw = await self.read_body(endpoint, call)
        limiter = None if is_operator else self.limiter_of(endpoint)
        if limiter is not None:
            await call.admit(limiter, call.credential.tenant)
        return await self.run(endpoint, call, raw)

    async def read_body(self, endpoint: Endpoint, call: Call) -> bytes:
        if not call.is_read:
            size = call.body_size(endpoint.body_bytes_max)
            if size > self.admission.limits.body_bytes_free:
                await call.admit(self.admission.bodies, call.credential.tenant, size)
        return await call.read_body(endpoint.body_bytes_max)

    def limiter_of(self, endpoint: Endpoint) -> FairLimiter | None:
        if endpoint.is_batch:
            return self.admission.batches
        if endpoint.is_bulk or endpoint.kind is Kind.READ:
            return self.admission.reads
        return None if endpoint.kind is Kind.HOT else self.admission.changes

    async def run(self, endpoint: Endpoint, call: Call, raw: bytes) -> Answer:
        arguments: list[Any] = [call]
        if endpoint.body is not None:
            arguments.append(await self.read(endpoint, call, raw))
        named = call.query
        if endpoint.query is not None:
            arguments.append(convert_query(named, endpoint.query))
        elif named:
            raise invalid_query(unknown_parameter(next(iter(named)), ()))
        if endpoint.kind is Kind.HOT:
            return await endpoint.handler(*arguments)
        if endpoint.takes_cursor:
            await self.cursors.load()
            arguments[-1] = self.cursors.opened(call, arguments[-1])
        if endpoint.prepare is not None:
            await endpoint.prepare(*arguments)
        return await self.in_transaction(endpoint, call, arguments)

    async def authorise(self, endpoint: Endpoint, call: Call) -> None:
        """Check role and reach of the credential, and find the tenant that the request is about."""
        credential = call.credential
        if credential.access not in endpoint.roles:
            needed = " or ".join(sorted(endpoint.roles))
            raise ApiProblem(Code.FORBIDDEN, f"this call needs the role {needed}")
        if credential.types is not None and not (endpoint.checks_types or endpoint.method == "GET"):
            raise ApiProblem(
                Code.FORBIDDEN, "a credential that is limited to task types may not do this"
            )
        call.tenant, call.tenant_name = credential.tenant, credential.tenant_name
        wanted = call.query.pop("tenant", None)
        if wanted is not None and wanted != credential.tenant_name:
            tenant = None
            if credential.reach is Reach.INSTALLATION:
                tenant = await self.authenticator.tenants.get(wanted)
            if tenant is None:
                raise not_found("tenant", wanted)
            call.tenant, call.tenant_name = tenant.id, tenant.name
        if endpoint.kind is Kind.INSTALLATION and credential.reach is not Reach.INSTALLATION:
            raise ApiProblem(Code.FORBIDDEN, "this call needs a credential with reach installation")

    async def read(self, endpoint: Endpoint, call: Call, raw: bytes) -> Any:
        assert endpoint.body is not None
        if not raw and endpoint.is_body_optional:
            return endpoint.body()
        if b"content-encoding" in call.headers:
            raise ApiProblem(Code.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not supported")
        media_type = (call.header(b"content-type") or "").partition(";")[0].strip().lower()
        if media_type not in endpoint.media_types:
            taken = " or ".join(endpoint.media_types)
            raise ApiProblem(Code.UNSUPPORTED_MEDIA_TYPE, f"the content type must be {taken}")
        if endpoint.decode is not None:
            async with self.admission.pace() as pace:
                return await endpoint.decode(call, raw, pace)
        return decode(raw, endpoint.body)

    async def in_transaction(self, endpoint: Endpoint, call: Call, arguments: list[Any]) -> Answer:
        for remaining in reversed(range(CONFLICT_TRIES_MAX)):
            call.notes.clear()
            call.after.clear()
            try:
                async with self.in_session(endpoint, call):
                    answer = await self.run_once(endpoint, call, arguments)
                break
            except StatementRefused as refused:
                if refused.facts["code"] not in CONFLICT_CODES or not remaining:
                    raise
        for action in call.after:
            following = action()
            if following is not None:
                await following
        return answer

    @contextlib.asynccontextmanager
    async def in_session(self, endpoint: Endpoint, call: Call) -> AsyncIterator[None]:
        """Steps after the commit have no session: the connection is back in the pool by then."""
        database = self.bulk if endpoint.is_bulk or endpoint.kind is Kind.READ else self.database
        opened = (
            database.transaction()
            if endpoint.kind is Kind.INSTALLATION
            else database.tenant(call.tenant)
        )
        async with opened as call.open_session:
            try:
                yield
            finally:
                call.open_session = None

    async def run_once(self, endpoint: Endpoint, call: Call, arguments: list[Any]) -> Answer:
        """A second request with the same idempotency key gets the first one's answer and changes
        nothing."""
        key = call.header(b"idempotency-key") if endpoint.method != "GET" else None
        if key is not None:
            if reason := key_reason(key):
                raise ApiProblem(Code.INVALID, f"the Idempotency-Key {reason}")
            digest = call_digest(call)
            known = await claim_call(call.session, call.tenant, key, digest)
            if known is not None:
                if known.request_hash != digest:
                    detail = "the Idempotency-Key was used for another call"
                    raise ApiProblem(Code.IDEMPOTENCY_MISMATCH, detail)
                replay = {"idempotent-replay": "true"}
                return Answer(known.status, known.answer.encode(), replay)
        answer = await endpoint.handler(*arguments)
        if endpoint.takes_cursor:
            answer = self.cursors.sealed(call, arguments[-1], answer)
        for note in call.notes:
            await append_audit(
                call.session,
                call.tenant,
                call.credential.actor,
                note.action,
                note.subject,
                msgspec.json.encode(note.detail).decode(),
            )
        if key is not None:
            kept = answer.encoded() if answer.kept is None else msgspec.json.encode(answer.kept)
            await keep_answer(call.session, call.tenant, key, answer.status, kept.decode())
        return answer


async def send_stream(answer: Answer, stream: AsyncGenerator[bytes, None], send: Send) -> None:
    headers = [(b"content-type", answer.content_type)]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    try:
        async with contextlib.aclosing(stream):
            async for piece in stream:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except (DulyError, asyncio.CancelledError) as error:
        # Its beginning is sent: all that is left is to end it.
        log.info("stream ended early", error=repr(error))
    await send({"type": "http.response.body", "body": b""})


def call_digest(call: Call) -> bytes:
    text = f"{call.method}\n{call.path}\n{call.scope['query_string'].decode('latin-1')}\n"
    return hashlib.sha256(text.encode() + call.raw_body).digest()


def refusal(refused: ApiProblem) -> Answer:
    return Answer(refused.status, refused.body(), refused.headers, PROBLEM_CONTENT_TYPE)
