"""`python -m tests.chaos.alerts`: a real Prometheus scrapes a cluster whose faults are planted one
by one; its alerts must fire for them and for no other.

Durations of the rules are divided by FACTOR, so that a fault needs minutes and not an hour;
thresholds stay. Ends with 1 if an alert was missed, or fired without a fault that explains it.
"""

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from duly.observability import ALERTS, RECORDING
from duly.store.embedded import free_port
from tests.chaos.cluster import POOL, ROLES, Cluster

FACTOR = 10
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SCRAPE_S = 1
LOOK_S = 1.0
CALM_S = 60.0
# What is left of a fault is gone by then, but for budgets that it burnt.
SETTLE_S = 240.0
RATE_PER_S = 5.0
# Beside what completes: more would open the breaker of the type, which then holds them back.
FAILING_PER_S = 3.0
LATE = frozenset(
    f"DulyLateStarts{band}{speed}Burn"
    for band in ("High", "Normal", "Low")
    for speed in ("Fast", "Slow")
)
# A budget of days that was spent in minutes stays spent as long as the run lasts.
LASTING = frozenset({"DulyFailedTasksSlowBurn", "DulyApiErrorsSlowBurn"}) | {
    name for name in LATE if "Slow" in name
}


@dataclass(frozen=True)
class Planted:
    """`must` fire while it lasts or soon after; `may` are consequences, nothing else is excused."""

    name: str
    lasts_s: float
    must: frozenset[str]
    may: frozenset[str]
    begin: Callable[["Watched"], Awaitable[None]]
    end: Callable[["Watched"], Awaitable[None]]


@dataclass
class Verdict:
    fault: str
    fired: dict[str, float]
    missed: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)


class ScrapedCluster(Cluster):
    """Each of its nodes listens where Prometheus is told."""

    def make_members(self) -> None:
        super().make_members()
        self.ports = {"api": self.api_port}
        for name in ROLES:
            if name != "api":
                port = free_port(0)
                assert port is not None
                self.ports[name] = port
                arguments = list(self.members[name].arguments)
                arguments[arguments.index("--port") + 1] = str(port)
                self.members[name].arguments = arguments


class Watched:
    """The cluster, its load, and the alerts of the Prometheus that scrapes it."""

    def __init__(self, cluster: ScrapedCluster, session: aiohttp.ClientSession, url: str) -> None:
        self.cluster = cluster
        self.session = session
        self.url = url
        self.failing_per_s = 0.0
        self.is_over = asyncio.Event()

    async def firing(self) -> set[str]:
        async with self.session.get(f"{self.url}/api/v1/alerts") as answer:
            alerts = (await answer.json())["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def targets_up(self) -> int:
        async with self.session.get(f"{self.url}/api/v1/targets") as answer:
            targets = (await answer.json())["data"]["activeTargets"]
        return sum(each["health"] == "up" for each in targets)

    async def load(self) -> None:
        """Steady: what changes is planted."""
        failing = 0.0
        while not self.is_over.is_set():
            await self.submit({"type": "chaos.work", "payload": {"request": "r", "seconds": 0.01}})
            failing += self.failing_per_s / RATE_PER_S
            if failing >= 1.0:
                failing -= 1.0
                payload = {"request": "r", "failures": 1}
                once = {"max_attempts": 1}
                await self.submit({"type": "chaos.work", "payload": payload, "retry": once})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0 / RATE_PER_S):
                    await self.is_over.wait()

    async def submit(self, body: dict[str, Any]) -> None:
        key = self.cluster.tenants[0].key
        body |= {"target": {"pool": POOL}}
        headers = {"Authorization": f"Bearer {key}"}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            url = f"{self.cluster.client_url}/v1/tasks"
            async with self.session.post(url, json=body, headers=headers):
                return

    def send(self, number: signal.Signals, *names: str) -> None:
        for name in names:
            self.cluster.members[name].send(number)


async def nothing(_watched: Watched) -> None:
    """It ends by itself."""


async def stop_schedulers(watched: Watched) -> None:
    watched.send(signal.SIGSTOP, "scheduler-1", "scheduler-2")


async def continue_schedulers(watched: Watched) -> None:
    watched.send(signal.SIGCONT, "scheduler-1", "scheduler-2")


async def stop_workers(watched: Watched) -> None:
    watched.send(signal.SIGSTOP, "worker-1", "worker-2")


async def continue_workers(watched: Watched) -> None:
    watched.send(signal.SIGCONT, "worker-1", "worker-2")


async def kill_worker(watched: Watched) -> None:
    watched.cluster.members["worker-1"].kill()


async def fail_tasks(watched: Watched) -> None:
    watched.failing_per_s = FAILING_PER_S


async def fail_none(watched: Watched) -> None:
    watched.failing_per_s = 0.0


