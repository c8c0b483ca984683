"""The receiver's side of webhooks: what is duly's is let in, and nothing else, and each once."""

from base64 import b64encode
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from duly import Delivery, WebhookReceiver, receiver
from duly.client import receiver_app
from duly.client.clock import utc_now
from duly.client.receiver import (
    HeaderInvalid,
    HeaderMissing,
    SignatureInvalid,
    TimestampRefused,
    WebhookRefused,
    verify,
)
from duly.client.receiver_app import LocalMemory, Receive, Scope, Send
from duly.domain.errors import ConfigurationError
from duly.domain.webhook_headers import header_form
from duly.environment import Environment
from duly.execution.webhooks.sender import WebhookSender
from duly.execution.webhooks.signing import sign
from duly.store.database import Database
from duly.store.webhook_secrets import rotate_secret
from duly.testing.clock import ManualClock
from tests.execution.conftest import ANYWHERE, lease_of
from tests.execution.receiver import receiving

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SECRET = "whsec_" + b64encode(KEY).decode()
OTHER = "whsec_" + b64encode(OTHER_KEY).decode()
BODY = b'{"order": 7}'


def request(
    body: bytes = BODY,
    *,
    secret: str = SECRET,
    key: str = "order-7",
    at: datetime = NOW,
    **changed: str | None,
) -> dict[str, str]:
    """Headers, signed by somebody else's implementation of Standard Webhooks."""
    webhook_id = header_form(key)
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(webhook_id, at, body.decode()),
        "Duly-Task-Id": "0190-task",
        "Duly-Type": "order.charge",
        "Duly-Attempt": "2",
        "Duly-Fence": "3",
        "Duly-Scheduled-For": "2026-03-01T11:59:00Z",
        "traceparent": "00-0-0-01",
    }
    for name, value in changed.items():
        name = name.replace("_", "-")
        headers = {each: kept for each, kept in headers.items() if each.lower() != name}
        if value is not None:
            headers[name] = value
    return headers


def test_a_delivery_says_which_attempt_of_what_it_is() -> None:
    """Everything that a receiver needs to act once."""
    delivery = verify(request(), BODY, SECRET, now=NOW)
    assert delivery.execution_key == "order-7"
    assert delivery.task_id == "0190-task"
    assert delivery.type == "order.charge"
    assert (delivery.attempt, delivery.fence) == (2, 3)
    assert delivery.scheduled_for == NOW - timedelta(minutes=1)
    assert delivery.signed_at == NOW
    assert delivery.payload == {"order": 7}
    assert delivery.traceparent == "00-0-0-01"


@given(
    body=st.text(st.characters(exclude_categories=["Cs"])),
    key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50),
)
def test_what_another_implementation_signs_is_accepted_and_the_other_way_round(
    body: str, key: str
) -> None:
    """A receiver in another language, and a sender, must mean the same bytes."""
    content = body.encode()
    headers = request(content, key=key)
    assert verify(headers, content, SECRET, now=NOW).execution_key == key
    ours = sign([KEY], headers["webhook-id"], int(NOW.timestamp()), content)
    assert headers["webhook-signature"] == ours


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_a_changed_body_is_refused(place: int, change: int) -> None:
    """One bit: another amount, another account."""
    forged = bytearray(BODY)
    forged[place] ^= change
    with pytest.raises(SignatureInvalid):
        verify(request(), bytes(forged), SECRET, now=NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook_id": "order-8"},
        {"webhook_timestamp": str(int(NOW.timestamp()) + 1)},
        {"webhook_timestamp": "0" + str(int(NOW.timestamp()))},
        {"webhook_signature": "v1,"},
        {"webhook_signature": "v1"},
        {"webhook_signature": "v1,ä".encode().decode("latin-1")},
        {"webhook_signature": "v1,!!!!"},
        {"webhook_signature": "v1a," + b64encode(b"x" * 32).decode()},
    ],
)
def test_a_changed_header_that_is_signed_is_refused(changed: dict[str, Any]) -> None:
    """The id names the effect and the timestamp ends its life."""
    with pytest.raises((SignatureInvalid, HeaderInvalid)):
        verify(request(**changed), BODY, SECRET, now=NOW)


def test_a_signature_of_another_version_is_no_signature() -> None:
    """An attacker who may choose the algorithm chooses the weakest."""
    headers = request()
    headers["webhook-signature"] = headers["webhook-signature"].replace("v1,", "v1a,")
    with pytest.raises(SignatureInvalid):
        verify(headers, BODY, SECRET, now=NOW)


