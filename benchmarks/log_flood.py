"""`python -m benchmarks.log_flood [--lines-per-s N] [--seconds S] [--json]`: one worker that logs
20,000 lines a second, and what another tenant's submits notice of it.

A real `duly up`; the worker is an SDK worker in a process of its own, whose handlers log as any
program does. Measured are single submits of the quiet tenant, alone and beside it, and how many of
the lines were kept.
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.noisy_neighbour import Server, be_quiet, figures
from duly import Client, Context, Worker

LINES_PER_S = 20_000
SECONDS = 20.0
LINES_PER_ATTEMPT = 1_000
LINE = "charged invoice 8829031 of customer 77, 12 of 240 items, attempt 1: everything is in order"
SETTLE_DOWN_S = 5.0
SAMPLED = 50


def log_lines(url: str, key: str) -> None:
    """The worker: each attempt logs so many lines, spread over a second."""
    worker = Worker(url, key, pools=["noisy"], concurrency=100, drain_s=2.0)
    logger = logging.getLogger("flood")
    logger.setLevel("INFO")
    # Only the handler of the worker: a console would be what is measured.
    logging.getLogger().addHandler(logging.NullHandler())

    @worker.task("flood")
    async def flood(_ctx: Context) -> None:
        for _ in range(20):
            for _ in range(LINES_PER_ATTEMPT // 20):
                logger.info(LINE)
            await asyncio.sleep(0.05)

    asyncio.run(worker.serve())


def attempt_often(url: str, key: str, per_s: float, seconds: float) -> list[str]:
    """Submits attempts of the worker, at their pace."""
    ids = []
    with Client(url, key) as client:
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            ids.append(client.submit("flood", pool="noisy").id)
            time.sleep(max(0.0, began + len(ids) / per_s - now))
    return ids


def kept_share(url: str, key: str, ids: list[str]) -> float:
    with Client(url, key) as client:
        sampled = ids[:: max(1, len(ids) // SAMPLED)]
        kept = [sum(1 for _ in lines_of(client, task_id)) for task_id in sampled]
    return sum(kept) / (len(kept) * LINES_PER_ATTEMPT)


def lines_of(client: Client, task_id: str) -> Any:
    after = None
    while True:
        query: dict[str, str] = {} if after is None else {"after": after}
        page: Any = client.call("GET", f"/v1/tasks/{task_id}/logs", query=query)
        yield from page["items"]
        if page["is_over"] or page["after"] == after:
            return
        after = page["after"]


def quiet_beside(server: Server, key: str, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.log_flood", "--quiet", str(server.port)]
    command += ["--key", key, "--seconds", str(seconds)]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=seconds + 60)
    return figures(json.loads(ran.stdout))


def measure(lines_per_s: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.call("POST", "/v1/tenants", {"name": "quiet"})
            quiet = server.make_key("quiet")
            time.sleep(SETTLE_DOWN_S)
            alone = quiet_beside(server, quiet, seconds)
            flooding = [sys.executable, "-m", "benchmarks.log_flood", "--flood", server.url]
            flooding += ["--key", server.key]
            worker = subprocess.Popen(flooding)
            attempts = [sys.executable, "-m", "benchmarks.log_flood", "--attempts", server.url]
            attempts += ["--key", server.key, "--lines-per-s", str(lines_per_s)]
            attempts += ["--seconds", str(seconds + SETTLE_DOWN_S)]
            submitting = subprocess.Popen(attempts, stdout=subprocess.PIPE)
            time.sleep(SETTLE_DOWN_S)
            beside = quiet_beside(server, quiet, seconds)
            ids = json.loads(submitting.communicate(timeout=seconds + 60)[0])
            time.sleep(SETTLE_DOWN_S)
            share = kept_share(server.url, server.key, ids)
            worker.terminate()
            worker.wait(30)
        finally:
            server.stop()
    return {
        "lines_per_s": round(len(ids) * LINES_PER_ATTEMPT / (seconds + SETTLE_DOWN_S)),
        "kept_share": round(share, 4),
        "alone_ms": alone,
        "beside_ms": beside,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_flood", description=__doc__)
    parser.add_argument("--lines-per-s", type=int, default=LINES_PER_S)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--json", action="store_true")
    for name in ("--quiet", "--flood", "--attempts", "--key"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quiet:
        be_quiet(int(arguments.quiet), arguments.key, arguments.seconds)
    elif arguments.flood:
        log_lines(arguments.flood, arguments.key)
    elif arguments.attempts:
        per_s = arguments.lines_per_s / LINES_PER_ATTEMPT
        ids = attempt_often(arguments.attempts, arguments.key, per_s, arguments.seconds)
        sys.stdout.write(json.dumps(ids))
    else:
        report = measure(arguments.lines_per_s, arguments.seconds)
        sys.stdout.write(json.dumps(report, indent=None if arguments.json else 2) + "\n")


if __name__ == "__main__":
    main()
