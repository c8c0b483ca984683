"""A real duly with something in it, and a real browser that looks at it. Without Chromium these
tests are skipped, except on CI."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.servers import ServerOfTheRun
from tests.story.duly_up import duly_up
from tests.web.seeding import Installation, seed, sign_in

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WAIT_MS = 15_000


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


@pytest.fixture
def operator(page: Page, installation: Installation) -> Page:
    sign_in(page, installation.url, installation.admin)
    return page
