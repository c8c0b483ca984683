"""Webhook verification for receivers: check the signature, and read the attempt.

`verify` is a plain function for any framework; `receiver_app.py` makes an ASGI middleware of it.
The signature covers `webhook-id`, `webhook-timestamp` and the body, as Standard Webhooks says; the
`Duly-*` headers are as trustworthy as the way that the request came.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import unquote

import msgspec

from duly.client.clock import utc_now
from duly.domain.errors import ConfigurationError, DulyError

if TYPE_CHECKING:
    from duly.client.inbox import Once

TOLERANCE_S = 300.0
PREFIX = "whsec_"
VERSION = "v1"
# More than any rotation needs, and few enough to compare.
SIGNATURES_MAX = 16
HEADER_CHARACTERS_MAX = 4096
NUMBER_DIGITS_MAX = 15

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
Secrets: TypeAlias = str | bytes | Sequence[str | bytes]


class WebhookRefused(DulyError):
    """the request is refused"""

    status = 400
    code = "refused"


class HeaderMissing(WebhookRefused):
    """the request has no header {name}"""

    code = "header_missing"


class HeaderInvalid(WebhookRefused):
    """the header {name} {problem}"""

    code = "header_invalid"


class SignatureInvalid(WebhookRefused):
    """no signature of the request fits any of the secrets"""

    status = 401
    code = "signature_invalid"


class TimestampRefused(WebhookRefused):
    """the request was signed {age_s:.0f} s ago, and {tolerance_s:g} s either way is the most"""

    status = 401
    code = "timestamp_refused"


@dataclass(frozen=True)
class Delivery:
    """One attempt of a task, as duly delivered it."""

    # The same in every attempt, and in a replay of a dead letter.
    execution_key: str
    task_id: str
    type: str
    # 1 for the first.
    attempt: int
    # Higher in every later attempt of the task.
    fence: int
    scheduled_for: datetime
    signed_at: datetime
    # Of what was signed: the same in two requests if one is a copy of the other.
    digest: str = field(repr=False)
    body: bytes = field(repr=False)
    traceparent: str | None = None

    @property
    def payload(self) -> Any:
        return msgspec.json.decode(self.body)

    def once(self, connection: Any, step: str = "", *, fenced: bool = False) -> "Once":
        """An effect in your own transaction that happens in one attempt only, as `ctx.once`."""
        from duly.client.inbox import once

        return once(
            connection,
            self.execution_key,
            step,
            task_id=self.task_id,
            fence=self.fence,
            fenced=fenced,
        )


def verify(
    headers: Headers,
    body: bytes,
    secrets: Secrets,
    *,
    now: datetime | None = None,
    tolerance_s: float = TOLERANCE_S,
) -> Delivery:
    """The delivery, if one of the secrets signed it lately; otherwise a WebhookRefused.

    `body` is what came over the wire, byte for byte. Give all secrets that are live: during a
    rotation there are two.
    """
    given = Given(headers)
    content = f"{given.text('webhook-id')}.{given.text('webhook-timestamp')}.".encode() + body
    check_signatures(content, given.text("webhook-signature"), read_secrets(secrets))
    timestamp = given.number("webhook-timestamp")
    age_s = (now or utc_now()).timestamp() - timestamp
    if abs(age_s) > tolerance_s:
        raise TimestampRefused(age_s=age_s, tolerance_s=tolerance_s)
    return Delivery(
        execution_key=given.key("webhook-id"),
        task_id=given.text("duly-task-id"),
        type=given.text("duly-type"),
        attempt=given.number("duly-attempt"),
        fence=given.number("duly-fence"),
        scheduled_for=given.instant("duly-scheduled-for"),
        signed_at=datetime.fromtimestamp(timestamp, UTC),
        digest=hashlib.sha256(content).hexdigest(),
        body=body,
        traceparent=given.values.get("traceparent"),
    )


def check_signatures(content: bytes, header: str, secrets: Sequence[bytes]) -> None:
    """All are compared, so that the time it takes tells nothing."""
    ours = [hmac.digest(secret, content, "sha256") for secret in secrets]
    theirs = [part.partition(",") for part in header.split(" ")[:SIGNATURES_MAX]]
    digests = [decoded(digest) for version, _, digest in theirs if version == VERSION]
    fits = [hmac.compare_digest(one, other) for one in ours for other in digests]
    if not any(fits):
        raise SignatureInvalid


def decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def read_secrets(secrets: Secrets) -> list[bytes]:
    """`whsec_...` as duly shows it, or the bytes themselves."""
    listed = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    keys = [each if isinstance(each, bytes) else secret_of(each) for each in listed]
    if not keys or not all(keys):
        raise ConfigurationError(problem="no webhook secret is given, or an empty one")
    return keys


def secret_of(text: str) -> bytes:
    try:
        return base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        problem = f"a webhook secret is {PREFIX} and base64, and this one is not"
        raise ConfigurationError(problem=problem) from None


class Given:
    """The headers of a request, by lower-case name; the first of our own that is wrong raises."""

    def __init__(self, headers: Headers) -> None:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self.values: dict[str, str] = {}
        self.repeated: set[str] = set()
        for name, value in pairs:
            key = plain(name).lower()
            if key in self.values:
                self.repeated.add(key)
            self.values[key] = plain(value)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not value:
            raise HeaderMissing(name=name)
        if name in self.repeated:
            self.refuse(name, "is there twice")
        if len(value) > HEADER_CHARACTERS_MAX or not value.isascii() or not value.isprintable():
            self.refuse(name, "is too long, or not printable ASCII")
        return value

    def key(self, name: str) -> str:
        """As it was before it was spelled for a header."""
        try:
            return unquote(self.text(name), errors="strict")
        except UnicodeDecodeError:
            self.refuse(name, "is not UTF-8 in its %XX form")

    def number(self, name: str) -> int:
        value = self.text(name)
        if not value.isdecimal() or len(value) > NUMBER_DIGITS_MAX:
            self.refuse(name, "is not a number")
        return int(value)

    def instant(self, name: str) -> datetime:
        try:
            instant = datetime.fromisoformat(self.text(name))
        except ValueError:
            self.refuse(name, "is not an instant")
        if instant.tzinfo is None:
            self.refuse(name, "has no offset from UTC")
        return instant

    def refuse(self, name: str, problem: str) -> NoReturn:
        raise HeaderInvalid(name=name, problem=problem)


def plain(text: str | bytes) -> str:
    return text.decode("latin-1") if isinstance(text, bytes) else text