def plan() -> list[Planted]:
    none: frozenset[str] = frozenset()
    return [
        Planted("nothing", CALM_S, none, none, nothing, nothing),
        Planted("a worker is killed and restarted", 30.0, none, none, kill_worker, nothing),
        Planted(
            "both schedulers stand still",
            60.0,
            frozenset({"DulySlotsWithoutOwner", "DulyNoMaintenanceLeader"}),
            LATE | {"DulyRoleFailing"},
            stop_schedulers,
            continue_schedulers,
        ),
        Planted(
            "both workers stand still",
            130.0,
            frozenset({"DulyNothingProcessed", "DulyPoolWithoutWorkers"}),
            LATE | {"DulyLeaseExpiryRate", "DulyLeasesRecovered"},
            stop_workers,
            continue_workers,
        ),
        Planted(
            "every third task fails for good",
            180.0,
            frozenset({"DulyDeadLetters", "DulyDeadLetterRate", "DulyFailedTasksFastBurn"}),
            frozenset({"DulyFailedTasksSlowBurn"}),
            fail_tasks,
            fail_none,
        ),
    ]


def compressed(rules: Path, factor: int) -> str:
    """Durations of ranges, and of `for`."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * SECONDS[found[3]] / factor
        return f"{found[1]}{max(round(seconds), 1)}s{found[4]}"

    text = re.sub(r"(\[)(\d+)([smhd])(\])", shorter, rules.read_text())
    return re.sub(r"(for: )(\d+)([smhd])()", shorter, text)


@contextlib.asynccontextmanager
async def prometheus(folder: Path, ports: dict[str, int], factor: int) -> AsyncIterator[str]:
    program = shutil.which("prometheus")
    assert program, "Prometheus is not installed (Debian: apt-get install prometheus)"
    for rules in (ALERTS, RECORDING):
        (folder / rules.name).write_text(compressed(rules, factor))
    targets = [f"127.0.0.1:{port}" for port in ports.values()]
    settings = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [RECORDING.name, ALERTS.name],
        "scrape_configs": [{"job_name": "duly", "static_configs": [{"targets": targets}]}],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    port = free_port(0)
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--query.lookback-delta=30s",
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def judged(watched: Watched, planted: Planted, before: set[str]) -> Verdict:
    """From its begin until all is quiet again, or SETTLE_S later."""
    fired: dict[str, float] = {}
    began = time.monotonic()
    await planted.begin(watched)
    while time.monotonic() < began + planted.lasts_s:
        note(fired, await watched.firing() - before, began)
        await asyncio.sleep(LOOK_S)
    await planted.end(watched)
    ended = time.monotonic()
    while time.monotonic() < ended + SETTLE_S:
        firing = await watched.firing() - before
        note(fired, firing, began)
        if not firing - LASTING and (planted.must <= fired.keys()):
            break
        await asyncio.sleep(LOOK_S)
    missed = sorted(planted.must - fired.keys())
    unexplained = sorted(fired.keys() - planted.must - planted.may)
    return Verdict(planted.name, fired, missed, unexplained)


def note(fired: dict[str, float], firing: set[str], began: float) -> None:
    for name in firing:
        fired.setdefault(name, round(time.monotonic() - began, 1))


async def run(folder: Path, factor: int) -> list[Verdict]:
    cluster = ScrapedCluster(folder, seed=1)
    verdicts: list[Verdict] = []
    async with (
        cluster.running(),
        prometheus(folder, cluster.ports, factor) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
        asyncio.TaskGroup() as group,
    ):
        watched = Watched(cluster, session, url)
        group.create_task(watched.load())
        try:
            await until_calm(watched, len(cluster.ports))
            for planted in plan():
                before = await watched.firing()
                verdicts.append(await judged(watched, planted, before))
                sys.stdout.write(json.dumps(vars(verdicts[-1])) + "\n")
                sys.stdout.flush()
        finally:
            watched.is_over.set()
    return verdicts


async def until_calm(watched: Watched, targets: int) -> None:
    """All are scraped, and what fires while a cluster starts has ended."""
    async with asyncio.timeout(SETTLE_S * 2):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                if await watched.targets_up() == targets and not await watched.firing() - LASTING:
                    break
            await asyncio.sleep(LOOK_S)
    await asyncio.sleep(CALM_S / 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.alerts", description=__doc__)
    parser.add_argument("--factor", type=int, default=FACTOR, help="durations are divided by it")
    parser.add_argument("--folder", type=Path, help="keep data and logs in this folder")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        verdicts = asyncio.run(run(folder.absolute(), arguments.factor))
    wrong = [verdict for verdict in verdicts if verdict.missed or verdict.unexplained]
    sys.stdout.write(f"{len(verdicts)} faults, {len(wrong)} with wrong alerts\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