def test_during_a_rotation_either_secret_will_do() -> None:
    """Sender and receiver never change at the same instant."""
    signed = request()["webhook-signature"] + " " + request(secret=OTHER)["webhook-signature"]
    for secrets in (SECRET, OTHER, KEY, [OTHER, SECRET], [b"unknown", OTHER_KEY]):
        verify(request(webhook_signature=signed), BODY, secrets, now=NOW)
    verify(request(), BODY, [OTHER, SECRET], now=NOW)
    with pytest.raises(SignatureInvalid):
        verify(request(), BODY, OTHER, now=NOW)


def test_of_many_signatures_the_first_few_are_compared() -> None:
    """A header of a megabyte must not buy a megabyte of comparing."""
    header = " ".join(["v1,AAAA"] * receiver.SIGNATURES_MAX + [request()["webhook-signature"]])
    with pytest.raises(SignatureInvalid):
        verify(request(webhook_signature=header), BODY, SECRET, now=NOW)
    with pytest.raises(HeaderInvalid):
        verify(request(webhook_signature="v1," + "A" * 5000), BODY, SECRET, now=NOW)


def test_what_was_signed_too_long_ago_or_ahead_is_refused() -> None:
    """A request from an old log is as good as a key to whoever finds it."""
    for away_s, is_fine in [(300, True), (-300, True), (301, False), (-301, False)]:
        headers = request(at=NOW - timedelta(seconds=away_s))
        if is_fine:
            verify(headers, BODY, SECRET, now=NOW)
        else:
            with pytest.raises(TimestampRefused):
                verify(headers, BODY, SECRET, now=NOW)
    verify(request(at=utc_now()), BODY, SECRET)
    with pytest.raises(TimestampRefused):
        verify(request(at=NOW), BODY, SECRET)


