"""Delivering by mail: one message to the server's SMTP relay. The caller decides what is mailed.

| event | what happens |
|---|---|
| no relay, a reset, a 4xx answer, a login that is refused | failed and tried again |
| the relay refuses every recipient, or the message, for good (5xx) | rejected |
| it refuses some recipients | completed, and `refused` in the result: no retry reaches one twice |
| tried again after an answer was lost | the same Message-ID: mail programs show it once |
| cancelled, or its lease lost | the thread ends with its connection's time limit |
"""

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import format_datetime
from urllib.parse import unquote, urlsplit

import msgspec

from duly.domain.errors import ConfigurationError
from duly.domain.notifications import mail_reason, recipients_of
from duly.domain.states import Outcome
from duly.environment import Environment
from duly.execution.attempt import AttemptResult
from duly.store.lease import Lease

SUBMISSION_PORT, TLS_PORT = 587, 465
TIMEOUT_SHARE = 0.4
SUBJECT_CHARACTERS_MAX = 200
PERMANENT = 500
# A thread for each: more wait for one of these.
AT_ONCE_MAX = 4


@dataclass(frozen=True, slots=True)
class MailRelay:
    """Where mail is handed in. With a password, only over TLS or to this machine."""

    host: str
    port: int
    sender: str
    is_tls: bool = False
    user: str = ""
    password: str = ""


def read_relay(url: str, sender: str) -> MailRelay | None:
    """None without a URL; ConfigurationError names no part of it but the one that is wrong."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(problem="smtp_url has a port or host that is none") from None
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
        problem = "smtp_url is not of the form smtp://host:587 or smtps://host"
        raise ConfigurationError(problem=problem)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigurationError(problem="smtp_url goes on after the host and its port")
    if not sender:
        sender = f"duly@{socket.gethostname()}"
        sender = "duly@localhost" if mail_reason(sender) else sender
    if reason := mail_reason(sender):
        raise ConfigurationError(problem=f"mail_from {reason}")
    is_tls = parts.scheme == "smtps"
    return MailRelay(
        parts.hostname,
        port or (TLS_PORT if is_tls else SUBMISSION_PORT),
        sender,
        is_tls,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
    )


class Mailer:
    """`await mailer(lease)` is one message."""

    def __init__(self, environment: Environment, relay: MailRelay | None) -> None:
        self.environment = environment
        self.relay = relay
        self.places = asyncio.Semaphore(AT_ONCE_MAX)

    async def __call__(self, lease: Lease) -> AttemptResult:
        if self.relay is None:
            return failed("this executor has no smtp_url in its configuration", "no_relay")
        recipients = recipients_of(lease.url or "")
        message = self.message_of(lease, self.relay, recipients)
        limit_s = lease.policy.timeout_s * TIMEOUT_SHARE
        async with self.places:
            return await asyncio.to_thread(hand_in, self.relay, message, recipients, limit_s)

    def message_of(self, lease: Lease, relay: MailRelay, recipients: Sequence[str]) -> EmailMessage:
        content = msgspec.json.decode(lease.payload or "{}")
        told = f"[duly] {content['tenant']}: {content['text']}"
        message = EmailMessage()
        # No text of a tenant begins a header line of its own.
        message["Subject"] = " ".join(told.split())[:SUBJECT_CHARACTERS_MAX]
        message["From"] = relay.sender
        message["To"] = ", ".join(recipients)
        message["Date"] = format_datetime(self.environment.clock.now())
        message["Message-ID"] = f"<{lease.id}@{relay.sender.partition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        details = msgspec.json.format(lease.payload or "{}", indent=2)
        message.set_content(f"{content['text']}\n\n{details}\n")
        return message


def hand_in(
    relay: MailRelay, message: EmailMessage, recipients: Sequence[str], limit_s: float
) -> AttemptResult:
    """In a thread: Python's SMTP client blocks."""
    try:
        with connected(relay, limit_s) as session:
            refused = session.send_message(message, to_addrs=list(recipients))
    except smtplib.SMTPAuthenticationError:
        return failed("the relay refuses the login", "login")
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        return refusal("the relay refuses every recipient", min(codes))
    except smtplib.SMTPResponseException as error:
        return refusal(f"the relay answers {error.smtp_code}", error.smtp_code)
    except (smtplib.SMTPException, OSError) as error:
        return failed(f"no mail could be handed in ({type(error).__name__})", "connection")
    if not refused:
        return AttemptResult()
    return AttemptResult(result=msgspec.json.encode({"refused": sorted(refused)}).decode())


def connected(relay: MailRelay, limit_s: float) -> smtplib.SMTP:
    context = ssl.create_default_context()
    session: smtplib.SMTP
    if relay.is_tls:
        session = smtplib.SMTP_SSL(relay.host, relay.port, timeout=limit_s, context=context)
    else:
        session = smtplib.SMTP(relay.host, relay.port, timeout=limit_s)
    try:
        session.ehlo_or_helo_if_needed()
        is_safe = relay.is_tls
        if not is_safe and session.has_extn("starttls"):
            session.starttls(context=context)
            is_safe = True
        if relay.user:
            if not is_safe and not is_this_machine(session):
                raise smtplib.SMTPNotSupportedError("the relay has no TLS for the password")
            session.login(relay.user, relay.password)
    except BaseException:
        session.close()
        raise
    return session


def is_this_machine(session: smtplib.SMTP) -> bool:
    peer = session.sock.getpeername() if session.sock is not None else ("",)
    return peer[0] in ("127.0.0.1", "::1")


def refusal(error: str, code: int) -> AttemptResult:
    if code < PERMANENT:
        return failed(error, "relay")
    return AttemptResult(Outcome.REJECTED, error=error, error_kind="relay")


def failed(error: str, kind: str) -> AttemptResult:
    return AttemptResult(Outcome.FAILED, error=error, error_kind=kind)
