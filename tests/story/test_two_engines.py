"""Two processes that schedule and work on one database; one is killed, one is frozen."""

import contextlib
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.submit import Submitter
from duly.store.tenants import TenantLimits, create_tenant
from tests.processes import Child, child, eventually
from tests.servers import ServerOfTheRun
from tests.story.engine_process import LEASE_S

pytestmark = pytest.mark.slow

CAP = 4
CAPPED_TASKS = 60
FREE_TASKS = 200
FREE_TENANT = 1000
URL = "http://receiver.example/hook"
# Leases, slots and tickets run out, twice, and the capped work waits for all three.
PATIENCE_S = 60.0
LIVE = "SELECT count(*) FROM duly.timers"
ENDED = "SELECT count(*) FROM duly.attempts WHERE state IS NOT NULL"
ATTEMPTS = """
SELECT id::text, tenant, fence, started_at, ended_at, outcome
  FROM duly.attempts ORDER BY started_at, fence
"""


@contextlib.contextmanager
def engine_process(engine_url: str, file: Path) -> Iterator[Child]:
    with child("-m", "tests.story.engine_process", engine_url, str(file)) as process:
        process.answer()
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)


async def store_tasks(engine_url: str) -> int:
    """The capped tenant's and somebody else's; answers the capped tenant."""
    database = await Database.open(engine_url, 2)
    try:
        tenant = await create_tenant(database, "capped", TenantLimits(in_flight_max=CAP))
        assert tenant is not None
        submitter = Submitter(database, Environment())
        submitter.tenant_shards.at_home = frozenset({tenant.id})
        await submitter.submit([task(tenant.id) for _ in range(CAPPED_TASKS)])
        await submitter.submit([task(FREE_TENANT + n) for n in range(FREE_TASKS)])
        return tenant.id
    finally:
        await database.close()


def task(tenant: int) -> Submission:
    return Submission(tenant=tenant, type="t", url=URL)


def test_no_task_has_two_holders_and_no_cap_is_passed_whatever_dies(
    server: ServerOfTheRun, owner_url: str, engine_url: str, tmp_path: Path
) -> None:
    """A frozen process wakes with leases in its hands, a killed one leaves them behind: nothing may
    be held twice, nothing above its cap, and everything must end."""
    owner = server.run(asyncpg.connect(owner_url))
    files = [tmp_path / "frozen", tmp_path / "killed", tmp_path / "third"]
    try:
        with engine_process(engine_url, files[0]) as frozen:
            with engine_process(engine_url, files[1]) as killed:
                tenant = server.run(store_tasks(engine_url))
                eventually(lambda: all(lines(file) for file in files[:2]), "both work")
                frozen.signal(signal.SIGSTOP)
                # Its leases and its slots are over when somebody else runs what it held.
                held = running(files[0])
                eventually(lambda: held <= started(files[1]), "the other took over", 4 * LEASE_S)
                killed.kill()
            frozen.signal(signal.SIGCONT)
            with engine_process(engine_url, files[2]):
                eventually(lambda: left(server, owner) == 0, "all tasks ended", PATIENCE_S)
        attempts = server.run(owner.fetch(ATTEMPTS))
        assert server.run(owner.fetchval(ENDED)) == CAPPED_TASKS + FREE_TASKS
    finally:
        server.run(owner.close())
    assert any(attempt["outcome"] == "lease_lost" for attempt in attempts)
    check_one_holder(attempts)
    check_cap([attempt for attempt in attempts if attempt["tenant"] == tenant])
    check_effects(files, attempts)


def left(server: ServerOfTheRun, owner: asyncpg.Connection) -> int:
    live: int = server.run(owner.fetchval(LIVE))
    return live


def lines(file: Path) -> list[list[str]]:
    """Whole lines only: the last one may be half written."""
    text = file.read_text() if file.exists() else ""
    return [line.split() for line in text.split("\n")[:-1]]


def started(file: Path) -> set[str]:
    return {task_id for word, task_id, _ in lines(file) if word == "start"}


def running(file: Path) -> set[str]:
    ended = {task_id for word, task_id, _ in lines(file) if word == "end"}
    return started(file) - ended


def check_one_holder(attempts: list[asyncpg.Record]) -> None:
    by_task = defaultdict(list)
    for attempt in attempts:
        by_task[attempt["id"]].append(attempt)
    for of_task in by_task.values():
        for earlier, later in pairwise(of_task):
            assert earlier["fence"] < later["fence"], "a fence did not rise"
            assert earlier["ended_at"] <= later["started_at"], "two holders at once"


def check_cap(attempts: list[asyncpg.Record]) -> None:
    """Ends go before starts of the same instant: the later lease saw the earlier one's end."""
    events = [(attempt["started_at"], 1) for attempt in attempts]
    events += [(attempt["ended_at"], -1) for attempt in attempts]
    in_flight = most = 0
    for _, change in sorted(events):
        in_flight += change
        most = max(most, in_flight)
    assert most == CAP


def check_effects(files: list[Path], attempts: list[asyncpg.Record]) -> None:
    """Every start that anybody saw is one recorded attempt, and no attempt was run twice."""
    starts = Counter(
        (task_id, int(fence))
        for file in files
        for word, task_id, fence in lines(file)
        if word == "start"
    )
    recorded = {(attempt["id"], attempt["fence"]) for attempt in attempts}
    assert starts.keys() <= recorded
    assert set(starts.values()) == {1}
