"""One delivery to a real receiver: what is sent, and what each way of answering comes to."""

import asyncio
import gzip
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from duly.domain.retry import RETRY_AFTER_MAX_S, RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy
from duly.execution.webhooks.sender import ANSWER_BYTES_MAX, WebhookSender
from tests.api.certificates import Pair
from tests.execution.conftest import TENANT, Senders, lease_of
from tests.execution.receiver import Receiver, Request, answer, hang, raw, receiving

SHORT = Policy(timeout_s=0.4)
PATIENCE_S = 10.0
HUGE = 10 * 1024**3
CUT_SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"


async def test_a_request_says_who_what_when_and_which_attempt(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """A receiver that cannot tell two attempts apart charges the card twice."""
    policy = Policy(headers={"X-Team": "billing", "Authorization": "Bearer theirs"})
    lease = lease_of(receiver.url, policy, execution_key="order-7")
    verdict = await sender(lease)
    assert verdict.outcome is Outcome.COMPLETED
    (request,) = receiver.requests
    assert request.body == b'{"a": 1}'
    trace = request.headers.pop("traceparent").split("-")
    assert trace[:2] == ["00", lease.id.hex]
    assert int(trace[2], 16)
    assert len(trace[2]) == 16
    signed_at = int(request.headers.pop("webhook-timestamp"))
    assert abs(signed_at - datetime.now(UTC).timestamp()) < 60
    assert request.headers.pop("webhook-signature").startswith("v1,")
    assert request.headers.pop("user-agent").startswith("duly/")
    assert request.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "x-team": "billing",
        "authorization": "Bearer theirs",
        "content-type": "application/json",
        "content-length": "8",
        "accept": "*/*",
        "accept-encoding": "identity",
        "webhook-id": "order-7",
        "idempotency-key": "order-7",
        "duly-task-id": str(lease.id),
        "duly-type": "invoice.charge",
        "duly-attempt": "2",
        "duly-fence": "1",
        "duly-scheduled-for": lease.run_at.isoformat().replace("+00:00", "Z"),
    }


async def test_a_rescheduled_task_says_its_new_instant(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """A receiver that books by the header would book what was postponed on the old day."""
    await sender(lease_of(receiver.url, moved_to=datetime(2030, 5, 1, 12, tzinfo=UTC)))
    (request,) = receiver.requests
    assert request.headers["duly-scheduled-for"] == "2030-05-01T12:00:00Z"


async def test_headers_that_came_another_way_replace_none_of_ours(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """A row that no door checked must not forge a signature or split the request in two."""
    headers = {
        "Webhook-Id": "forged",
        "HOST": "inside",
        "content-length": "1",
        "X-A": "1\r\nX-B: 2",
        "X\r\nY": "1",
        "X-Ö": "1",
        "X-Good": "yes",
    }
    await sender(lease_of(receiver.url, Policy(headers=headers)))
    (request,) = receiver.requests
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["webhook-id"] == str(lease_of("").id)
    assert request.headers["content-length"] == "8"
    assert {name for name in request.headers if name.startswith("x")} == {"x-good"}


async def test_connections_are_used_again(sender: WebhookSender, receiver: Receiver) -> None:
    """A new connection each time is most of the cost of a small request."""
    for number in range(1, 6):
        assert (await sender(lease_of(receiver.url, number=number))).outcome is Outcome.COMPLETED
    assert len(receiver.requests) == 5
    assert receiver.connections == 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, Outcome.COMPLETED) for status in (200, 201, 202, 204, 299)),
        *((status, Outcome.FAILED) for status in (408, 425, 429, 500, 502, 503, 504, 599)),
        *((status, Outcome.REJECTED) for status in (301, 302, 307, 308, 304)),
        *((status, Outcome.REJECTED) for status in (400, 401, 403, 404, 409, 410, 418, 422, 451)),
    ],
)
async def test_a_status_decides(
    senders: Senders, receiver: Receiver, status: int, outcome: Outcome
) -> None:
    """Retrying what can never work is noise; not retrying what could is a lost task."""
    receiver.behave = answer(status, b"", Location=receiver.url)
    verdict = await senders.open()(lease_of(receiver.url))
    assert verdict.outcome is outcome
    assert not verdict.is_accepted_async
    assert len(receiver.requests) == 1, "a redirect was followed"
    if outcome is not Outcome.COMPLETED:
        assert verdict.error_kind == f"http_{status}"
        assert str(status) in (verdict.error or "")
    # A receiver that says no is well; one that fails is not.
    host = f"127.0.0.1:{receiver.port}"
    assert senders.told == [(TENANT, host, outcome is not Outcome.FAILED)]


