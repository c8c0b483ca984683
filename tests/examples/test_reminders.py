"""The reminder service, started as its page says: an API, a worker and a receiver of webhooks."""

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duly import Client
from tests.integrations.serving import Site, served
from tests.processes import PROJECT, child, eventually
from tests.story.duly_up import duly_up
from tests.story.test_duly_up import external

pytestmark = pytest.mark.slow

FOLDER = PROJECT / "examples" / "reminders"


def at(**later: float) -> str:
    return (datetime.now(UTC) + timedelta(**later)).isoformat()


def test_reminders_are_sent_once_tried_again_cancelled_and_told_back(
    owner_url: str, engine_url: str, tmp_path: Path
) -> None:
    """An example that is wrong is copied all the same."""
    (tmp_path / "away").touch()
    with (
        duly_up(environ=external(owner_url, engine_url)) as duly,
        Client(duly.url, duly.ready["api_key"]) as client,
    ):
        environ = {
            "DULY_URL": duly.url,
            "DULY_API_KEY": duly.ready["api_key"],
            "REMINDERS_SECRET": client.webhook_secrets.create().secret or "",
            "REMINDERS_OUTBOX": str(tmp_path / "outbox.txt"),
            "PYTHONPATH": str(FOLDER),
        }
        with served(FOLDER, "api:app", environ) as site:
            environ["REMINDERS_SITE"] = site.url
            with child("-m", "duly", "worker", "tasks:worker", environ=environ) as worker:
                follow(site, client, tmp_path)
                worker.signal(signal.SIGTERM)
                assert worker.wait() == 0


def follow(site: Site, client: Client, folder: Path) -> None:
    status, tea = site.call("POST", "/reminders", {"to": "ann@x.org", "text": "tea", "at": at()})
    assert status == 201
    _, wrong = site.call("POST", "/reminders", {"to": "ann", "text": "tea", "at": at()})
    _, later = site.call("POST", "/reminders", {"to": "a@x.org", "text": "go", "at": at(days=1)})
    assert later["state"] == "SCHEDULED"

    def shown(reminder: dict[str, str]) -> dict[str, object]:
        answer: dict[str, object] = site.call("GET", f"/reminders/{reminder['id']}")[1]
        return answer

    eventually(lambda: client.attempts(tea["id"]), "the first attempt met no mail server")
    (folder / "away").unlink()
    eventually(lambda: shown(tea)["sent"] == 1, "the webhook told that it was sent")
    eventually(lambda: shown(tea)["state"] == "COMPLETED", "its attempt has ended, too")
    (line,) = (folder / "outbox.txt").read_text().splitlines()
    assert "ann@x.org tea" in line
    eventually(lambda: shown(wrong)["state"] == "FAILED", "what is no address was rejected")

    (schedule,) = client.schedules.list()
    digest = client.schedules.trigger(schedule.id)
    assert client.wait(digest.id, 30).output == 1
    assert site.call("DELETE", f"/reminders/{later['id']}")[1]["state"] == "CANCELLED"
    assert site.call("DELETE", f"/reminders/{tea['id']}")[0] == 409
    unknown = "019a8f2c-0000-7000-8000-000000000001"
    assert site.call("GET", f"/reminders/{unknown}")[0] == 404
    # Not signed by duly.
    assert site.call("POST", "/hooks/sent", {"reminder": tea["id"]})[0] == 400
