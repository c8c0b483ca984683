"""What nobody can be faster than: a page of a log, written over an old one and flushed, at the pace
of the waits and in turns with them. Where the disk stalls, whoever is measured waits for it, and a
look at this says so."""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from benchmarks.peers.driver import PER_S, latency_figures

PAGE = b"\x01" * 8192


class Disk:
    name = "the disk alone"
    rows = ("latency",)

    def __init__(self, flushes: int) -> None:
        self.flushes = flushes

    async def measure(self, _row: str) -> dict[str, float]:
        # Where the servers have their files, too.
        with tempfile.TemporaryDirectory(prefix="duly-peers-disk-") as folder:
            waits = await asyncio.to_thread(flush_at_pace, Path(folder) / "log", self.flushes)
        return latency_figures(waits)


def flush_at_pace(path: Path, flushes: int) -> list[float]:
    """Over a file that is whole already, as a server writes into its old segments."""
    log = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(log, PAGE * flushes, 0)
        os.fsync(log)
        began, waits = time.perf_counter(), []
        for number in range(flushes):
            time.sleep(max(0.0, began + number / PER_S - time.perf_counter()))
            asked = time.perf_counter()
            os.pwrite(log, PAGE, number * len(PAGE))
            os.fdatasync(log)
            waits.append(time.perf_counter() - asked)
    finally:
        os.close(log)
    return waits