async def test_a_policy_may_have_other_refusals_tried_again(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """Behind a deployment that answers 404 for a minute, a rejected task is lost work."""
    receiver.behave = answer(404, b"not yet")
    verdict = await sender(lease_of(receiver.url, Policy(retry=RetryPolicy(retry_4xx=True))))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.error == "HTTP 404 Not Found\nnot yet"
    receiver.behave = answer(302)
    verdict = await sender(lease_of(receiver.url, Policy(retry=RetryPolicy(retry_4xx=True))))
    assert verdict.outcome is Outcome.REJECTED


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("wanted", "delay_s"),
    [
        ("120", 120.0),
        (" 120 ", 120.0),
        ("86401", RETRY_AFTER_MAX_S),
        ("9999999999", RETRY_AFTER_MAX_S),
        ("9" * 5000, None),
        ("0", None),
        ("-5", None),
        ("1e9", None),
        ("soon", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_MAX_S),
        ("Fri, 31 Dec 1999 23:59:59 GMT", None),
        ("Fri, 99 Dec 1999 23:59:59 GMT", None),
    ],
)
async def test_an_absurd_retry_after_is_clamped_or_ignored(
    sender: WebhookSender, receiver: Receiver, status: int, wanted: str, delay_s: float | None
) -> None:
    """A receiver may ask us to wait; it may not park a task for ever, nor break its attempt."""
    receiver.behave = answer(status, Retry_After=wanted)
    verdict = await sender(lease_of(receiver.url))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.retry_in_s == delay_s


async def test_a_date_in_retry_after_is_heard(sender: WebhookSender, receiver: Receiver) -> None:
    """Half of the receivers write a date."""
    instant = datetime.now(UTC) + timedelta(seconds=600)
    receiver.behave = answer(503, Retry_After=instant.strftime("%a, %d %b %Y %H:%M:%S GMT"))
    verdict = await sender(lease_of(receiver.url))
    assert verdict.retry_in_s == pytest.approx(600, abs=30)


