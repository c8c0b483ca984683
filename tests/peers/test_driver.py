"""The driver of the comparison on a real PostgreSQL and real processes, with duly as the peer.

duly speaks the same contract as the others, so nothing has to be installed for this.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from benchmarks.peers import driver
from benchmarks.peers.catalogue import DULY
from benchmarks.peers.contract import make_payload
from benchmarks.peers.driver import Bench, PeerFailed, Sizes, percentile
from benchmarks.peers.services import Postgres, database_of, open_postgres

SMALL = Sizes(single=20, backlog=300, paced=10, herd=30)


def make_bench(postgres: Postgres, folder: Path) -> Bench:
    bench = Bench(DULY, postgres, SMALL)
    bench.folder = folder
    return bench


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def ended_in(postgres: Postgres) -> int:
    owner = await asyncpg.connect(postgres.server.url(database_of(DULY)))
    try:
        return int(await owner.fetchval("SELECT count(*) FROM duly.attempts"))
    finally:
        await owner.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_row_is_measured_and_the_backlog_is_really_gone() -> None:
    """A rate of tasks that were never run, or a wait that nobody wrote down."""
    async with open_postgres() as postgres:
        bench = Bench(DULY, postgres, SMALL)
        figures = await bench.measure("drain_2")
        assert await ended_in(postgres) == SMALL.backlog
        figures |= await bench.measure("herd")
        # Nothing is left of the drain before it; 20 warmed up.
        assert await ended_in(postgres) == 20 + SMALL.herd
        figures |= await bench.measure("single")
    assert figures["drain_2_per_s"] > 0
    assert figures["bulk_per_s"] > 0
    assert 0 <= figures["herd_earliest_ms"] <= figures["herd_p50_ms"] <= figures["herd_p99_ms"]
    assert figures["single_per_s"] >= figures["single_1_caller_per_s"]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_drain_refuses_a_backlog_of_another_size() -> None:
    """A peer that stored less than it was told would seem to drain faster."""
    async with open_postgres() as postgres:
        bench = Bench(DULY, postgres, SMALL)
        whole = bench.bulk
        bench.bulk = lambda url: replace(whole(url), count=SMALL.backlog - 1)  # type: ignore[method-assign]
        with pytest.raises(PeerFailed, match="stored 299 tasks instead of 300"):
            await bench.measure("drain_1")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_consumer_that_dies_fails_its_row_and_leaves_no_process(tmp_path: Path) -> None:
    """A driver that waits for the dead waits for ever; one that forgets them fills the machine."""
    async with open_postgres() as postgres:
        bench = make_bench(postgres, tmp_path)
        pids: list[int] = []

        async def drain_nothing() -> None:
            async with bench.consumers("postgresql://nobody@127.0.0.1:1/none", 2) as children:
                pids.extend(child.process.pid for child in children)
                for child in children:
                    child.go()
                async with asyncio.timeout(driver.READY_MAX_S):
                    while True:
                        bench.check(children)
                        await asyncio.sleep(driver.POLL_S)

        with pytest.raises(PeerFailed):
            await drain_nothing()
    assert len(pids) == 2
    assert alive(pids) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_consumers_are_ended_when_the_driver_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a drain must not leave workers on the machine."""
    async with open_postgres() as postgres:
        bench = make_bench(postgres, tmp_path)
        pids: list[int] = []

        async def hold() -> None:
            async with bench.consumers(postgres.target.engine_url, 2) as children:
                pids.extend(child.process.pid for child in children)
                started.set()
                await asyncio.Event().wait()

        started = asyncio.Event()
        holding = asyncio.create_task(hold())
        async with asyncio.timeout(driver.READY_MAX_S):
            await started.wait()
        # The database's password is not in the process list either.
        commands = [command_line(pid) for pid in pids]
        assert all("duly_peer" in command for command in commands)
        assert not any(postgres.server.password in command for command in commands)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    assert alive(pids) == []


def test_a_payload_is_two_hundred_bytes_of_json() -> None:
    """Half the payload would be a different benchmark."""
    assert len(json.dumps(make_payload())) == 200
    assert len(json.dumps(make_payload(1_800_000_000.123456))) == 200


def test_a_percentile_of_few_values_is_one_of_them() -> None:
    """An index past the end, or an average that no task ever saw."""
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile([7.0], 99) == 7.0
