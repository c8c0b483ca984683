"""Workflows in the dashboard: what they wait for, signals, maps, skips, pauses, resumes."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.seeding import (
    ITEMS,
    ITEMS_COMPLETED,
    ITEMS_FAILED,
    Installation,
    settle,
    show,
    sign_in,
    start,
)

pytestmark = pytest.mark.slow

ROLES = ("producer", "operator", "admin")


def waits_for_approval(role: str) -> dict[str, Any]:
    wait = {"signal": "approved", "role": role, "timeout_s": 86400}
    return {"ask": {"wait": wait}, "then": {"type": "nobody.runs", "after": ["ask"]}}


def test_a_node_that_waits_says_for_what_and_is_ended_from_the_page(
    operator: Page, installation: Installation
) -> None:
    """An approval that stands in no page waits for its timeout."""
    flow = start(installation, "approve.here", waits_for_approval("operator"))
    show(operator, installation.url, f"workflows/{flow}")
    panel = operator.get_by_role("region", name="What it waits for", exact=True).first
    row = panel.locator("tr", has_text="the signal")
    expect(row).to_contain_text("the signal approved from the role operator or higher")
    expect(row.locator("time")).to_have_text(re.compile("^in (1 d|23 h 59 min)$"))
    row.get_by_role("button", name="Send approved").click()
    operator.fill("dialog textarea", '{"note": "looked at"}')
    operator.get_by_role("button", name="Send", exact=True).click()
    expect(operator.locator(".graph .node", has_text="ask")).to_have_class(
        "node s-completed k-wait critical"
    )
    sent = installation.call("GET", f"/v1/workflows/{flow}/signals")["items"]
    assert [(each["name"], each["payload"]) for each in sent] == [
        ("approved", {"note": "looked at"})
    ]
    show(operator, installation.url, "audit")
    expect(operator.locator("tbody tr", has_text="workflow.signal").first).to_contain_text(flow)


def test_a_signal_is_offered_only_to_those_who_may_send_it(
    page: Page, installation: Installation
) -> None:
    """A button that is refused teaches people to ignore refusals."""
    flows = {role: start(installation, "who.may", waits_for_approval(role)) for role in ROLES}
    sign_in(page, installation.url, installation.operator)
    for role, flow in flows.items():
        show(page, installation.url, f"workflows/{flow}")
        expect(page.locator("main")).to_contain_text(f"from the role {role} or higher")
        offered = page.get_by_role("button", name="Send approved").count()
        assert (offered > 0) == (role != "admin"), role


def test_a_waiting_task_has_no_fire_time_and_no_buttons_that_fail(
    operator: Page, installation: Installation
) -> None:
    """It was said to have fired, and offered to run now, which is refused."""
    flow = start(installation, "waits.here", waits_for_approval("operator"))
    nodes = installation.call("GET", f"/v1/workflows/{flow}/nodes")["items"]
    asked, then = (each["id"] for each in nodes)
    show(operator, installation.url, "tasks?state=WAITING&type=nobody.runs")
    expect(operator.locator("tbody tr").first).to_contain_text("waits in then")
    show(operator, installation.url, f"tasks/{then}")
    expect(operator.locator("main .facts")).to_contain_text("when its workflow lets it")
    expect(operator.locator("main .verdict")).to_contain_text("all parents to complete")
    assert operator.get_by_role("button", name="Run now").count() == 0
    assert operator.get_by_role("button", name="Reschedule").count() == 0
    show(operator, installation.url, f"tasks/{asked}")
    expect(operator.locator("main .verdict")).to_contain_text("It waits for the signal approved")


def test_a_map_shows_its_items_as_a_strip_and_their_counts(
    operator: Page, installation: Installation
) -> None:
    """Forty thousand items are one node, and the two that failed are what is looked for."""
    flow = installation.ids["REVIEW"]
    show(operator, installation.url, f"workflows/{flow}?node=charge")
    panel = operator.get_by_role("region", name="Node charge")
    expect(panel.locator("svg.heat .cell")).to_have_count(ITEMS)
    expect(panel.locator("svg.heat .h-completed")).to_have_count(ITEMS_COMPLETED)
    expect(panel).to_contain_text(f"{ITEMS_FAILED} failed · 5 may fail")
    panel.get_by_label("Items in state").select_option("FAILED")
    expect(panel.locator("svg.heat .cell")).to_have_count(ITEMS_FAILED)
    assert "item_state=FAILED" in operator.url
    panel.locator("svg.heat .cell").first.click()
    expect(operator.locator("main .crumbs")).to_contain_text("charge[")
    expect(operator.locator("main h1 .chip")).to_contain_text("FAILED")


def test_a_node_that_its_if_has_skipped_says_so(operator: Page, installation: Installation) -> None:
    """Skipped is not failed, and somebody will ask."""
    flow = installation.ids["REVIEW"]
    show(operator, installation.url, f"workflows/{flow}?node=repair")
    panel = operator.get_by_role("region", name="Node repair")
    expect(panel.locator(".chip")).to_contain_text("SKIPPED")
    expect(panel).to_contain_text("its `if` did not hold")
    expect(operator.locator(".graph .node.s-skipped")).to_have_count(1)


def test_a_workflow_is_paused_and_goes_on(operator: Page, installation: Installation) -> None:
    """Paused by the wrong click, it must go on by the next one."""
    flow = start(installation, "pause.here", waits_for_approval("operator"))
    show(operator, installation.url, f"workflows/{flow}")
    operator.get_by_role("button", name="Pause", exact=True).click()
    expect(operator.locator("dialog")).to_contain_text("2 nodes will not start until it goes on")
    operator.get_by_role("button", name="Pause the workflow").click()
    expect(operator.locator("main h1 .s-paused")).to_be_visible()
    expect(operator.locator("main .standing")).to_contain_text("paused by")
    assert "paused_at" in installation.call("GET", f"/v1/workflows/{flow}")
    operator.get_by_role("button", name="Go on").click()
    expect(operator.locator("main h1 .s-paused")).to_have_count(0)
    assert "paused_at" not in installation.call("GET", f"/v1/workflows/{flow}")


def test_a_resume_shows_first_what_would_run_again(
    operator: Page, installation: Installation
) -> None:
    """Which nodes run twice is what somebody wants to know before, not after."""
    show(operator, installation.url, f"workflows/{installation.ids['STOPPED']}?node=convert")
    operator.get_by_role("button", name="Resume…").click()
    dialog = operator.locator("dialog")
    expect(dialog).to_contain_text("Run 2 of 3 nodes again?")
    assert dialog.locator("li").all_text_contents() == ["convert", "upload"]
    dialog.get_by_role("button", name="Cancel").click()
    operator.get_by_role("button", name="Run again from here…").click()
    dialog.locator("textarea").fill('{"disk": "other"}')
    dialog.get_by_role("button", name="Resume").click()
    expect(operator.locator("main .standing")).to_contain_text("resumed from")
    expect(operator.locator(".graph .node.s-completed")).to_have_count(1)
    made = operator.url.rpartition("/")[2]
    nodes = installation.call("GET", f"/v1/workflows/{made}/nodes")["items"]
    (convert,) = (each["id"] for each in nodes if each["name"] == "convert")
    assert installation.call("GET", f"/v1/tasks/{convert}")["payload"] == {"disk": "other"}
    assert installation.call("GET", f"/v1/workflows/{made}")["resumed_from"]


def test_nodes_that_are_added_appear_by_themselves(
    operator: Page, installation: Installation
) -> None:
    """A graph that grows while it is looked at."""
    root = {"root": {"type": "grow.root", "target": {"pool": "grow"}}}
    flow = start(installation, "grow.here", root)
    show(operator, installation.url, f"workflows/{flow}")
    expect(operator.locator(".graph .node")).to_have_count(1)
    added = {"nodes": {"leaf": {"type": "grow.leaf", "after": ["root"]}}}
    installation.call("POST", f"/v1/workflows/{flow}/nodes", added)
    settle(installation, "grow", 1, "completed")
    expect(operator.locator(".graph .node")).to_have_count(2)
    expect(operator.locator(".graph .node.s-completed")).to_have_count(1)


def test_the_focus_stays_where_it_is_when_the_page_is_refreshed(
    operator: Page, installation: Installation
) -> None:
    """Who works with the keyboard was thrown back to the top with each event."""
    flow = start(installation, "focus.here", waits_for_approval("operator"))
    show(operator, installation.url, f"workflows/{flow}")
    operator.get_by_role("button", name="Pause", exact=True).focus()
    installation.call("POST", f"/v1/workflows/{flow}/signals", {"name": "approved"})
    expect(operator.locator(".graph .node.s-completed")).to_have_count(1)
    expect(operator.get_by_role("button", name="Pause", exact=True)).to_be_focused()


def test_a_workflow_inside_another_is_one_step_away_both_ways(
    operator: Page, installation: Installation
) -> None:
    """What hangs is inside, and the page of the whole is where it is looked for."""
    inside = {"name": "books.close", "nodes": {"sum": {"type": "nobody.sums"}}}
    flow = start(installation, "month.close", {"books": {"workflow": inside}})
    show(operator, installation.url, f"workflows/{flow}?node=books")
    panel = operator.get_by_role("region", name="Node books")
    panel.get_by_role("link", name="books.close").click()
    expect(operator.locator("main .standing")).to_contain_text("inside the node books")
    expect(operator.locator(".graph .node", has_text="sum")).to_have_count(1)
    operator.locator("main .standing").get_by_role("link", name="books").click()
    expect(operator.get_by_role("region", name="Node books")).to_be_visible()
