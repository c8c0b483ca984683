"""`python -m tests.web.screenshots [FOLDER] [--all]`: pictures of the views, for docs/dashboard.md.

An installation of its own is filled with an hour that could have been, and looked at by Chromium:
1100 pixels wide and light for the docs (docs/images), or with --all also dark and 400 wide.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from random import Random
from typing import NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from duly.domain.histogram import BUCKETS, index_of, trimmed
from duly.environment import Environment
from duly.settings import Settings
from duly.store.bootstrap import open_target, prepare_target
from duly.store.database import Database
from duly.store.stats import SQL, flattened
from duly.store.tenants import create_tenant
from tests.story.duly_up import embedded_duly
from tests.web.conftest import ARGUMENTS
from tests.web.png import with_palette
from tests.web.seeding import (
    Installation,
    lease,
    seed_review,
    seed_stopped,
    settle,
    show,
    sign_in,
    submit,
)


class View(NamedTuple):
    width: int
    height: int
    is_dark: bool = False
    is_whole: bool = False


IMAGES = Path(__file__).parents[2] / "docs" / "images"
DOCS = View(1100, 720)
ALL = [View(width, 900, dark, is_whole=True) for width in (1280, 400) for dark in (False, True)]
SETTLE_MS = 1200
TYPES = ("email.send", "invoice.charge", "report.make")
ERRORS = (
    ("invoice.charge", "CardDeclined: card 4242 was declined by the issuer", 7),
    ("report.make", "TimeoutError: warehouse did not answer within 30 s", 3),
    ("email.send", "SMTPRecipientsRefused: 550 mailbox unavailable", 2),
)
LINES = ("fetched 1,200 rows", "wrote part 1 of 3", "wrote part 2 of 3", "slow disk: 4.1 s")


async def fill_hour(folder: str) -> None:
    """Minutes of an hour, as processes would have counted them."""
    settings, random = Settings(data_dir=folder), Random(7)
    async with open_target(settings, Environment()) as target:
        await prepare_target(target, settings, Environment())
        database = await Database.open(target.engine_url, 1)
        try:
            tenant = await create_tenant(database, "default")
            assert tenant is not None
            await database.fetch(SQL.add_stats, *minutes(tenant.id, random))
        finally:
            await database.close()


def minutes(tenant: int, random: Random) -> list[list[object]]:
    first = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=59)
    rows: list[tuple[object, ...]] = []
    lags: list[list[int]] = []
    for minute in range(60):
        number = int(220 + 90 * random.random() + 160 * (25 < minute < 34))
        failed = int(random.random() * 4) + 14 * (28 < minute < 33)
        lag = [0] * BUCKETS
        lag[index_of(0.012 + 0.9 * (26 < minute < 34))] = number
        lags.append(trimmed(lag))
        at = first + timedelta(minutes=minute)
        name = TYPES[minute % len(TYPES)]
        rows.append((at, tenant, name, number, number, number - failed, failed, failed * 2))
    return [*map(list, zip(*rows, strict=True)), *flattened(lags), *flattened(lags)]


def fill(installation: Installation) -> dict[str, str]:
    """Tasks, workflows, schedules and failures; ids of what is shown alone."""
    kinds = cycle(TYPES)
    for number in range(24):
        payload = {"to": f"user{number}@example.com", "invoice": f"inv_{88290 + number}"}
        submit(installation, type=next(kinds), payload=payload, tags={"env": "prod"})
    settle(installation, "default", 24, "completed", result={"sent": True})
    for task_type, error, count in ERRORS:
        for _ in range(count):
            once = {"target": {"pool": "failing"}, "retry": {"max_attempts": 1}}
            submit(installation, type=task_type, payload={"attempted": True}, **once)
        settle(installation, "failing", count, "failed", error=error)
    for number in range(9):
        submit(installation, type=next(kinds), delay_s=900 * (number + 1), priority=number % 10)
    for _ in range(4):
        submit(installation, type="thumbnail.make", target={"pool": "images"})
    shown = {"review": seed_review(installation), "stopped": seed_stopped(installation)}
    shown["task"] = running_task(installation)
    lease(installation, "review-items", 5)
    schedules = (("nightly report", "0 2 * * *"), ("invoices", "*/15 * * * *"))
    for name, cron in schedules:
        body = {"name": name, "cron": cron, "timezone": "Europe/Berlin", "task": {"type": TYPES[2]}}
        shown["schedule"] = installation.call("POST", "/v1/schedules", body)["id"]
    for _ in range(3):
        installation.call("POST", f"/v1/schedules/{shown['schedule']}/trigger", {})
    pause = {"kind": "pool", "name": "images", "reason": "the image server is being moved"}
    installation.call("POST", "/v1/pauses", pause)
    for name in ("acme", "globex"):
        installation.call("POST", "/v1/tenants", {"name": name, "weight": 2, "in_flight_max": 50})
    return shown


def running_task(installation: Installation) -> str:
    """One that has failed once and runs again, with log lines."""
    retry = {"max_attempts": 4, "initial_s": 1, "jitter": False}
    payload = {"table": "orders", "format": "parquet"}
    where = {"target": {"pool": "exports"}, "retry": retry, "tags": {"env": "prod"}}
    task_id = submit(installation, type="export.table", payload=payload, **where)
    settle(installation, "exports", 1, "failed", error="ConnectionResetError: peer closed")
    (task,) = lease(installation, "exports") or lease(installation, "exports")
    now = datetime.now(UTC)
    lines = [
        {
            "at": (now + timedelta(milliseconds=740 * number)).isoformat(),
            "level": "warning" if "slow" in text else "info",
            "text": text,
        }
        for number, text in enumerate(LINES)
    ]
    chunk = {"id": task["id"], "fence": task["fence"], "seq": 0, "lines": lines}
    installation.call("POST", "/v1/worker/logs", {"worker_id": "w1", "chunks": [chunk]})
    return task_id


def places(shown: dict[str, str]) -> Iterator[tuple[str, str]]:
    """File and place of each picture."""
    yield "now", "now"
    yield "tasks", "tasks"
    yield "task", f"tasks/{shown['task']}"
    yield "workflows", "workflows"
    yield "workflow", f"workflows/{shown['review']}?node=charge"
    yield "resume", f"workflows/{shown['stopped']}?node=convert"
    yield "schedules", "schedules"
    yield "schedule", f"schedules/{shown['schedule']}"
    for name in ("dead-letters", "queues", "tenants", "cluster", "audit"):
        yield name, name


def take(page: Page, folder: Path, name: str, *, whole: bool = False) -> None:
    page.wait_for_timeout(SETTLE_MS)
    picture = page.screenshot(full_page=whole, animations="disabled", caret="hide")
    (folder / f"{name}.png").write_bytes(with_palette(picture))
    sys.stdout.write(f"{folder / name}.png\n")


def look(
    browser: Browser, installation: Installation, shown: dict[str, str], folder: Path, view: View
) -> None:
    context = browser.new_context(
        viewport={"width": view.width, "height": view.height},
        color_scheme="dark" if view.is_dark else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.goto(installation.url + "/")
    take(page, folder, "sign-in")
    sign_in(page, installation.url, installation.admin)
    for name, place in places(shown):
        show(page, installation.url, place)
        take(page, folder, name, whole=view.is_whole)
    page.goto(installation.url + "/docs")
    take(page, folder, "api")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=IMAGES)
    parser.add_argument("--all", action="store_true", dest="is_all")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory(prefix="duly-screenshots-") as data:
        asyncio.run(fill_hour(data))
        with embedded_duly(Path(data)) as duly, sync_playwright() as playwright:
            installation = Installation(duly, duly.ready["api_key"], "", "")
            shown = fill(installation)
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            for view in ALL if given.is_all else (DOCS,):
                name = f"{view.width}-{'dark' if view.is_dark else 'light'}"
                folder = given.folder / name if given.is_all else given.folder
                folder.mkdir(parents=True, exist_ok=True)
                look(browser, installation, shown, folder, view)
            browser.close()


if __name__ == "__main__":
    main()
