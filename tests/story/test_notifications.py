"""Notifications from end to end: a webhook, a mailbox and a program hear of a task that failed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.execution.mail_server import mail_server
from tests.processes import eventually
from tests.story.duly_up import RunningDuly, duly_up
from tests.story.hooks import DONE, Answer, call, hooks

pytestmark = pytest.mark.slow

REQUESTER_S = 60.0


def asking(duly: RunningDuly) -> Callable[..., Any]:
    key = duly.ready["api_key"]

    def ask(method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answered, content = call(duly, key, method, path, body)
        assert answered == status, content
        return content

    return ask


def test_a_failure_reaches_a_webhook_a_mailbox_and_a_program(
    owner_url: str, engine_url: str, tmp_path: Path
) -> None:
    """Each part may work alone, and the page still comes from a customer."""
    told = tmp_path / "told"
    program = f"import sys; open({str(told)!r}, 'a').write(sys.stdin.read() + chr(10))"
    bodies: list[tuple[dict[str, str], bytes]] = []

    def behave(headers: dict[str, str], body: bytes) -> Answer:
        bodies.append((headers, body))
        # The first try fails: what is retried is told all the same.
        return DONE if len(bodies) > 1 else (500, {}, b"")

    with mail_server(tmp_path) as mail, hooks() as receiver:
        receiver.behave = behave
        config = tmp_path / "duly.toml"
        command = json.dumps([sys.executable, "-c", program])
        config.write_text(f'smtp_url = "{mail.url}"\nnotification_command = {command}\n')
        environ = {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}
        with duly_up("--config", str(config), environ=environ) as duly:
            ask = asking(duly)
            secret = ask("POST", "/v1/webhook-secrets", {}, 201)["secret"]
            for name, to in (
                ("hook", {"url": receiver.url}),
                ("mail", {"mail": ["ops@example.com"]}),
                ("program", {"command": True}),
            ):
                ask("PUT", f"/v1/notifications/{name}", {"to": to, "dead_letters": True})
            task = {
                "type": "mail.send",
                "payload": "secret",
                "target": {"url": "http://127.0.0.1:1024/"},
            }
            failed = ask("POST", "/v1/tasks", {**task, "retry": {"max_attempts": 1}}, 201)["id"]
            eventually(lambda: len(mail.received()) == 1, "a mail came", REQUESTER_S)
            eventually(told.exists, "the program ran", REQUESTER_S)
            eventually(lambda: len(bodies) == 2, "the webhook came again", REQUESTER_S)
    headers, body = bodies[1]
    Webhook(secret.removeprefix("whsec_")).verify(body, headers)
    assert headers["webhook-id"] == bodies[0][0]["webhook-id"], "a retry is the same message"
    for message in (json.loads(body), json.loads(told.read_text())):
        assert message["text"] == "1 dead letter of mail.send (exhausted)"
        assert message["groups"][0]["task"] == failed
        assert "secret" not in str(message)
    assert mail.received()[0]["Subject"].startswith("[duly] default: 1 dead letter")
