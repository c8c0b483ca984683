"""`python -m benchmarks.open_pages [--pages N] [--seconds S]`: what live pages cost the server.

A page is here what the dashboard's first view is to the server: a session, an event stream, and at
each event, and each time the stream was opened, the calls of that view, three at a time. Tasks are
submitted meanwhile, so that an event comes each second. Goals: 100 pages, less than 50 MB more;
10 pages, less than 5 % of a core while nothing happens (`--quiet`).
"""

import argparse
import asyncio
import contextlib
import http.cookiejar
import json
import os
import sys
import tempfile
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from benchmarks.status_with_a_million import FIRST_VIEW
from duly.client.server import LOCAL_FILE, read_local

AT_A_TIME = 3
GOAL_MB = 50.0
SETTLE_S = 5.0
DEBOUNCE_S = 0.3


class Usage(NamedTuple):
    rss_mb: float
    cpu_s: float


class Server(NamedTuple):
    url: str
    key: str
    pid: int

    def usage(self) -> Usage:
        """Of duly's own processes (Linux only): PostgreSQL is asked the same by any client."""
        found = [usage_of(pid) for pid in with_children(self.pid)]
        return Usage(sum(each.rss_mb for each in found), sum(each.cpu_s for each in found))


def with_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [pid]
    with contextlib.suppress(FileNotFoundError):
        for child in children.read_text().split():
            found += with_children(int(child))
    return found


def usage_of(pid: int) -> Usage:
    try:
        name, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except FileNotFoundError:
        return Usage(0.0, 0.0)
    if "postgres" in name:
        return Usage(0.0, 0.0)
    # Fields 14, 15 and 24 of proc(5), counted from the third, which comes after the name.
    parts = fields.split()
    ticks = int(parts[11]) + int(parts[12])
    rss = int(parts[21]) * os.sysconf("SC_PAGE_SIZE")
    return Usage(rss / 1e6, ticks / os.sysconf("SC_CLK_TCK"))


@contextlib.asynccontextmanager
async def duly_up(folder: str) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly", "up", "--json", "--port", "0", "--data-dir", folder),
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline()
        local = read_local(Path(folder) / LOCAL_FILE)
        assert local is not None
        yield Server(local.url, local.api_key, process.pid)
    finally:
        process.terminate()
        await process.wait()


class LivePage:
    """One browser tab: its cookie, its stream, and what it asks for."""

    def __init__(self, server: Server, cookie: str) -> None:
        at = urlsplit(server.url)
        assert at.hostname is not None
        self.address = (at.hostname, at.port)
        self.head = f"Host: {at.netloc}\r\nCookie: {cookie}\r\n"
        self.refreshes = 0

    async def live(self) -> None:
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(f"GET /v1/events HTTP/1.1\r\n{self.head}\r\n".encode())
            await self.refresh()
            async for line in reader:
                if line.startswith(b"event: changed"):
                    await asyncio.sleep(DEBOUNCE_S)
                    await self.refresh()
        finally:
            writer.close()

    async def refresh(self) -> None:
        waiting = list(FIRST_VIEW[1:])

        async def work() -> None:
            reader, writer = await asyncio.open_connection(*self.address)
            try:
                while waiting:
                    await self.ask(reader, writer, waiting.pop(0))
            finally:
                writer.close()

        await asyncio.gather(*(work() for _ in range(AT_A_TIME)))
        self.refreshes += 1

    async def ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
    ) -> None:
        writer.write(f"GET {path} HTTP/1.1\r\n{self.head}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)


def session_cookie(server: Server) -> str:
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    request = urllib.request.Request(
        server.url + "/v1/session",
        data=json.dumps({"credential": server.key}).encode(),
        headers={"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"},
    )
    with opener.open(request):
        return "; ".join(f"{each.name}={each.value}" for each in jar)


def submit_task(server: Server) -> None:
    request = urllib.request.Request(
        server.url + "/v1/tasks",
        data=b'{"type": "page.refreshed", "delay_s": 86400}',
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"},
    )
    with urllib.request.urlopen(request):
        pass


async def run(count: int, seconds: float, *, is_quiet: bool) -> bool:
    with tempfile.TemporaryDirectory(prefix="duly-pages-") as folder:
        async with duly_up(folder) as server:
            cookie = await asyncio.to_thread(session_cookie, server)
            # What the server loads and caches for the first page is not what a page costs.
            await LivePage(server, cookie).refresh()
            await asyncio.sleep(SETTLE_S)
            before = server.usage()
            pages = [LivePage(server, cookie) for _ in range(count)]
            living = [asyncio.create_task(page.live()) for page in pages]
            most = before
            clock = asyncio.get_running_loop()
            ends_at = clock.time() + seconds
            while clock.time() < ends_at:
                if not is_quiet:
                    await asyncio.to_thread(submit_task, server)
                await asyncio.sleep(1.0)
                most = max(most, server.usage())
            failed = [each for each in living if each.done()]
            refreshes = sum(page.refreshes for page in pages)
            after = server.usage()
            for each in living:
                each.cancel()
            await asyncio.gather(*living, return_exceptions=True)
    more = most.rss_mb - before.rss_mb
    core = (after.cpu_s - before.cpu_s) / seconds
    sys.stdout.write(
        f"{count} pages, {refreshes} refreshes in {seconds:.0f} s, {len(failed)} pages failed\n"
        f"memory before {before.rss_mb:.1f} MB, most {most.rss_mb:.1f} MB: {more:.1f} MB more\n"
        f"processor: {core:.1%} of a core\n"
    )
    return more < GOAL_MB and not failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quiet", action="store_true", help="submit nothing meanwhile")
    given = parser.parse_args()
    is_met = asyncio.run(run(given.pages, given.seconds, is_quiet=given.quiet))
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
