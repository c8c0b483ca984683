"""A mail server for tests, as a process of its own: `python -m tests.execution.mail_server FOLDER`.

It keeps what it takes in a Maildir, prints its port, and ends with its standard input. Recipients
`gone@` are refused for good, `later@` for now. With a certificate it demands STARTTLS, and with a
password the login `duly` as well.
"""

import asyncio
import json
import mailbox
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

from aiosmtpd.handlers import Mailbox
from aiosmtpd.smtp import SMTP, AuthResult

from tests.processes import child

USER = "duly"


class Handler(Mailbox):
    async def handle_RCPT(  # noqa: N802 (what aiosmtpd calls it)
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        if address.startswith("gone@"):
            return "550 no such mailbox"
        if address.startswith("later@"):
            return "450 mailbox is busy"
        envelope.rcpt_tos.append(address)
        return "250 OK"


async def serve(folder: str, certificate: str, key: str, password: str) -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, sent: Any) -> Any:
        is_right = (sent.login, sent.password) == (USER.encode(), password.encode())
        return AuthResult(success=is_right, handled=is_right)

    def accept() -> SMTP:
        return SMTP(
            Handler(Path(folder)),
            hostname="mail.example.com",
            tls_context=context,
            require_starttls=context is not None,
            auth_required=bool(password),
            auth_require_tls=context is not None,
            authenticator=authenticate if password else None,
        )

    loop = asyncio.get_running_loop()
    server = await loop.create_server(accept, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


class MailServer:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    @property
    def url(self) -> str:
        return f"smtp://127.0.0.1:{self.port}"

    def received(self) -> list[Message]:
        return list(mailbox.Maildir(str(self.folder)))


@contextmanager
def mail_server(
    folder: Path, certificate: Path | None = None, key: Path | None = None, password: str = ""
) -> Iterator[MailServer]:
    maildir = folder / "maildir"
    arguments = [str(maildir), str(certificate or ""), str(key or ""), password]
    with child("-m", "tests.execution.mail_server", *arguments) as process:
        yield MailServer(maildir, process.answer()["port"])


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:5]))
