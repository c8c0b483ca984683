"""The driver of the comparison on a real PostgreSQL and real processes, with duly as the peer.

duly speaks the same contract as the others, so nothing has to be installed for this.
"""

import asyncio
import json
from pathlib import Path

import asyncpg
import pytest
from benchmarks.peers import driver
from benchmarks.peers.catalogue import DULY
from benchmarks.peers.contract import make_payload
from benchmarks.peers.driver import Bench, PeerFailed, Sizes, percentile
from benchmarks.peers.services import Postgres, open_postgres

SMALL = Sizes(single=20, backlog=300, paced=10, herd=30)


def make_bench(postgres: Postgres, folder: Path) -> Bench:
    bench = Bench(DULY, postgres, SMALL)
    bench.folder = folder
    return bench


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_row_is_measured_and_the_backlog_is_really_gone() -> None:
    """A rate of tasks that were never run, or a wait that nobody wrote down."""
    async with open_postgres() as postgres:
        bench = Bench(DULY, postgres, SMALL)
        figures = await bench.measure("drain_2")
        figures |= await bench.measure("herd")
        figures |= await bench.measure("single")
        # Singles stay behind, and a drain refuses to start on a backlog that is not its own.
        with pytest.raises(PeerFailed, match="stored 324 tasks instead of 300"):
            await bench.measure("drain_1")
        owner = await asyncpg.connect(postgres.place.owner_url)
        ended = await owner.fetchval("SELECT count(*) FROM duly.attempts")
        await owner.close()
    assert figures["drain_2_per_s"] > 0
    assert figures["bulk_per_s"] > 0
    assert 0 <= figures["herd_earliest_ms"] <= figures["herd_p50_ms"] <= figures["herd_p99_ms"]
    assert figures["single_per_s"] >= figures["single_1_caller_per_s"]
    # A drain of 300, 20 to warm up, a herd of 30.
    assert ended == 300 + 20 + 30


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
            async with bench.consumers(postgres.place.engine_url, 2) as children:
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
