"""Mail that a real server took: a process of its own that speaks SMTP."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from duly.domain.errors import ConfigurationError
from duly.domain.notifications import mail_url
from duly.domain.states import Outcome
from duly.environment import Environment
from duly.execution.mail import Mailer, MailRelay, read_relay
from duly.store.lease import Lease
from tests.api.certificates import Pair
from tests.execution.conftest import lease_of
from tests.execution.mail_server import USER, MailServer, mail_server

SENDER = "duly@example.com"
TEXT = "1 dead letter of mail.send (exhausted)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailServer]:
    with mail_server(tmp_path_factory.mktemp("mail")) as running:
        yield running


def message_to(*recipients: str, text: str = TEXT) -> Lease:
    payload = msgspec.json.encode({"tenant": "default", "text": text, "count": 1}).decode()
    return lease_of(mail_url(recipients), payload=payload)


def mailer(url: str) -> Mailer:
    return Mailer(Environment(), read_relay(url, SENDER))


async def test_a_notification_arrives_as_mail(server: MailServer) -> None:
    """A mail that was only handed to a mock has reached no one."""
    before = len(server.received())
    result = await mailer(server.url)(message_to("ops@example.com", "on.call@example.com"))
    assert result.outcome is Outcome.COMPLETED
    (mail,) = server.received()[before:]
    assert mail["Subject"] == "[duly] default: 1 dead letter of mail.send (exhausted)"
    assert mail["To"] == "ops@example.com, on.call@example.com"
    assert mail["From"] == SENDER
    assert mail["Auto-Submitted"] == "auto-generated"
    assert '"count": 1' in str(mail.get_payload())


async def test_a_retry_is_the_same_message(server: MailServer) -> None:
    """An answer that was lost would show the operator two failures."""
    before = len(server.received())
    lease = message_to("ops@example.com")
    await mailer(server.url)(lease)
    await mailer(server.url)(lease)
    first, second = server.received()[before:]
    assert first["Message-ID"] == second["Message-ID"]


async def test_a_text_cannot_begin_a_header(server: MailServer) -> None:
    """A name with a line break would add recipients."""
    before = len(server.received())
    result = await mailer(server.url)(
        message_to("ops@example.com", text="x\r\nBcc: all@example.com\r\n\r\nü" + "y" * 5000)
    )
    assert result.outcome is Outcome.COMPLETED
    (mail,) = server.received()[before:]
    assert mail["Bcc"] is None
    assert mail["X-RcptTo"] == "ops@example.com"


async def test_a_recipient_that_is_refused_for_good_is_not_tried_again(server: MailServer) -> None:
    """Twelve tries at a mailbox that is gone make the relay distrust us."""
    result = await mailer(server.url)(message_to("gone@example.com"))
    assert result.outcome is Outcome.REJECTED
    result = await mailer(server.url)(message_to("later@example.com"))
    assert result.outcome is Outcome.FAILED


async def test_the_others_are_reached_once_where_one_is_refused(server: MailServer) -> None:
    """A retry for one would be a second mail for all the others."""
    before = len(server.received())
    result = await mailer(server.url)(message_to("gone@example.com", "ops@example.com"))
    assert result.outcome is Outcome.COMPLETED
    assert result.result == '{"refused":["gone@example.com"]}'
    (mail,) = server.received()[before:]
    assert mail["X-RcptTo"] == "ops@example.com"


async def test_a_relay_that_is_away_is_tried_again() -> None:
    """A restart of the mail server would lose what happened meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    result = await mailer(f"smtp://127.0.0.1:{port}")(message_to("ops@example.com"))
    assert (result.outcome, result.error_kind) == (Outcome.FAILED, "connection")
    result = await Mailer(Environment(), None)(message_to("ops@example.com"))
    assert (result.outcome, result.error_kind) == (Outcome.FAILED, "no_relay")


async def test_a_password_goes_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the clear, the relay's password is every listener's."""
    pair = Pair(tmp_path)
    with mail_server(tmp_path, pair.certificate, pair.key, "s3cret/+") as running:
        url = running.url.replace("//", f"//{USER}:s3cret%2F%2B@")
        distrusted = await mailer(url)(message_to("ops@example.com"))
        assert distrusted.outcome is Outcome.FAILED, "a certificate of no one is not trusted"
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
        assert (await mailer(url)(message_to("ops@example.com"))).outcome is Outcome.COMPLETED
        wrong = await mailer(url.replace("s3cret", "other"))(message_to("ops@example.com"))
        assert (wrong.outcome, wrong.error_kind) == (Outcome.FAILED, "login")
        assert len(running.received()) == 1


async def test_a_password_is_not_sent_in_the_clear(
    server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that lost its TLS would get it from everyone who has it."""
    monkeypatch.setattr("duly.execution.mail.is_this_machine", lambda _session: False)
    url = server.url.replace("//", "//duly:secret@")
    result = await mailer(url)(message_to("ops@example.com"))
    assert result.outcome is Outcome.FAILED
    assert "secret" not in (result.error or "")


def test_a_relay_is_read_from_its_url() -> None:
    """A port or password that is read otherwise is an outage of all mail."""
    assert read_relay("", "") is None
    relay = MailRelay("mail.example.com", 587, SENDER, user="u@x", password="p/q")
    assert read_relay("smtp://u%40x:p%2Fq@mail.example.com", SENDER) == relay
    secure = replace(relay, port=465, is_tls=True, user="", password="")
    assert read_relay("smtps://mail.example.com/", SENDER) == secure
    named = read_relay("smtp://mail.example.com:25", "")
    assert named is not None
    assert named.sender.startswith("duly@")


@pytest.mark.parametrize(
    ("url", "sender"),
    [
        ("http://mail.example.com", SENDER),
        ("smtp://", SENDER),
        ("mail.example.com:25", SENDER),
        ("smtp://mail.example.com:port", SENDER),
        ("smtp://mail.example.com:99999", SENDER),
        ("smtp://u:secret@mail.example.com/path", SENDER),
        ("smtp://mail.example.com", "no address"),
    ],
)
def test_a_relay_that_cannot_be_read_is_refused_at_the_start(url: str, sender: str) -> None:
    """Found at the first failure, it is found too late; and its password stays a secret."""
    with pytest.raises(ConfigurationError) as refusal:
        read_relay(url, sender)
    assert "secret" not in str(refusal.value)
