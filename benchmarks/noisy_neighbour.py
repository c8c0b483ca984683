"""`python -m benchmarks.noisy_neighbour [ATTACK...] [--seconds S] [--tasks N] [--json]`: what one
tenant can do to another's submits.

Starts a real `duly up`, measures single submits of a quiet tenant alone, then beside each attack of
another tenant: the longest time that the server's event loop was held, its resident memory before,
during and after, and the quiet tenant's latencies. Each of the two is a process of its own.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop

from duly.app import Ready, up
from duly.environment import system_environment
from duly.settings import load_settings
from duly.telemetry import configure_logs

TICK_S = 0.002
SUBMIT_EVERY_S = 0.02
SETTLE_DOWN_S = 5.0
TIMEOUT_S = 30.0
MIB = 2**20
HEADER = (
    "attack",
    "answers",
    "longest hold ms, clock / processor",
    "RSS MiB before/most/after",
    "alone p50/p99 ms",
    "beside p50/p99/max ms",
    "failed",
)


# The server: `duly up`, and a watch on its event loop.


def serve(folder: Path) -> None:
    """Writes the longest hold of the loop in each tenth of a second to `holds`: on the clock, and
    in processor time, which other programs on the machine do not lengthen."""

    def announce(ready: Ready) -> None:
        watching.append(asyncio.ensure_future(watch(folder / "holds")))
        line = {"url": ready.url, "api_key": ready.key.first}
        (folder / "ready.part").write_text(json.dumps(line))
        (folder / "ready.part").rename(folder / "ready")

    watching: list[asyncio.Task[None]] = []
    configure_logs("error", "text")
    flags = {"port": 0, "data_dir": str(folder / "data")}
    uvloop.run(up(load_settings(flags, os.environ).settings, system_environment(), announce))


async def watch(path: Path) -> None:
    with path.open("w", buffering=1) as file:
        longest, computed, told_at = 0.0, 0.0, time.monotonic()
        while True:
            before, before_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            longest = max(longest, now - before - TICK_S)
            computed = max(computed, time.thread_time() - before_s)
            if now - told_at > 0.1:
                file.write(f"{now} {longest} {computed}\n")
                longest, computed, told_at = 0.0, 0.0, now


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "benchmarks.noisy_neighbour", "--serve", str(folder)]
        self.process = subprocess.Popen(command)
        until = time.monotonic() + 120
        while not (folder / "ready").exists():
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit("duly did not start")
            time.sleep(0.05)
        ready = json.loads((folder / "ready").read_text())
        self.url, self.key = ready["url"], ready["api_key"]
        self.port = int(urlsplit(self.url).port or 0)

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def longest_hold_ms(self, since: float) -> list[float]:
        lines = (self.folder / "holds").read_text().splitlines()
        holds = [[float(text) for text in line.split()] for line in lines]
        return [max(hold[at] for hold in holds if hold[0] > since) * 1000 for at in (1, 2)]

    def call(self, method: str, path: str, body: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status < 300, answer
        return json.loads(answer)

    def make_key(self, tenant: str, **more: Any) -> str:
        asked = {"name": "measured", "role": "producer", **more}
        return str(self.call("POST", f"/v1/keys?tenant={tenant}", asked)["key"])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


# The quiet tenant: one submit after another, each on a connection of its own.


def be_quiet(port: int, key: str, seconds: float) -> None:
    body = json.dumps({"type": "mail.send", "payload": {"to": "a@example.com"}, "delay_s": 3600})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    took: list[float] = []
    failed = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", "/v1/tasks", body, headers)
            response = connection.getresponse()
            response.read()
            failed += response.status != 201
        except OSError:
            failed += 1
        finally:
            connection.close()
        took.append((time.monotonic() - began) * 1000)
        time.sleep(max(0.0, began + SUBMIT_EVERY_S - time.monotonic()))
    sys.stdout.write(json.dumps({"took_ms": took, "failed": failed}))


def figures(quiet: dict[str, Any]) -> dict[str, float]:
    took = sorted(quiet["took_ms"])
    return {
        "p50": statistics.median(took),
        "p99": took[int(len(took) * 0.99)],
        "max": took[-1],
        "failed": quiet["failed"],
    }


# The attacks.


class Attacker:
    def __init__(self, port: int, key: str, signing_key: str, seconds: float) -> None:
        self.port = port
        self.key = key
        self.signing_key = signing_key
        self.until = time.monotonic() + seconds
        self.answers: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, path: str, body: bytes, *more: str, method: str = "POST") -> None:
        """One call on a connection of its own; what comes of it is counted."""
        credential = () if more else (f"Authorization: Bearer {self.key}",)
        lines = (
            f"{method} {path} HTTP/1.1",
            "Host: here",
            "Connection: close",
            f"Content-Length: {len(body)}",
            *(
                []
                if any("ontent-type" in line for line in more)
                else ["Content-Type: application/json"]
            ),
            *credential,
            *more,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S), self.connected() as (reader, writer):
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    for start in range(0, len(body), MIB):
                        writer.write(body[start : start + MIB])
                        await writer.drain()
                status = (await reader.readline()).split()
                await reader.read()
                self.answers[status[1].decode() if len(status) > 1 else "cut"] += 1
        except TimeoutError:
            self.answers["timeout"] += 1
        except OSError:
            self.answers["reset"] += 1

    async def paced(
        self, per_s: float, act: Callable[[], Awaitable[None]], most: int = 400
    ) -> None:
        running: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while not self.is_over:
                if len(running) < most:
                    task = group.create_task(as_task(act))
                    running.add(task)
                    task.add_done_callback(running.discard)
                await asyncio.sleep(1 / per_s)

    async def crowd(self, count: int, act: Callable[[], Awaitable[None]]) -> None:
        async def again() -> None:
            while not self.is_over:
                await act()

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(again())

    async def many_items_1mb(self) -> None:
        body = items(76_001)
        await self.paced(20, lambda: self.send("/v1/tasks/batch", body))

    async def many_items_16mb(self) -> None:
        body = items(1_200_000)
        await self.paced(2, lambda: self.send("/v1/tasks/batch", body))

    async def nested_payload_16mb(self) -> None:
        body = b'{"tasks":[{"type":"a","payload":[' + b",".join([b"[]"] * 5_000_000) + b"]}]}"
        await self.paced(2, lambda: self.send("/v1/tasks/batch", body))

    async def newlines_15mb(self) -> None:
        body = b"\n" * 15_000_000
        ndjson = ("Content-type: application/x-ndjson", f"Authorization: Bearer {self.key}")
        await self.paced(2, lambda: self.send("/v1/tasks/batch", body, *ndjson))

    async def sound_batches(self) -> None:
        task = b'{"type":"mail.send","delay_s":86400,"payload":"' + b"x" * 980 + b'"}'
        body = b'{"tasks":[' + b",".join([task] * 1000) + b"]}"
        await self.paced(200, lambda: self.send("/v1/tasks/batch", body))

    async def dry_run_cancels(self) -> None:
        body = b'{"filter":{"tag":"kind:none"},"dry_run":true}'
        await self.crowd(50, lambda: self.send("/v1/tasks/cancel", body))

    async def tag_lists(self) -> None:
        path = "/v1/tasks?tag=kind:none"
        await self.crowd(50, lambda: self.send(path, b"", method="GET"))

    async def silent_connections(self) -> None:
        async def sit() -> None:
            try:
                async with self.connected() as (reader, _):
                    async with asyncio.timeout(max(0.1, self.until - time.monotonic())):
                        self.answers["said" if await reader.read(1) else "closed"] += 1
            except TimeoutError:
                self.answers["left alone"] += 1
            except OSError:
                self.answers["reset"] += 1
            await asyncio.sleep(0.1)

        await self.crowd(1200, sit)

    async def large_bodies(self) -> None:
        body = items(1_200_000)[: 16 * MIB - 1].ljust(16 * MIB, b" ")
        await self.crowd(60, lambda: self.send("/v1/tasks/batch", body))

    async def forged_bodies(self) -> None:
        body = items(1_200_000)[: 16 * MIB - 1].ljust(16 * MIB, b" ")
        key_id = self.signing_key.split("_")[1]

        def forged() -> Awaitable[None]:
            return self.send(
                "/v1/tasks/batch",
                body,
                f"X-Duly-Key: {key_id}",
                f"X-Duly-Timestamp: {int(time.time())}",
                f"X-Duly-Nonce: {os.urandom(8).hex()}",
                "X-Duly-Signature: " + "0" * 64,
            )

        await self.crowd(60, forged)


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    "batches of 76,001 items, 20/s": Attacker.many_items_1mb,
    "batches of 1.2 million items, 2/s": Attacker.many_items_16mb,
    "batches of one 15 MB payload, 2/s": Attacker.nested_payload_16mb,
    "15 MB of newlines, 2/s": Attacker.newlines_15mb,
    "sound 1 MB batches, 200/s": Attacker.sound_batches,
    "50 dry-run cancels by tag": Attacker.dry_run_cancels,
    "50 list readers by tag": Attacker.tag_lists,
    "1,200 silent connections": Attacker.silent_connections,
    "60 bodies of 16 MiB": Attacker.large_bodies,
    "60 forged bodies of 16 MiB": Attacker.forged_bodies,
}


async def as_task(act: Callable[[], Awaitable[None]]) -> None:
    await act()


def items(count: int) -> bytes:
    return b'{"tasks":[' + b",".join([b'{"type":"a"}'] * count) + b"]}"


def attack(name: str, port: int, key: str, signing_key: str, seconds: float) -> None:
    attacker = Attacker(port, key, signing_key, seconds)

    async def run() -> None:
        await ATTACKS[name](attacker)

    asyncio.run(run())
    sys.stdout.write(json.dumps(attacker.answers))


# The measurement.


def child(*arguments: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.noisy_neighbour", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def answer_of(process: "subprocess.Popen[bytes]") -> Any:
    out, _ = process.communicate(timeout=300)
    return json.loads(out)


def store_tasks(server: Server, key: str, count: int) -> None:
    """What the readers look through."""
    task = {"type": "mail.send", "delay_s": 86400, "payload": {"n": 1}, "tags": {"kind": "stored"}}
    body = json.dumps({"tasks": [task] * 1000})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    for _ in range(count // 1000):
        connection.request("POST", "/v1/tasks/batch", body, headers)
        response = connection.getresponse()
        answer = response.read()
        assert response.status == 201, answer


def measure(names: list[str], seconds: float, tasks: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="duly-noisy-") as folder:
        server = Server(Path(folder))
        try:
            for tenant in ("quiet", "noisy"):
                server.call("POST", "/v1/tenants", {"name": tenant})
            quiet, noisy = server.make_key("quiet"), server.make_key("noisy")
            signing = server.make_key("noisy", signing=True)
            store_tasks(server, noisy, tasks)
            be_quiet_for = ("--quiet", server.port, quiet)
            answer_of(child(*be_quiet_for, 2))
            for name in names:
                alone = figures(answer_of(child(*be_quiet_for, seconds)))
                before, since = server.rss_mib(), time.monotonic()
                noise = child("--attack", name, server.port, noisy, signing, seconds + 2)
                time.sleep(1)
                watched = child(*be_quiet_for, seconds)
                most = before
                while noise.poll() is None:
                    most = max(most, server.rss_mib())
                    time.sleep(0.05)
                beside = figures(answer_of(watched))
                hold_ms = server.longest_hold_ms(since)
                time.sleep(SETTLE_DOWN_S)
                yield {
                    "attack": name,
                    "answers": answer_of(noise),
                    "hold_ms": hold_ms,
                    "rss_mib": [before, most, server.rss_mib()],
                    "alone": alone,
                    "beside": beside,
                }
        finally:
            server.stop()


def row_of(found: dict[str, Any]) -> str:
    alone, beside = found["alone"], found["beside"]
    cells = (
        found["attack"],
        " ".join(f"{count}x{status}" for status, count in found["answers"].items()),
        " / ".join(f"{value:.0f}" for value in found["hold_ms"]),
        " / ".join(f"{value:.0f}" for value in found["rss_mib"]),
        f"{alone['p50']:.1f} / {alone['p99']:.1f}",
        f"{beside['p50']:.1f} / {beside['p99']:.1f} / {beside['max']:.0f}",
        f"{beside['failed']:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help="parts of their names")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quiet", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--attack", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
    elif given.quiet:
        port, key, seconds = given.quiet
        be_quiet(int(port), key, float(seconds))
    elif given.attack:
        name, port, key, signing_key, seconds = given.attack
        attack(name, int(port), key, signing_key, float(seconds))
    else:
        names = [name for name in ATTACKS if not given.names or any(n in name for n in given.names)]
        if not given.json:
            print("| " + " | ".join(HEADER) + " |\n" + "|---" * len(HEADER) + "|")
        for found in measure(names, given.seconds, given.tasks):
            print(json.dumps(found) if given.json else row_of(found), flush=True)


if __name__ == "__main__":
    main()
