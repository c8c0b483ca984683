"""The API page in a real browser: search, navigation, both schemes; and its samples, as they stand,
against a real server."""

import os
import shutil
import subprocess
import sys

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.web.conftest import Console
from tests.web.seeding import Installation

pytestmark = pytest.mark.slow

SERIOUS = {"serious", "critical"}
RUN_S = 60.0


def test_search_leaves_what_is_looked_for(page: Page, installation: Installation) -> None:
    """A hundred calls on one page, and one is wanted."""
    page.goto(installation.url + "/docs")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.fill("#search", "signals workflow")
    expect(page.locator("#post_workflows_by_id_signals")).to_be_visible()
    expect(page.locator("#get_nodes")).to_be_hidden()
    expect(page.locator("#found")).to_contain_text("entries")
    assert page.locator("#nav li:visible").count() < 40
    page.keyboard.press("Enter")
    assert page.url.rpartition("#")[2] in page.locator("#nav").inner_html()
    page.keyboard.press("Escape")
    expect(page.locator("#get_nodes")).to_be_visible()


def test_a_link_leads_to_its_entry_though_a_search_hides_it(
    page: Page, installation: Installation
) -> None:
    """A link that does nothing."""
    page.goto(installation.url + "/docs")
    page.fill("#search", "post_tasks run-now")
    page.evaluate("location.hash = 'problem-not_found'")
    expect(page.locator("#problem-not_found")).to_be_in_viewport()


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_the_page_is_accessible_and_fits(
    browser: Browser, installation: Installation, width: int, scheme: str
) -> None:
    """Contrast, landmarks, names; and no scrolling to the side on a telephone."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    console = Console(page)
    page.goto(installation.url + "/docs")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    # Of all entries it would look at for minutes; hidden ones it passes over.
    page.fill("#search", "signals")
    found = Axe().run(page).response["violations"]
    serious = [
        each["id"] + each["nodes"][0]["html"][:150] for each in found if each["impact"] in SERIOUS
    ]
    assert serious == []
    context.close()
    assert console.complaints == []


@pytest.mark.parametrize("language", ["curl", "Python"])
@pytest.mark.parametrize("entry", ["post_tasks", "get_stats_now", "post_bulk", "post_workflows"])
def test_the_samples_run_as_they_stand(
    page: Page, installation: Installation, entry: str, language: str
) -> None:
    """The first thing that is tried is the sample, copied."""
    page.goto(installation.url + "/docs")
    code = page.locator(f"#{entry}").get_by_label(f"{language} sample").text_content()
    assert code is not None
    for key in ("billing_invoice_9082348", "order-4711"):
        code = code.replace(key, f"{key}-{language}")
    if language == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        command = ["bash", "-c", code.replace("curl ", "curl -sS --fail-with-body ", 1)]
    else:
        command = [sys.executable, "-c", code]
    environ = os.environ | {"DULY_URL": installation.url, "DULY_API_KEY": installation.admin}
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=RUN_S)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "{" in run.stdout
