"""Delivering webhooks: the handler of the executor in production. One attempt is one POST.

| event | what happens |
|---|---|
| the receiver hangs, or drips its answer | failed as `timeout`, a little before `timeout_s` |
| it answers without end | read up to `ANSWER_BYTES_MAX`, then hung up; the verdict stands |
| no connection, a reset, bad TLS, no such name | failed and tried again |
| the address is not allowed | rejected: nothing was connected to |
| one host has too many of the tenant's requests already | released uncharged, for a while |
| cancelled, or its lease lost | the connection is closed |
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TypeAlias

import aiohttp
import msgspec
from yarl import URL

from duly import __version__
from duly.domain.addresses import OutboundRules, url_reason
from duly.domain.errors import DulyError
from duly.domain.limits import RESULT_BYTES_MAX
from duly.domain.states import Outcome
from duly.domain.task import host_of
from duly.domain.trace_context import trace_of_attempt
from duly.domain.webhook_headers import header_form, sendable
from duly.environment import Environment
from duly.execution.attempt import AttemptResult
from duly.execution.webhooks.answers import WebhookAnswer, verdict_of
from duly.execution.webhooks.http_client import AddressRefused, Lookup, open_outbound, refusal_in
from duly.execution.webhooks.signing import Keyring, sign
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.workflow_inputs import NodeInput, NodeInputs, OnRead, not_followed
from duly.telemetry import Metrics

ANSWER_BYTES_MAX = 1024 * 1024
HOST_CONCURRENCY = 50
# How long an attempt may wait for its host before it is released; and how many may wait at a host
# that is known to be slow, so that it cannot take every slot of the executor.
HOST_WAIT_S = 2.0
HOST_WAITING_MAX = 100
BUSY_S_MAX = 30.0
# An attempt ends this much before its lease would, so that its end can still be recorded.
MARGIN_S, MARGIN_SHARE = 0.5, 0.1
KEYLESS_S = 1.0
# Of requests that got no answer; others failed by the answer they got.
FAILURE_KINDS = frozenset({"timeout", "dns", "tls", "connection", "protocol"})
USER_AGENT = f"duly/{__version__}"

HostKey: TypeAlias = tuple[int, str]
# Called with the outcome of each request to a host of a tenant: (tenant, host, ok, attempt).
OnOutcome: TypeAlias = Callable[[int, str, bool, int], None]
# Answers by how much at least a retry to a host is delayed.
Stretch: TypeAlias = Callable[[int, str], float | None]


def no_outcome(tenant: int, host: str, ok: bool, attempt: int) -> None:
    """Without breakers, outcomes are not recorded."""


def no_stretch(tenant: int, host: str) -> float | None:
    """Retries follow their policy alone."""


class EnvelopeParent(msgspec.Struct, frozen=True, omit_defaults=True):
    state: str
    result: msgspec.Raw | None = None


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a workflow node's webhook that asked for its parents."""

    payload: msgspec.Raw
    parents: dict[str, EnvelopeParent] | None = None
    parents_url: str | None = None

    @classmethod
    def of(cls, payload: bytes, given: NodeInput | None) -> "Envelope":
        if given is None:
            return cls(msgspec.Raw(payload), {})
        if given.parents is None:
            return cls(msgspec.Raw(payload), None, given.parents_url)
        parents = {
            each.name: EnvelopeParent(
                each.state, None if each.result is None else msgspec.Raw(each.result.encode())
            )
            for each in given.parents
        }
        return cls(msgspec.Raw(payload), parents)


class HostBusy(Exception):
    """A host has as many requests of this tenant as it may, and is slow to answer them."""

    def __init__(self, refused: int) -> None:
        super().__init__(refused)
        self.refused = refused


