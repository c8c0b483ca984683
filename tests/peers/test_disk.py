"""The floor of the comparison's waits: pages that really reach the file, at their pace."""

import asyncio
import time
from pathlib import Path

import pytest
from benchmarks.peers.disk import PAGE, Disk, flush_at_pace
from benchmarks.peers.driver import PER_S


def test_every_page_is_written_and_timed(tmp_path: Path) -> None:
    """A floor that does nothing would make everybody look slow."""
    began = time.perf_counter()
    waits = flush_at_pace(tmp_path / "log", 5)
    assert time.perf_counter() - began >= 4 / PER_S
    assert len(waits) == 5
    assert min(waits) > 0
    assert (tmp_path / "log").read_bytes() == PAGE * 5


def test_it_has_the_figures_of_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown beside those of the systems, under the same names, and leaving nothing behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    figures = asyncio.run(Disk(3).measure("latency"))
    assert figures.keys() == {"latency_p50_ms", "latency_p99_ms"}
    assert list(tmp_path.iterdir()) == []
