"""The dashboard in a real browser: every view, the actions, two roles, keys, and hostile texts."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.web.conftest import Console
from tests.web.seeding import (
    ALL_FAILED,
    ALL_READY,
    BIG,
    COMPLETED,
    Installation,
    show,
    sign_in,
    submit,
)

pytestmark = pytest.mark.slow

VIEWS = {
    "now": "Now",
    "tasks": "Tasks",
    "workflows": "Workflows",
    "schedules": "Schedules",
    "dead-letters": "Dead letters",
    "queues": "Queues",
    "tenants": "Tenants",
    "cluster": "Cluster",
    "audit": "Audit",
}
SERIOUS = {"serious", "critical"}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_what_there_is(
    operator: Page, installation: Installation, view: str
) -> None:
    """A view that opens empty is believed to be empty."""
    show(operator, installation.url, view)
    expect(operator.locator("main h1")).to_have_text(VIEWS[view])
    assert operator.locator("main .problem").count() == 0
    assert operator.locator("main table tbody tr").count() > 0
    expect(operator.locator('#nav a[aria-current="page"]')).to_have_text(VIEWS[view])


def test_the_first_screen_says_whether_we_are_late(
    operator: Page, installation: Installation
) -> None:
    """An operator at three in the morning reads one line."""
    show(operator, installation.url, "now")
    expect(operator.locator("main .verdict strong")).not_to_be_empty()
    figures = operator.locator("main .figure").all_text_contents()
    assert any(re.search(rf"Dead letters{ALL_FAILED}", text) for text in figures), figures
    assert any(re.search(rf"^Ready{ALL_READY}", text) for text in figures), figures


def test_filters_are_the_address_and_the_back_button_works(
    operator: Page, installation: Installation
) -> None:
    """A filter that is not in the address cannot be sent to a colleague."""
    show(operator, installation.url, "tasks")
    operator.select_option("select[name=state]", "FAILED")
    expect(operator.locator("tbody tr")).to_have_count(ALL_FAILED)
    assert operator.url.endswith("#/tasks?state=FAILED")
    operator.go_back()
    expect(operator.locator("tbody tr").nth(COMPLETED)).to_be_visible()


def test_one_task_shows_its_attempts_its_payload_and_why_it_waits(
    operator: Page, installation: Installation
) -> None:
    """The question is always the same: why has it not run yet?"""
    show(operator, installation.url, f"tasks/{installation.ids['READY']}")
    expect(operator.locator(".ladder li.binding")).to_have_count(1)
    show(operator, installation.url, f"tasks/{installation.ids['COMPLETED']}")
    expect(operator.locator("svg.timeline .run").first).to_be_attached()
    assert str(BIG) in operator.locator("main").inner_text(), "integers keep their digits"


def test_a_workflow_is_a_graph_whose_selection_is_the_address(
    operator: Page, installation: Installation
) -> None:
    """A graph that cannot be pointed into is a picture."""
    flow = installation.ids["WORKFLOW"]
    show(operator, installation.url, f"workflows/{flow}")
    expect(operator.locator(".graph .node")).to_have_count(4)
    expect(operator.locator(".graph path.edge")).to_have_count(4)
    operator.locator(".graph .node", has_text="report").click()
    expect(operator.locator(".graph .node.selected")).to_have_count(1)
    assert operator.url.endswith(f"workflows/{flow}?node=report")
    expect(operator.get_by_role("heading", name="Node report")).to_be_visible()


def test_hostile_texts_stay_texts(operator: Page, installation: Installation) -> None:
    """An error message is written by a stranger's program and read by an operator."""
    for place in (
        f"tasks/{installation.ids['FAILED']}",
        "dead-letters",
        "tasks?state=FAILED",
        "now",
    ):
        show(operator, installation.url, place)
        assert operator.evaluate("window.pwned") is None
    show(operator, installation.url, "dead-letters")
    assert "<script>" in operator.locator("main tbody").inner_text()
    width = operator.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert width <= 0, "a text of 10,000 characters does not widen the page"