class HostSlots:
    """Bounds the requests of one tenant at one host at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.hosts: dict[HostKey, HostState] = {}

    @contextlib.asynccontextmanager
    async def slot_at(self, key: HostKey, wait_s: float) -> AsyncIterator[None]:
        host_state = self.hosts.get(key)
        if host_state is None:
            host_state = self.hosts[key] = HostState(self.most)
        if host_state.refused and host_state.present >= self.most + HOST_WAITING_MAX:
            host_state.refused += 1
            raise HostBusy(host_state.refused)
        host_state.present += 1
        try:
            await self.acquire(host_state, wait_s)
            try:
                yield
            finally:
                host_state.free.release()
                host_state.refused = max(host_state.refused - 1, 0)
        finally:
            host_state.present -= 1
            if not host_state.present:
                del self.hosts[key]

    async def acquire(self, host_state: "HostState", wait_s: float) -> None:
        if not host_state.free.locked():
            await host_state.free.acquire()
            return
        try:
            async with asyncio.timeout(wait_s):
                await host_state.free.acquire()
        except TimeoutError:
            host_state.refused += 1
            raise HostBusy(host_state.refused) from None


class HostState:
    __slots__ = ("free", "present", "refused")

    def __init__(self, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        self.present = 0
        self.refused = 0


class WebhookSender:
    """`await sender(lease)` is one delivery. Made and closed in the loop that uses it."""

    def __init__(
        self,
        database: Database,
        environment: Environment,
        rules: OutboundRules,
        host_concurrency: int = HOST_CONCURRENCY,
        on_outcome: OnOutcome = no_outcome,
        stretch: Stretch = no_stretch,
        lookup: Lookup | None = None,
        metrics: Metrics | None = None,
        on_inputs: OnRead = not_followed,
    ) -> None:
        self.environment = environment
        self.rules = rules
        self.keyring = Keyring(database, environment)
        self.inputs = NodeInputs(database, on_inputs)
        self.host_slots = HostSlots(host_concurrency)
        self.on_outcome = on_outcome
        self.stretch = stretch
        self.metrics = metrics or Metrics()
        self.session = open_outbound(rules, lookup)

    async def __call__(self, lease: Lease) -> AttemptResult:
        url, policy = lease.url or "", lease.policy
        if reason := url_reason(url, self.rules):
            return refused(f"the url {reason}")
        limit_s = policy.timeout_s - min(MARGIN_S, policy.timeout_s * MARGIN_SHARE)
        host = host_of(url) or ""
        clock = self.environment.clock
        began = clock.monotonic()
        try:
            secrets = await self.keyring.secrets_of(lease.tenant)
            async with self.host_slots.slot_at((lease.tenant, host), min(HOST_WAIT_S, limit_s / 2)):
                # The wait for keys and host is part of the attempt's time.
                left_s = max(limit_s - (clock.monotonic() - began), 0.0)
                sent_at = clock.monotonic()
                verdict = await self.deliver(lease, secrets, left_s)
                self.note_request(verdict, clock.monotonic() - sent_at)
        except HostBusy as busy:
            return self.busy_result(busy)
        except AddressRefused as error:
            return refused(str(error))
        except DulyError as error:
            # Not the receiver's fault: the attempt is not charged.
            return AttemptResult(Outcome.RELEASED, error=str(error), retry_in_s=KEYLESS_S)
        is_well = verdict.is_accepted_async or verdict.outcome is not Outcome.FAILED
        self.on_outcome(lease.tenant, host, is_well, lease.attempt)
        if is_well:
            return verdict
        return replace(verdict, at_least_s=self.stretch(lease.tenant, host))

    def note_request(self, verdict: AttemptResult, took_s: float) -> None:
        is_well = verdict.is_accepted_async or verdict.outcome is not Outcome.FAILED
        kind = verdict.error_kind if verdict.error_kind in FAILURE_KINDS else "answer"
        self.metrics.webhook_time.of("delivered" if is_well else kind).observe(took_s)

    async def deliver(self, lease: Lease, secrets: list[bytes], limit_s: float) -> AttemptResult:
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.post(lease, secrets)
        except TimeoutError:
            error = f"timed out: no whole answer within {lease.policy.timeout_s:g} s"
            return AttemptResult(Outcome.FAILED, error=error, error_kind="timeout")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            refusal = refusal_in(error)
            if refusal is not None:
                raise refusal from error
            return network_failure(error)
        return verdict_of(answer, lease.policy.retry, self.environment.clock.now())

    async def post(self, lease: Lease, secrets: list[bytes]) -> WebhookAnswer:
        body = await self.body_of(lease)
        async with self.session.post(
            URL(lease.url or "", encoded=True),
            data=body,
            headers=self.headers_of(lease, secrets, body),
            allow_redirects=False,
        ) as response:
            kept, size = await read_bounded(response)
            return WebhookAnswer(response.status, response.headers, kept, size)

    async def body_of(self, lease: Lease) -> bytes:
        """The payload as it was given, or, where a node asked for it, beside its parents."""
        payload = (lease.payload or "null").encode()
        if not lease.policy.envelope:
            return payload
        given = (await self.inputs.of([lease.id])).get(lease.id)
        return msgspec.json.encode(Envelope.of(payload, given))

    def headers_of(self, lease: Lease, secrets: list[bytes], body: bytes) -> dict[str, str]:
        """The tenant's first: none of them can replace one of ours."""
        key = header_form(lease.execution_key)
        timestamp = int(self.environment.clock.now().timestamp())
        return sendable(lease.policy.headers) | {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": USER_AGENT,
            "webhook-id": key,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(secrets, key, timestamp, body),
            "Idempotency-Key": key,
            "Duly-Task-Id": str(lease.id),
            "Duly-Type": lease.type,
            "Duly-Attempt": str(lease.attempt),
            "Duly-Fence": str(lease.fence),
            "Duly-Scheduled-For": lease.scheduled_for.isoformat().replace("+00:00", "Z"),
            "traceparent": trace_of_attempt(lease.id, lease.fence, lease.traceparent).header(),
        }

    def busy_result(self, busy: HostBusy) -> AttemptResult:
        """Release an attempt whose host is busy: the more are waiting, the later it comes again."""
        delay_s = min(BUSY_S_MAX, 1.0 + busy.refused / self.host_slots.most)
        delay_s *= self.environment.random.uniform(0.5, 1.5)
        error = "its host has as many requests as it may have at a time"
        return AttemptResult(Outcome.RELEASED, error=error, retry_in_s=delay_s)

    async def close(self) -> None:
        await self.keyring.close()
        await self.session.close()


