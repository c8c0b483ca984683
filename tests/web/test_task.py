"""One task in the dashboard: its logs while it runs, what may be done with it, and by whom."""

from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.web.seeding import SCRIPT, WORKER, Installation, lease, show, sign_in, submit

pytestmark = pytest.mark.slow


def log(installation: Installation, task: dict[str, Any], seq: int, *texts: str) -> None:
    lines = [{"at": datetime.now(UTC).isoformat(), "text": text} for text in texts]
    chunk = {"id": task["id"], "fence": task["fence"], "seq": seq, "lines": lines}
    body = {"worker_id": WORKER, "chunks": [chunk]}
    assert installation.call("POST", "/v1/worker/logs", body) == {"stored": 1}


def settle(installation: Installation, task: dict[str, Any], outcome: str) -> None:
    ended = {"id": task["id"], "fence": task["fence"], "outcome": outcome}
    body = {"worker_id": WORKER, "settlements": [ended]}
    installation.call("POST", "/v1/worker/settle", body)


def test_log_lines_appear_while_the_task_runs(operator: Page, installation: Installation) -> None:
    """What an import says when it hangs, it says before it ends."""
    submit(installation, type="logs.live", target={"pool": "logs"})
    (task,) = lease(installation, "logs")
    log(installation, task, 0, "row 1 of 3", SCRIPT)
    show(operator, installation.url, f"tasks/{task['id']}")
    lines = operator.get_by_label("Log lines")
    expect(lines).to_contain_text("row 1 of 3")
    log(installation, task, 1, "row 2 of 3")
    expect(lines).to_contain_text("row 2 of 3")
    log(installation, task, 2, "row 3 of 3")
    settle(installation, task, "completed")
    expect(lines).to_contain_text("row 3 of 3")
    expect(operator.locator("main h1 .chip")).to_contain_text("COMPLETED")
    assert lines.locator(".log").count() == 4, "each line once, however often the page is drawn"
    assert operator.evaluate("window.pwned") is None


def test_a_view_that_is_left_follows_no_logs(operator: Page, installation: Installation) -> None:
    """A hundred tasks looked at in an hour were a hundred calls that wait on the server."""
    submit(installation, type="logs.left", target={"pool": "logs-left"})
    (task,) = lease(installation, "logs-left")
    log(installation, task, 0, "begun")
    show(operator, installation.url, f"tasks/{task['id']}")
    expect(operator.get_by_label("Log lines")).to_contain_text("begun")
    with operator.expect_event("requestfailed", lambda request: "follow=20" in request.url):
        show(operator, installation.url, "queues")
    settle(installation, task, "completed")


def test_a_task_that_failed_once_is_tried_again_at_once(
    operator: Page, installation: Installation
) -> None:
    """The cause is mended, and the next try is an hour away."""
    retry = {"max_attempts": 3, "initial_s": 3600}
    submit(installation, type="retry.later", target={"pool": "retry"}, retry=retry)
    (task,) = lease(installation, "retry")
    settle(installation, task, "failed")
    show(operator, installation.url, f"tasks/{task['id']}")
    expect(operator.locator("main h1 .chip")).to_contain_text("SCHEDULED")
    operator.get_by_role("button", name="Retry now").click()
    expect(operator.locator("main h1 .chip")).to_contain_text("READY")
    (again,) = lease(installation, "retry")
    assert (again["id"], again["attempt"]) == (task["id"], 2)
    settle(installation, again, "completed")


def test_a_dead_letter_is_replayed_after_a_question(
    operator: Page, installation: Installation
) -> None:
    """A replay runs the work again: not by a slip of the hand."""
    show(operator, installation.url, f"tasks/{installation.ids['FAILED']}")
    operator.get_by_role("button", name="Replay", exact=True).click()
    operator.get_by_role("button", name="Replay the task").click()
    expect(operator.locator("main .facts")).to_contain_text("Replay of")
    made = installation.call("GET", f"/v1/tasks/{operator.url.rpartition('/')[2]}")
    assert made["replay_of"] == installation.ids["FAILED"]


def test_a_node_that_failed_is_not_replayed_but_run_again_in_its_workflow(
    operator: Page, installation: Installation
) -> None:
    """A replay of a node is refused: its workflow has ended without it."""
    at = f"/v1/workflows/{installation.ids['STOPPED']}/nodes?state=FAILED"
    (node,) = installation.call("GET", at)["items"]
    show(operator, installation.url, f"tasks/{node['id']}")
    assert operator.get_by_role("button", name="Replay").count() == 0
    operator.get_by_role("link", name="Run again in its workflow").click()
    expect(operator.get_by_role("button", name="Run again from here…")).to_be_visible()


def test_a_key_for_some_types_is_offered_actions_on_those_only(
    page: Page, installation: Installation
) -> None:
    """Its other tasks are seen and not touched."""
    key = {"name": "limited", "role": "producer", "types": ["limited.mine"]}
    limited = installation.call("POST", "/v1/keys", key)["key"]
    mine = submit(installation, type="limited.mine", delay_s=600)
    other = submit(installation, type="limited.other", delay_s=600)
    sign_in(page, installation.url, limited)
    show(page, installation.url, f"tasks/{mine}")
    expect(page.get_by_role("button", name="Run now")).to_be_visible()
    show(page, installation.url, f"tasks/{other}")
    assert page.get_by_role("button", name="Run now").count() == 0
