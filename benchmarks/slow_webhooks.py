"""One tenant's slow webhooks beside another tenant's quick ones (`--help` lists the sizes).

Starts a real `duly up` and a receiver that answers `/quick` at once and `/slow` after seconds, on
many loopback addresses. Measures from the submit of a webhook to its arrival: alone, then beside.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

SAMPLES = 300
EVERY_S = 0.05
BATCH = 250
READY_S = 60.0
START_S = 30.0


async def receive(hosts: int, slow_s: float, port: int) -> None:
    """The receiver's process: remembers when each quick one came, and tells when asked."""
    arrivals: dict[str, float] = {}
    running: Counter[str] = Counter()

    async def quick(request: web.Request) -> web.Response:
        arrivals[(await request.json())["number"]] = time.monotonic()
        return web.Response()

    async def slow(_request: web.Request) -> web.Response:
        running["slow"] += 1
        try:
            await asyncio.sleep(slow_s)
        finally:
            running["slow"] -= 1
        return web.Response()

    async def tell(_request: web.Request) -> web.Response:
        return web.json_response({"arrivals": arrivals, "running": running["slow"]})

    app = web.Application()
    app.add_routes([web.post("/quick", quick), web.post("/slow", slow), web.get("/told", tell)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for host in range(1, hosts + 1):
        await web.TCPSite(runner, f"127.0.0.{host}", port, backlog=2048).start()
    print("ready", flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def process(*command: str) -> AsyncIterator[str]:
    """A program of ours, and the first line that it says."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert started.stdout is not None
        async with asyncio.timeout(READY_S):
            line = await started.stdout.readline()
        yield line.decode()
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGTERM)
        await started.wait()


class Caller:
    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, port: int) -> None:
        self.session = session
        self.url = url
        self.headers = {"Authorization": f"Bearer {key}"}
        self.port = port

    async def post(self, path: str, body: Any, key: str | None = None) -> Any:
        headers = self.headers if key is None else {"Authorization": f"Bearer {key}"}
        async with self.session.post(f"{self.url}{path}", json=body, headers=headers) as answer:
            text = await answer.text()
            assert answer.status < 300, text
            return json.loads(text)

    async def tenant(self, name: str) -> str:
        """A tenant of its own, and a key of it."""
        await self.post("/v1/tenants", {"name": name})
        made = await self.post(f"/v1/keys?tenant={name}", {"name": name, "role": "producer"})
        key: str = made["key"]
        return key

    async def slow(self, key: str, hosts: int, each: int) -> None:
        tasks = [
            {
                "type": "slow",
                "target": {"url": f"http://127.0.0.{1 + number % hosts}:{self.port}/slow"},
                "timeout_s": 120,
            }
            for number in range(hosts * each)
        ]
        for start in range(0, len(tasks), BATCH):
            await self.post("/v1/tasks/batch", {"tasks": tasks[start : start + BATCH]}, key)

    async def told(self) -> Any:
        async with self.session.get(f"http://127.0.0.1:{self.port}/told") as answer:
            return await answer.json()

    async def quick(self, key: str, prefix: str) -> list[float]:
        """Milliseconds from each submit to its arrival; what never came is infinite."""
        began: dict[str, float] = {}
        for number in range(SAMPLES):
            name = f"{prefix}-{number}"
            began[name] = time.monotonic()
            task = {
                "type": "quick",
                "payload": {"number": name},
                "target": {"url": f"http://127.0.0.1:{self.port}/quick"},
            }
            await self.post("/v1/tasks", task, key)
            await asyncio.sleep(EVERY_S)
        await asyncio.sleep(1.0)
        arrivals = (await self.told())["arrivals"]
        return sorted(1000 * (arrivals.get(name, float("inf")) - at) for name, at in began.items())


def figures(waits_ms: list[float]) -> str:
    p50, p99 = waits_ms[len(waits_ms) // 2], waits_ms[int(len(waits_ms) * 0.99)]
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {waits_ms[-1]:.1f} ms"


async def measure(arguments: argparse.Namespace, folder: Path) -> None:
    port = str(arguments.port)
    options = ["--hosts", str(arguments.hosts), "--slow-s", str(arguments.slow_s), "--port", port]
    up = ["-m", "duly", "up", "--json", "--port", "0", "--data-dir", str(folder / "data")]
    async with (
        process("-m", "benchmarks.slow_webhooks", "--receive", *options),
        process(*up) as line,
        aiohttp.ClientSession() as session,
    ):
        ready = json.loads(line)
        caller = Caller(session, ready["url"], ready["api_key"], arguments.port)
        quick = await caller.tenant("quick")
        await caller.quick(quick, "warm")
        print(f"alone:  {figures(await caller.quick(quick, 'alone'))}")
        for number in range(arguments.tenants):
            key = await caller.tenant(f"slow-{number}")
            await caller.slow(key, arguments.hosts, arguments.each)
        ends_at = time.monotonic() + START_S
        running, before = 0, -1
        while running != before and time.monotonic() < ends_at:
            before = running
            await asyncio.sleep(1.0)
            running = (await caller.told())["running"]
        print(f"slow webhooks at their receivers: {running}")
        print(f"beside: {figures(await caller.quick(quick, 'beside'))}")
        print(f"slow webhooks at their receivers: {(await caller.told())['running']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=25)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--slow-s", type=float, default=20.0)
    parser.add_argument("--tenants", type=int, default=1)
    parser.add_argument("--port", type=int, default=18_080)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        asyncio.run(receive(arguments.hosts, arguments.slow_s, arguments.port))
        return
    os.environ["DULY_WEBHOOK_PORTS"] = str(arguments.port)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(arguments, Path(folder)))


if __name__ == "__main__":
    main()
