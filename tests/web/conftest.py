"""A real duly with something in it, and a real browser that looks at it. Without Chromium these
tests are skipped, except on CI."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up
from tests.story.hooks import call

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WAIT_MS = 15_000
SCRIPT = "<script>window.pwned = true</script>"
RIGHT_TO_LEFT = "abc \u05d0\u05d1 \u0661"
HOSTILE = f"card declined {SCRIPT}"
BIG = 12345678901234567890
COMPLETED, FAILED, SCHEDULED, READY = 12, 4, 6, 3


@dataclass
class Installation:
    """`ids` of one task in each state."""

    duly: RunningDuly
    admin: str
    producer: str
    operator: str
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.duly.url

    def call(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = call(self.duly, self.admin, method, path, body)
        assert status < 300, answer
        return answer


def submit(installation: Installation, **task: Any) -> str:
    made: str = installation.call("POST", "/v1/tasks", task)["id"]
    return made


def settle(installation: Installation, pool: str, count: int, outcome: str, **more: Any) -> None:
    """What a worker does, over HTTP, with all tasks of a pool."""
    worker = {"worker_id": "w1"}
    while count:
        asked = {"pools": [pool], "max": 50, "wait_s": 5, "request_id": os.urandom(8).hex()}
        leased = installation.call("POST", "/v1/worker/lease", worker | asked)["tasks"]
        count -= len(leased)
        ended = [{"id": each["id"], "fence": each["fence"], "outcome": outcome} for each in leased]
        if ended:
            settlements = {"settlements": [each | more for each in ended]}
            installation.call("POST", "/v1/worker/settle", worker | settlements)


def seed(installation: Installation) -> None:
    once = {"max_attempts": 1}
    for number in range(COMPLETED):
        payload = {"to": f"user{number}@example.com", "big": BIG}
        installation.ids["COMPLETED"] = submit(
            installation, type="email.send", payload=payload, target={"pool": "working"}
        )
    for _ in range(FAILED):
        installation.ids["FAILED"] = submit(
            installation,
            type="invoice.charge",
            payload={"note": SCRIPT, "name": RIGHT_TO_LEFT, "long": "x" * 10_000},
            target={"pool": "failing"},
            retry=once,
            tags={"env": SCRIPT[:40]},
        )
    for number in range(SCHEDULED):
        installation.ids["SCHEDULED"] = submit(
            installation, type="report.make", delay_s=3600 * (number + 1)
        )
    for _ in range(READY):
        installation.ids["READY"] = submit(
            installation, type="nightly.clean", target={"pool": "without-workers"}
        )
    settle(installation, "failing", FAILED, "failed", error=HOSTILE)
    settle(installation, "working", COMPLETED, "completed", result={"sent": True, "big": BIG})
    pool = {"target": {"pool": "without-workers"}}
    nodes = {
        "list": {"type": "invoice.list"} | pool,
        "charge": {"type": "invoice.charge", "after": ["list"]} | pool,
        "report": {"type": "invoice.report", "after": ["charge"]} | pool,
        "close": {"type": "invoice.close", "after": ["list", "report"]} | pool,
    }
    flow = installation.call("POST", "/v1/workflows", {"name": "invoice.month", "nodes": nodes})
    installation.ids["WORKFLOW"] = flow["id"]
    installation.call(
        "POST",
        "/v1/schedules",
        {"name": "nightly", "cron": "0 2 * * *", "task": {"type": "report.make"}},
    )
    pause = {"kind": "type", "name": "report.make", "reason": "planned maintenance"}
    installation.call("POST", "/v1/pauses", pause)


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        assert os.environ.get("CI") != "true", "Chromium is missing: .ci/run installs it"
        pytest.skip("Chromium is not installed")
    return found


@pytest.fixture(scope="module")
def installation(server: ServerOfTheRun, chromium: str) -> Iterator[Installation]:
    with server.database() as name:
        environ = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=environ) as duly:
            admin = duly.ready["api_key"]
            made = Installation(duly, admin, "", "")
            made.producer = made.call("POST", "/v1/keys", {"name": "p", "role": "producer"})["key"]
            made.operator = made.call("POST", "/v1/keys", {"name": "o", "role": "operator"})["key"]
            seed(made)
            yield made


@pytest.fixture(scope="module")
def browser(chromium: str, installation: Installation) -> Iterator[Browser]:
    """Opened last and closed first: while it is open, this thread runs no other event loop."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield opened
        opened.close()


class Console:
    """What the browser complained about."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        page.on("console", self.note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.set_default_timeout(WAIT_MS)

    def note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh browser; at its end it must not have complained."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    console = Console(opened)
    yield opened
    context.close()
    assert console.complaints == []


def sign_in(page: Page, url: str, key: str) -> None:
    page.goto(url + "/")
    page.fill("input[name=credential]", key)
    page.click("form.signin button.primary")
    page.wait_for_selector("#nav a")


def show(page: Page, url: str, place: str) -> None:
    page.goto(f"{url}/#/{place}")
    page.wait_for_selector(f'main .view[data-drawn][data-place="#/{place}"]')