def test_cancel_asks_first_and_is_audited(operator: Page, installation: Installation) -> None:
    """A click that cannot be undone, next to one that can."""
    task = submit(installation, type="email.send", delay_s=7200)
    show(operator, installation.url, f"tasks/{task}")
    operator.get_by_role("button", name="Cancel", exact=True).click()
    operator.locator("dialog").get_by_role("button", name="Cancel", exact=True).click()
    assert installation.call("GET", f"/v1/tasks/{task}")["state"] == "SCHEDULED"
    operator.locator("main").get_by_role("button", name="Cancel", exact=True).click()
    operator.get_by_role("button", name="Cancel the task").click()
    expect(operator.locator("main h1 .chip")).to_contain_text("CANCELLED")
    show(operator, installation.url, "audit")
    expect(operator.locator("tbody")).to_contain_text(task)


def test_a_failed_task_is_submitted_again_with_another_payload(
    operator: Page, installation: Installation
) -> None:
    """The payload was wrong: replaying it as it was fails again."""
    show(operator, installation.url, f"tasks/{installation.ids['FAILED']}")
    operator.get_by_role("button", name="Submit again, edited").click()
    operator.fill("dialog textarea", "{not json")
    operator.get_by_role("button", name="Submit", exact=True).click()
    expect(operator.locator("dialog .tone-bad")).not_to_be_empty()
    operator.fill("dialog textarea", f'{{"mended": {BIG}}}')
    operator.get_by_role("button", name="Submit", exact=True).click()
    expect(operator.locator("main")).to_contain_text(f'"mended": {BIG}')
    assert installation.ids["FAILED"] not in operator.url


def test_selected_tasks_are_acted_on_together(operator: Page, installation: Installation) -> None:
    """Ten clicks on ten pages is how the eleventh is forgotten."""
    tasks = [submit(installation, type="bulk.chosen", delay_s=9000) for _ in range(3)]
    show(operator, installation.url, "tasks?type=bulk.chosen")
    operator.get_by_role("checkbox", name="Select all on this page").check()
    operator.locator(".bulk").get_by_role("button", name="Cancel").click()
    operator.locator("dialog").get_by_role("button", name="Cancel").nth(1).click()
    expect(operator.locator("tbody .s-cancelled")).to_have_count(len(tasks))


def test_a_type_is_paused_and_resumed(operator: Page, installation: Installation) -> None:
    """The first thing that is done when something goes wrong."""
    show(operator, installation.url, "queues")
    row = operator.locator("tr", has_text="planned maintenance")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Resume").click()
    expect(operator.locator("tr", has_text="planned maintenance")).to_have_count(0)
    pause = {"kind": "type", "name": "report.make", "reason": "planned maintenance"}
    installation.call("POST", "/v1/pauses", pause)


def test_what_changes_elsewhere_appears_by_itself(
    operator: Page, installation: Installation
) -> None:
    """A page that shows an hour ago is worse than none."""
    show(operator, installation.url, "tasks?type=live.arrival")
    expect(operator.locator("#top .live")).to_contain_text("Live")
    submit(installation, type="live.arrival", delay_s=600)
    expect(operator.locator("tbody tr")).to_have_count(1)


def test_a_paused_page_stays_as_it_is(operator: Page, installation: Installation) -> None:
    """Rows that move under the pointer are clicked by mistake."""
    show(operator, installation.url, "tasks?type=live.paused")
    operator.keyboard.press("p")
    expect(operator.locator("#top .live")).to_contain_text("Paused")
    submit(installation, type="live.paused", delay_s=600)
    operator.reload()
    operator.wait_for_selector("main tbody tr")
    expect(operator.locator("#top .live")).to_contain_text("Paused")
    operator.keyboard.press("p")
    expect(operator.locator("#top .live")).not_to_contain_text("Paused")