async def read_bounded(response: aiohttp.ClientResponse) -> tuple[bytes, int]:
    """The beginning of the body, and how much of it there was until its end or our limit."""
    kept, size = b"", 0
    while piece := await response.content.readany():
        size += len(piece)
        if len(kept) <= RESULT_BYTES_MAX:
            kept += piece[: RESULT_BYTES_MAX + 1 - len(kept)]
        if size > ANSWER_BYTES_MAX:
            response.close()
            break
    return kept, size


def refused(error: str) -> AttemptResult:
    return AttemptResult(Outcome.REJECTED, error=error, error_kind="address_refused")


def network_failure(error: Exception) -> AttemptResult:
    """A network failure in our own words: the library's texts name internal addresses."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            kind, text = "dns", "the name of the host cannot be resolved"
        case aiohttp.ClientSSLError():
            reason = getattr(error.os_error, "reason", None) or "no secure connection"
            kind, text = "tls", f"the receiver's TLS cannot be trusted: {reason}"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            reason = type(error.os_error).__name__ if number is None else os.strerror(number)
            kind, text = "connection", f"cannot connect: {reason}"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            kind, text = "connection", "the receiver hung up before its answer was whole"
        case aiohttp.ClientResponseError() | ValueError():
            kind, text = "protocol", "the receiver's answer is not HTTP that can be read"
        case _:
            kind, text = "connection", f"the connection failed ({type(error).__name__})"
    return AttemptResult(Outcome.FAILED, error=text, error_kind=kind)
