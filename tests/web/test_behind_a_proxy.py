"""The dashboard under a path prefix behind nginx, as docs/dashboard.md says it is set up. Without
nginx these tests are skipped, except on CI."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.pressure.pooler import answers, free_port
from tests.processes import eventually
from tests.tidy.markdown import blocks
from tests.web.seeding import Installation, show, sign_in, submit

pytestmark = pytest.mark.slow

CONFIGURATION = """
daemon off;
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/bodies;
  proxy_temp_path {folder}/proxied;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
{location}
  }}
}}
"""
UPSTREAM = re.compile(r"http://127\.0\.0\.1:\d+")
STOP_S = 20.0


@pytest.fixture(scope="module")
def nginx() -> str:
    found = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    if found is None:
        assert os.environ.get("CI") != "true", "nginx is missing: .ci/run installs it"
        pytest.skip("nginx is not installed")
    return found


@pytest.fixture
def prefixed(nginx: str, installation: Installation, tmp_path: Path) -> Iterator[str]:
    """The address of the dashboard behind the proxy of the docs."""
    (block,) = blocks("nginx")
    location = UPSTREAM.sub(installation.url, block.text)
    port = free_port()
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=tmp_path, port=port, location=location))
    process = subprocess.Popen([nginx, "-p", str(tmp_path), "-c", str(configuration)])
    try:
        eventually(lambda: answers(port), "nginx listens")
        yield f"http://127.0.0.1:{port}/duly"
    finally:
        process.terminate()
        process.wait(STOP_S)


def test_the_page_works_under_a_prefix(
    prefixed: str, installation: Installation, page: Page
) -> None:
    """Views, live events, an action, the API page: each has addresses of its own to get wrong."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    sign_in(page, prefixed, installation.admin)
    show(page, prefixed, "tasks?type=behind.proxy")
    expect(page.locator("#top .live")).to_contain_text("Live")
    task = submit(installation, type="behind.proxy", delay_s=600)
    expect(page.locator("tbody tr")).to_have_count(1)
    show(page, prefixed, f"tasks/{task}")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("main h1 .chip")).not_to_contain_text("SCHEDULED")
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="duly API")).to_be_visible()
    page.get_by_role("link", name="duly", exact=True).click()
    page.wait_for_selector("#nav a")
    assert {url for url in asked if not url.startswith(prefixed + "/")} == set()


def test_an_action_from_another_origin_is_refused_behind_the_proxy_too(
    prefixed: str, installation: Installation, page: Page
) -> None:
    """The proxy passes on who asks: a page elsewhere must not act with the cookie."""
    sign_in(page, prefixed, installation.admin)
    task = submit(installation, type="behind.proxy", delay_s=600)
    answer = page.request.post(
        f"{prefixed}/v1/tasks/{task}/cancel", headers={"Origin": "https://elsewhere.example"}
    )
    assert answer.status in (401, 403)
    assert installation.call("GET", f"/v1/tasks/{task}")["state"] == "SCHEDULED"
