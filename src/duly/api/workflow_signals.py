"""Signals of workflows over HTTP: send one, and list what was sent."""

import hashlib
from dataclasses import dataclass
from functools import partial

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.tasks import REPLAY, mismatch
from duly.api.wire import NULL, IdempotencyKey, Instant, Limit, Page, page, raw
from duly.api.workflow_nodes import SignalName
from duly.api.workflows import ended, workflow_id_of
from duly.domain.access import PRODUCERS
from duly.domain.limits import Problem, bytes_reason, key_reason
from duly.events import TaskEvents
from duly.store.control import publish_released
from duly.store.finish import Released
from duly.store.workflow_signals import (
    PAYLOAD_BYTES_MAX,
    SIGNALS_MAX,
    SentSignal,
    Signal,
    SignalRefused,
    list_signals,
    send_signal,
)
from duly.store.workflows import read_workflow

TAG = "Workflows"


class SignalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is told to a workflow: a name, and a payload that the waiting node answers with. With an
    idempotency key, the same signal is taken once by this workflow."""

    name: SignalName
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    idempotency_key: IdempotencyKey | None = None


class SignalView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal as it stands. `node`: which one got it; without it, it is kept for one that will
    wait. The answer to the one who sent it leaves out the payload."""

    number: int
    name: str
    sender: str
    role: str
    received_at: Instant
    node: str | None = None
    consumed_at: Instant | None = None
    idempotency_key: str | None = None
    payload: msgspec.Raw | None = None


class SignalsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class WorkflowSignalRoutes:
    events: TaskEvents

    def endpoints(self) -> list[Endpoint]:
        at = "/v1/workflows/{id}/signals"
        return [
            Endpoint(
                "POST",
                at,
                "Send a signal to a workflow, for one waiting node, now or later",
                self.send,
                Kind.CONTROL,
                access=PRODUCERS,
                body=SignalRequest,
                answers={201: SignalView, 200: SignalView},
                refusals=(
                    *(Code.NOT_FOUND, Code.ALREADY_TERMINAL, Code.MALFORMED_BODY, Code.INVALID),
                    *(Code.IDEMPOTENCY_MISMATCH, Code.TOO_MANY),
                ),
                tag=TAG,
            ),
            Endpoint(
                "GET",
                at,
                "List the signals of a workflow, oldest first",
                self.list_page,
                Kind.READ,
                access=PRODUCERS,
                query=SignalsQuery,
                answers={200: Page[SignalView]},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
        ]

    async def send(self, call: Call, asked: SignalRequest) -> Answer:
        signal = signal_of(call, asked)
        workflow_id, released = workflow_id_of(call), Released()
        sent = await send_signal(call.session, call.tenant, workflow_id, signal, released)
        if isinstance(sent, SignalRefused):
            raise refusal(sent, call, signal)
        view = msgspec.structs.replace(signal_view(sent), payload=None)
        if sent.is_replay:
            return Answer(200, view, REPLAY)
        call.note("workflow.signal", str(workflow_id), name=signal.name)
        call.after.append(partial(publish_released, self.events, call.tenant, released))
        return Answer(201, view)

    async def list_page(self, call: Call, query: SignalsQuery) -> Answer:
        workflow_id = workflow_id_of(call)
        if await read_workflow(call.session, call.tenant, workflow_id) is None:
            raise not_found("workflow", workflow_id)
        after = 0 if query.cursor is None else int(query.cursor)
        found = await list_signals(call.session, call.tenant, workflow_id, after, query.limit)
        following = str(found[-1].number) if len(found) == query.limit else None
        return Answer(200, page(list(map(signal_view, found)), following))


def signal_of(call: Call, asked: SignalRequest) -> Signal:
    key = asked.idempotency_key
    payload = bytes(asked.payload).decode()
    checks = [
        ("/payload", bytes_reason(payload, PAYLOAD_BYTES_MAX)),
        ("/idempotency_key", key_reason(key)),
    ]
    problems = [Problem(pointer, reason) for pointer, reason in checks if reason is not None]
    if problems:
        raise invalid(problems)
    digest = hashlib.sha256(asked.name.encode() + b"\n" + payload.encode()).digest()
    credential = call.credential
    return Signal(asked.name, payload, credential.actor, credential.access, key, digest)


def refusal(answer: SignalRefused, call: Call, signal: Signal) -> ApiProblem:
    match answer:
        case SignalRefused.UNKNOWN:
            return not_found("workflow", workflow_id_of(call))
        case SignalRefused.ENDED:
            return ended()
        case SignalRefused.MISMATCH:
            return mismatch([])
        case SignalRefused.TOO_MANY:
            return ApiProblem(Code.TOO_MANY, f"a workflow takes {SIGNALS_MAX:,} signals in all")
        case SignalRefused.FORBIDDEN:
            detail = f"the nodes that wait for {signal.name} want it from a higher role"
            return ApiProblem(Code.FORBIDDEN, detail)


def signal_view(sent: SentSignal) -> SignalView:
    return SignalView(
        number=sent.number,
        name=sent.name,
        sender=sent.sender,
        role=sent.access.value,
        received_at=sent.received_at,
        node=sent.node,
        consumed_at=sent.consumed_at,
        idempotency_key=sent.idempotency_key,
        payload=raw(sent.payload),
    )