async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
    """Never silent for long, and never done."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.01)


async def drip_headers(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("behave", [hang, drip, drip_headers])
async def test_whatever_it_does_the_deadline_is_the_deadline(
    sender: WebhookSender, receiver: Receiver, behave: Callable[..., object]
) -> None:
    """A limit for each read is no limit: a byte a second lasts for ever."""
    receiver.behave = behave  # type: ignore[assignment]
    began = asyncio.get_running_loop().time()
    verdict = await sender(lease_of(receiver.url, SHORT))
    passed_s = asyncio.get_running_loop().time() - began
    assert (verdict.outcome, verdict.error_kind) == (Outcome.FAILED, "timeout")
    assert 0.3 < passed_s < PATIENCE_S
    # And the connection is not left open behind our back.
    await asyncio.wait_for(receiver.left.wait(), PATIENCE_S)


async def test_an_attempt_ends_before_its_lease_does(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """Ended by the reaper instead, a timeout would be recorded as a lost holder."""
    receiver.behave = hang
    began = asyncio.get_running_loop().time()
    await sender(lease_of(receiver.url, Policy(timeout_s=1.0)))
    assert asyncio.get_running_loop().time() - began < 1.0


async def test_ten_gigabytes_are_not_read(sender: WebhookSender, receiver: Receiver) -> None:
    """One receiver must not be able to fill our memory, nor keep us busy."""
    sent = 0

    async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n".encode())
        while sent < HUGE:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    receiver.behave = flood
    verdict = await sender(lease_of(receiver.url))
    assert verdict.outcome is Outcome.COMPLETED
    await asyncio.wait_for(receiver.left.wait(), PATIENCE_S)
    # What the kernels of both ends had buffered comes on top.
    assert sent < ANSWER_BYTES_MAX + 32 * 1024 * 1024
    kept = msgspec.json.decode(verdict.result or "")
    assert kept["beginning"] == "x" * 8192
    assert "longer than" in kept["duly_note"]


async def test_a_compressed_answer_is_not_unpacked(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """Ten kilobytes that become ten megabytes are an attack, not an answer."""
    bomb = gzip.compress(b"\0" * 10_000_000)
    receiver.behave = answer(200, bomb, Content_Encoding="gzip")
    verdict = await sender(lease_of(receiver.url))
    assert verdict.outcome is Outcome.COMPLETED
    shown = bomb.decode(errors="replace").replace("\0", "\ufffd")
    assert msgspec.json.decode(verdict.result or "") == shown


@pytest.mark.parametrize(
    ("behave", "kind"),
    [
        (raw(), "connection"),
        (raw(b"HTTP/1.1 200 OK\r\n"), "connection"),
        (raw(CUT_SHORT), "connection"),
        (raw(b"SSH-2.0-OpenSSH_9.9\r\n"), "protocol"),
        (raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"), "protocol"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"), "protocol"),
    ],
    ids=["hangs up", "half a head", "half a body", "not http", "a header of 100 kB", "two lengths"],
)
async def test_what_is_no_answer_is_tried_again(
    senders: Senders, receiver: Receiver, behave: Callable[..., object], kind: str
) -> None:
    """The receiver may have acted or not; only another attempt can tell."""
    receiver.behave = behave  # type: ignore[assignment]
    verdict = await senders.open()(lease_of(receiver.url, Policy(timeout_s=20)))
    assert (verdict.outcome, verdict.error_kind) == (Outcome.FAILED, kind), verdict
    assert senders.told == [(TENANT, f"127.0.0.1:{receiver.port}", False)]


async def test_a_reset_is_tried_again(sender: WebhookSender, receiver: Receiver) -> None:
    """A proxy that restarts in the middle is the commonest failure of all."""

    async def reset(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    receiver.behave = reset
    verdict = await sender(lease_of(receiver.url))
    assert (verdict.outcome, verdict.error_kind) == (Outcome.FAILED, "connection")


async def test_nobody_there_is_tried_again(sender: WebhookSender) -> None:
    """A receiver that is being deployed refuses connections for a moment."""
    async with receiving() as gone:
        url = gone.url
    verdict = await sender(lease_of(url))
    assert (verdict.outcome, verdict.error_kind) == (Outcome.FAILED, "connection")
    assert "127.0.0.1" not in (verdict.error or "")


async def test_a_certificate_that_nobody_vouches_for_gets_no_request(
    sender: WebhookSender, tmp_path: Path
) -> None:
    """A man in the middle would read the payload and answer for the receiver."""
    async with receiving(tls=Pair(tmp_path).context()) as receiver:
        verdict = await sender(lease_of(receiver.url))
        assert (verdict.outcome, verdict.error_kind) == (Outcome.FAILED, "tls"), verdict
        assert receiver.requests == []


async def test_tls_is_for_the_name_in_the_url(
    senders: Senders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We connect to a checked address; the certificate must still be the name's."""
    pair = Pair(tmp_path)
    trusting = ssl.create_default_context(cafile=str(pair.certificate))
    monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
    async with receiving(tls=pair.context()) as receiver:
        named = receiver.url.replace("127.0.0.1", "localhost")
        verdict = await senders.open()(lease_of(named))
        assert verdict.error_kind == "tls"
        verdict = await senders.open()(lease_of(receiver.url))
        assert verdict.outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"", None),
        (b'{"charged": 12.50}', '{"charged": 12.50}'),
        (b'"ok"', '"ok"'),
        (b"ok", '"ok"'),
        (b"NaN", '"NaN"'),
        (b'{"a":', '"{\\"a\\":"'),
        (b"\xff\xfe", '"\ufffd\ufffd"'),
        (b"a\x00b", '"a\ufffdb"'),
        (rb'["\u0000"]', msgspec.json.encode(r'["\u0000"]').decode()),
        (rb'["\\u0000"]', r'["\\u0000"]'),
        (b"[" * 5000, msgspec.json.encode("[" * 5000).decode()),
    ],
)
async def test_the_answer_is_kept_as_json(
    sender: WebhookSender, receiver: Receiver, body: bytes, result: str | None
) -> None:
    """A result that is no JSON breaks every later reader of the task."""
    receiver.behave = answer(200, body)
    assert (await sender(lease_of(receiver.url))).result == result


async def test_an_error_is_text_that_can_be_stored(
    sender: WebhookSender, receiver: Receiver
) -> None:
    """One zero byte in an error page, and the attempt could never be recorded."""
    receiver.behave = answer(500, b"\x00\x1b[31mboom\xff" + b"x" * 100_000)
    verdict = await sender(lease_of(receiver.url))
    assert (verdict.error or "").startswith("HTTP 500 Internal Server Error\n[31mboom\ufffdx")
    assert len(verdict.error or "") < 2000