def test_a_producer_sees_no_buttons_of_operators(page: Page, installation: Installation) -> None:
    """What is refused anyway should not be offered."""
    sign_in(page, installation.url, installation.producer)
    assert page.locator("#nav a", has_text="Cluster").count() == 0
    assert page.locator("#nav a", has_text="Audit").count() == 0
    show(page, installation.url, "dead-letters")
    assert page.locator("main table").get_by_role("button").count() == 0
    show(page, installation.url, "queues")
    assert page.get_by_role("button", name="Pause").count() == 0


@pytest.mark.parametrize("role", ["viewer", "producer", "operator"])
def test_no_view_asks_for_what_its_role_may_not_see(
    page: Page, installation: Installation, role: str
) -> None:
    """A refused call is an error in the console, and a view that never comes."""
    made = installation.call("POST", "/v1/keys", {"name": f"all of {role}", "role": role})
    sign_in(page, installation.url, made["key"])
    views = [link.get_attribute("href") for link in page.locator("#nav a").all()]
    schedule = installation.call("GET", "/v1/schedules")["items"][0]["id"]
    ids = installation.ids
    inside = [f"tasks/{ids['FAILED']}", f"workflows/{ids['REVIEW']}", f"schedules/{schedule}"]
    places = [*(str(href).removeprefix("#/") for href in views), *inside]
    assert len(places) == len(inside) + (6 if role == "producer" else 7)
    for place in places:
        show(page, installation.url, place)
        assert page.locator("main .problem").count() == 0, place
        if role == "viewer":
            shown = page.locator("main button:not(.plain)").all_text_contents()
            assert set(shown) <= {"Copy", "Copy command", "Older →", "← Newer"}, place
            assert page.locator("main input[type=checkbox]").count() == 0, place


def test_the_keyboard_is_enough(operator: Page, installation: Installation) -> None:
    """Hands that stay on the keys, and people who have no mouse."""
    show(operator, installation.url, "now")
    operator.keyboard.press("2")
    expect(operator.locator("main h1")).to_have_text("Tasks")
    operator.wait_for_selector("main tbody tr")
    operator.keyboard.press("/")
    expect(operator.locator("input[name=q]")).to_be_focused()
    operator.keyboard.press("Escape")
    operator.keyboard.press("j")
    operator.keyboard.press("j")
    operator.keyboard.press("k")
    operator.keyboard.press("Enter")
    expect(operator.locator("main h1 .chip")).to_be_visible()
    operator.keyboard.press("?")
    expect(operator.locator("dialog")).to_be_visible()
    operator.keyboard.press("Escape")
    expect(operator.locator("dialog")).to_have_count(0)


def test_a_link_signs_in_once_and_leaves_the_address(
    page: Page, installation: Installation
) -> None:
    """A token in the history of a browser is a token in its next screenshot."""
    link = installation.call("POST", "/v1/session/links", {})["fragment"]
    page.goto(f"{installation.url}/{link}")
    page.wait_for_selector("#nav a")
    assert "link=" not in page.url
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1600, "dark")])
def test_every_view_is_accessible_in_both_schemes_and_widths(
    browser: Browser, installation: Installation, width: int, scheme: str
) -> None:
    """Contrast, names of controls, landmarks: what a person without this screen relies on."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    console = Console(page)
    sign_in(page, installation.url, installation.admin)
    flow = installation.ids["WORKFLOW"]
    places = [*VIEWS, f"tasks/{installation.ids['FAILED']}", f"workflows/{flow}"]
    for place in places:
        show(page, installation.url, place)
        found = Axe().run(page).response["violations"]
        serious = [
            each["id"] + ": " + each["nodes"][0]["html"][:150]
            for each in found
            if each["impact"] in SERIOUS
        ]
        assert serious == [], place
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{place} is wider than the screen"
    context.close()
    assert console.complaints == []
