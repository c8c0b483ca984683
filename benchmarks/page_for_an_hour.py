"""`python -m benchmarks.page_for_an_hour [--refreshes N] [--view PLACE]`: what a page that stays
open keeps in the browser.

An hour of a busy tenant is 3,600 events. They come as fast as the page draws, from a source of
this program, each after a submit to a real server; the heap, without garbage, should not grow.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import CDPSession, Page, sync_playwright
from tests.story.duly_up import embedded_duly
from tests.web.conftest import ARGUMENTS
from tests.web.seeding import Installation, seed_review, show, sign_in, submit

LOOKS = 10
# Of what the page asks for when it is refreshed, what it asks for last.
LAST = {"now": "/v1/workers", "tasks": "/v1/tasks", "queues": "/v1/breakers"}
DEBOUNCE_MS = 400
GROWTH_MAX_MB = 2.0
SOURCES = """
window.sources = new Set();
window.EventSource = class extends EventTarget {
  constructor() {
    super();
    window.sources.add(this);
    setTimeout(() => this.dispatchEvent(new Event('open')));
  }
  close() { window.sources.delete(this); }
};
"""
FIRE = "for (const source of window.sources) source.dispatchEvent(new Event('changed'))"


class Heap(NamedTuple):
    refreshes: int
    used_mb: float
    nodes: int
    listeners: int


def look(session: CDPSession, refreshes: int) -> Heap:
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    counters = session.send("Memory.getDOMCounters")
    return Heap(refreshes, used / 1e6, counters["nodes"], counters["jsEventListeners"])


def refresh_many(page: Page, installation: Installation, view: str, count: int) -> Iterator[Heap]:
    session = page.context.new_cdp_session(page)
    last = LAST[view]
    for number in range(count + 1):
        if number % max(1, count // LOOKS) == 0:
            yield look(session, number)
        submit(installation, type="page.refreshed", target={"pool": "nobody"})
        with page.expect_response(lambda answer: last in answer.url):
            page.evaluate(FIRE)
            page.clock.run_for(DEBOUNCE_MS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--refreshes", type=int, default=3600)
    parser.add_argument("--view", choices=sorted(LAST), default="tasks")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    folder = tempfile.TemporaryDirectory(prefix="duly-page-")
    with folder as data, embedded_duly(Path(data)) as duly, sync_playwright() as playwright:
        installation = Installation(duly, duly.ready["api_key"], "", "")
        seed_review(installation)
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page()
        page.add_init_script(SOURCES)
        page.clock.install()
        sign_in(page, installation.url, installation.admin)
        show(page, installation.url, given.view)
        heaps = []
        for heap in refresh_many(page, installation, given.view, given.refreshes):
            heaps.append(heap)
            sys.stdout.write(
                f"{heap.refreshes:6} refreshes {heap.used_mb:7.2f} MB heap "
                f"{heap.nodes:7} nodes {heap.listeners:6} listeners\n"
            )
            sys.stdout.flush()
        browser.close()
    # The first look comes before what a page loads once has come.
    growth = heaps[-1].used_mb - heaps[1].used_mb
    sys.stdout.write(f"growth since the second look: {growth:.2f} MB\n")
    sys.exit(growth > GROWTH_MAX_MB)


if __name__ == "__main__":
    main()