@pytest.mark.parametrize("name", list(request())[:-1])
def test_a_missing_header_is_named(name: str) -> None:
    """Left to a KeyError, a stranger's request would be our server error."""
    changed: dict[str, Any] = {name.lower().replace("-", "_"): None}
    with pytest.raises(HeaderMissing, match=name.lower()):
        verify(request(**changed), BODY, SECRET, now=NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {"duly_fence": "-1"},
        {"duly_fence": "1e3"},
        {"duly_fence": "٣"},
        {"duly_attempt": "9" * 5000},
        {"duly_scheduled_for": "soon"},
        {"duly_scheduled_for": "2026-03-01T11:59:00"},
        {"duly_type": "a\nb"},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    """Nothing that a stranger writes may end as our server error."""
    with pytest.raises(HeaderInvalid):
        verify(request(**changed), BODY, SECRET, now=NOW)


def test_a_header_given_twice_is_refused() -> None:
    """Which of the two was signed, and which is used?"""
    pairs = [(name.encode(), value.encode()) for name, value in request().items()]
    assert verify(pairs, BODY, SECRET, now=NOW).fence == 3
    with pytest.raises(HeaderInvalid, match="twice"):
        verify([*pairs, (b"Duly-Fence", b"9")], BODY, SECRET, now=NOW)


@pytest.mark.parametrize("secrets", ["", [], "whsec_", ["whsec_%%"], b"", [SECRET, ""]])
def test_no_secret_is_a_mistake_of_the_receiver(secrets: Any) -> None:
    """An empty secret is one that everybody knows."""
    with pytest.raises(ConfigurationError):
        verify(request(), BODY, secrets, now=NOW)
    with pytest.raises(ConfigurationError):
        WebhookReceiver(told, secrets)


@pytest.mark.slow
async def test_what_duly_sends_is_what_is_understood(database: Database) -> None:
    """Tested against our own idea of the sender alone, both could be wrong together."""
    made = await rotate_secret(database, Environment(), 1, 3600.0, "test")
    assert made is not None
    async with receiving() as target:
        sender = WebhookSender(database, Environment(), ANYWHERE)
        try:
            lease = lease_of(target.url, payload='{"a": "\u00e4"}', execution_key="\u00e4 %")
            await sender(lease)
        finally:
            await sender.close()
        sent = target.requests[-1]
    delivery = verify(sent.headers, sent.body, made[1])
    assert delivery.execution_key == "\u00e4 %"
    assert (delivery.task_id, delivery.type) == (str(lease.id), lease.type)
    assert (delivery.attempt, delivery.fence) == (lease.attempt, lease.fence)
    assert delivery.scheduled_for == lease.run_at
    assert delivery.payload == {"a": "\u00e4"}


# The middleware


async def told(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with what it was told."""
    delivery = scope.get("duly")
    body = (await receive())["body"]
    seen = {"fence": delivery.fence if delivery else None, "body": body.decode()}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": msgspec.json.encode(seen)})


async def call(
    app: WebhookReceiver,
    headers: dict[str, str],
    *pieces: bytes,
    path: str = "/hooks",
    method: str = "POST",
) -> tuple[int, Any]:
    parts = list(pieces or [BODY])
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "duly": "forged"}
    await app(scope, receive, send)
    assert len(parts) <= 1
    return sent[0]["status"], msgspec.json.decode(sent[1]["body"])


def fresh(fence: int = 3, *, ago_s: float = 0, **changed: Any) -> dict[str, str]:
    at = utc_now() - timedelta(seconds=ago_s)
    return request(at=at, duly_fence=str(fence), **changed)


async def test_the_application_gets_the_delivery_and_the_whole_body() -> None:
    """Read by us to be verified, the body must still be there for the application."""
    app = WebhookReceiver(told, SECRET)
    status, seen = await call(app, fresh(), BODY[:5], b"", BODY[5:])
    assert (status, seen) == (200, {"fence": 3, "body": BODY.decode()})


async def test_what_is_not_dulys_does_not_reach_the_application() -> None:
    """The application trusts whatever arrives."""

    async def unreachable(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("the application was called")

    app = WebhookReceiver(unreachable, SECRET)
    assert (await call(app, fresh(), b"{}"))[0] == 401
    assert (await call(app, fresh(ago_s=400)))[0] == 401
    assert (await call(app, {}))[0] == 400
    assert (await call(app, fresh(), method="GET"))[0] == 405
    status, problem = await call(app, request(secret=OTHER, at=utc_now()))
    assert (status, problem["code"]) == (401, "signature_invalid")


async def test_the_same_request_again_is_refused_whatever_its_fence_says() -> None:
    """Fences are not signed: a copy with a higher one must not pass for a new attempt."""
    app = WebhookReceiver(told, SECRET)
    headers = fresh()
    assert (await call(app, headers))[0] == 200
    for again in (headers, headers | {"Duly-Fence": "9"}, headers | {"duly-fence": "9"}):
        status, problem = await call(app, {k.lower(): v for k, v in again.items()})
        assert (status, problem["code"]) == (425, "replayed")
    # The forged fence was not believed either.
    assert (await call(app, fresh(5, ago_s=1)))[0] == 200


async def test_an_attempt_that_is_over_is_refused() -> None:
    """It lay in some queue while its successor was delivered."""
    app = WebhookReceiver(told, SECRET)
    assert (await call(app, fresh(5)))[0] == 200
    status, problem = await call(app, fresh(3, ago_s=10))
    assert (status, problem["code"]) == (409, "attempt_over")
    assert (await call(app, fresh(1, ago_s=20, duly_task_id="another")))[0] == 200
    assert (await call(app, fresh(7, ago_s=5)))[0] == 200


async def test_a_long_body_is_refused_before_it_is_read() -> None:
    """Strangers decide how long it is, before any signature can be checked."""
    app = WebhookReceiver(told, SECRET, body_bytes_max=len(BODY))
    assert (await call(app, fresh()))[0] == 200
    for length in (str(len(BODY) + 1), "9" * 5000, "-1"):
        headers = fresh(ago_s=1) | {"Content-Length": length}
        assert (await call(app, headers))[0] == 413
    status, problem = await call(app, fresh(ago_s=1), BODY, b" ", b" " * 10**6)
    assert (status, problem["code"]) == (413, "body_too_long")


async def test_other_paths_pass_without_a_delivery() -> None:
    """A shop has pages as well; but none of them may find a delivery that nobody checked."""
    app = WebhookReceiver(told, SECRET, path="/hooks/")
    assert (await call(app, {}, path="/"))[1] == {"fence": None, "body": BODY.decode()}
    assert (await call(app, {}, path="/hooks/duly"))[0] == 400


async def test_a_caller_that_hangs_up_is_left_alone() -> None:
    """Half a body is no delivery, and there is nobody to answer."""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(event: MutableMapping[str, Any]) -> None:
        pytest.fail("answered")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await WebhookReceiver(told, SECRET)(scope, receive, send)


async def test_the_memory_is_bounded_in_number_and_in_time() -> None:
    """Every delivery adds to it, for as long as the receiver runs."""
    clock = ManualClock()
    memory = LocalMemory(300.0, most=10, clock=clock.monotonic)

    def delivery(number: int, fence: int = 1) -> Delivery:
        headers = request(duly_task_id=f"t{number}", duly_fence=str(fence), key=str(number))
        return verify(headers, BODY, SECRET, now=NOW)

    for number in range(30):
        await memory.admit(delivery(number))
    assert len(memory.digests.entries) == len(memory.fences.entries) == 10
    with pytest.raises(WebhookRefused):
        await memory.admit(delivery(29))
    clock.advance(601)
    await memory.admit(delivery(29))
    assert len(memory.digests.entries) == 1
    clock.advance(receiver_app.FENCES_KEPT_S + 1)
    await memory.admit(delivery(1))
    assert len(memory.fences.entries) == 1
