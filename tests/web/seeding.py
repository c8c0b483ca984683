"""A real duly with something for the dashboard to show: tasks in each state, failures, workflows
that wait, map, skip and fail, a schedule, a pause, and hostile texts."""

import os
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page

from tests.story.duly_up import RunningDuly
from tests.story.hooks import call

SCRIPT = "<script>window.pwned = true</script>"
RIGHT_TO_LEFT = "abc \u05d0\u05d1 \u0661"
HOSTILE = f"card declined {SCRIPT}"
BIG = 12345678901234567890
COMPLETED, FAILED, SCHEDULED, READY = 12, 4, 6, 3
ITEMS, ITEMS_COMPLETED, ITEMS_FAILED = 40, 26, 2
# With what workflows add: items and a node that failed; items and a root that nothing takes.
ALL_FAILED = FAILED + ITEMS_FAILED + 1
ALL_READY = READY + ITEMS - ITEMS_COMPLETED - ITEMS_FAILED + 1
WORKER = "w1"
LEASE_S = 300


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


def lease(installation: Installation, pool: str, most: int = 50) -> list[dict[str, Any]]:
    asked = {"worker_id": WORKER, "pools": [pool], "max": most, "wait_s": 5, "lease_s": LEASE_S}
    asked["request_id"] = os.urandom(8).hex()
    return list(installation.call("POST", "/v1/worker/lease", asked)["tasks"])


def settle(
    installation: Installation, pool: str, count: int, outcome: str, most: int = 50, **more: Any
) -> None:
    """What a worker does, over HTTP, with so many tasks of a pool."""
    while count > 0:
        leased = lease(installation, pool, min(most, count))
        count -= len(leased)
        ended = [{"id": each["id"], "fence": each["fence"], "outcome": outcome} for each in leased]
        if ended:
            settlements = {"worker_id": WORKER, "settlements": [each | more for each in ended]}
            installation.call("POST", "/v1/worker/settle", settlements)


def start(installation: Installation, name: str, nodes: dict[str, Any]) -> str:
    flow = installation.call("POST", "/v1/workflows", {"name": name, "nodes": nodes})
    return str(flow["id"])


def seed_review(installation: Installation) -> str:
    """One that waits for an approval, maps over items, and has skipped a node by its `if`."""
    fetch = {"node": "fetch"}
    once = {"retry": {"max_attempts": 1}}
    nodes = {
        "fetch": {"type": "order.fetch", "target": {"pool": "review"}},
        "approve": {
            "after": ["fetch"],
            "wait": {"signal": "approved", "role": "operator", "timeout_s": 86400},
        },
        "repair": {
            "type": "order.repair",
            "after": ["fetch"],
            "if": fetch | {"path": "/broken", "gt": 0},
        },
        "charge": {
            "type": "order.charge",
            "after": ["fetch"],
            "target": {"pool": "review-items"},
            "map": {"over": fetch | {"path": "/ids"}, "tolerate": {"count": 5}},
            **once,
        },
        "ship": {"type": "order.ship", "after": ["approve", "charge"]},
    }
    flow = start(installation, "order.review", nodes)
    settle(installation, "review", 1, "completed", result={"ids": list(range(ITEMS)), "broken": 0})
    settle(installation, "review-items", ITEMS_COMPLETED, "completed", most=10)
    settle(installation, "review-items", ITEMS_FAILED, "failed", most=1, error="card declined")
    return flow


def seed_stopped(installation: Installation) -> str:
    """One that has failed in the middle."""
    pool = {"target": {"pool": "stopped"}, "retry": {"max_attempts": 1}}
    nodes = {
        "extract": {"type": "export.extract"} | pool,
        "convert": {"type": "export.convert", "after": ["extract"]} | pool,
        "upload": {"type": "export.upload", "after": ["convert"]} | pool,
    }
    flow = start(installation, "export.nightly", nodes)
    settle(installation, "stopped", 1, "completed", result={"rows": 1200})
    settle(installation, "stopped", 1, "failed", error="OSError: no space left on device")
    return flow


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
    installation.ids["WORKFLOW"] = start(installation, "invoice.month", nodes)
    installation.ids["REVIEW"] = seed_review(installation)
    installation.ids["STOPPED"] = seed_stopped(installation)
    installation.call(
        "POST",
        "/v1/schedules",
        {"name": "nightly", "cron": "0 2 * * *", "task": {"type": "report.make"}},
    )
    pause = {"kind": "type", "name": "report.make", "reason": "planned maintenance"}
    installation.call("POST", "/v1/pauses", pause)


def sign_in(page: Page, url: str, key: str) -> None:
    page.goto(url + "/")
    page.fill("input[name=credential]", key)
    page.click("form.signin button.primary")
    page.wait_for_selector("#nav a")


def show(page: Page, url: str, place: str) -> None:
    page.goto(f"{url}/#/{place}")
    page.wait_for_selector(f'main .view[data-drawn][data-place="#/{place}"]')
