"""SIGTERM while PostgreSQL hangs: nobody answers, and the process must be gone all the same."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duly.environment import Environment
from duly.store.embedded import EmbeddedPostgres, processes_in
from tests.processes import child
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow
STOP_S = 2.0
# Three seconds to cut connections and to find that the server does not answer; and a busy machine.
SLACK_S = 15.0


@contextlib.contextmanager
def hung(cluster: Path) -> Iterator[None]:
    """Every process of the server stands still, as on a disk that does not answer."""
    pids = processes_in(cluster)
    assert pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def seconds_to_end(duly: RunningDuly) -> float:
    """With a caller in the middle of a request that nobody will answer."""
    with ThreadPoolExecutor(1) as callers:
        asking = callers.submit(duly.get, "/readyz")
        began = time.monotonic()
        duly.process.signal(signal.SIGTERM)
        duly.process.wait()
        took_s = time.monotonic() - began
        asking.exception()
    return took_s


def test_duly_up_stops_in_time_though_its_postgresql_hangs(tmp_path: Path) -> None:
    """A supervisor kills what does not stop, and a laptop would not shut down."""
    flags = ("--data-dir", str(tmp_path))
    with duly_up(*flags, environ={"DULY_STOP_TIMEOUT_S": str(STOP_S)}) as duly:
        with hung(tmp_path / "postgres"):
            assert seconds_to_end(duly) < STOP_S + SLACK_S
        assert "it was told to stop" in duly.process.said_on_errors
        assert "Traceback" not in duly.process.said_on_errors
    # What it was asked, the server does as soon as it can.
    with duly_up(*flags) as again:
        assert again.is_ready()


def test_duly_serve_stops_in_time_though_postgresql_hangs(tmp_path: Path) -> None:
    """The commonest time to restart a process is when its database is in trouble."""
    embedded = EmbeddedPostgres(tmp_path, Environment())
    server = embedded.attach()
    try:
        environ = {
            "DULY_DATABASE_URL": server.url("postgres"),
            "DULY_STOP_TIMEOUT_S": str(STOP_S),
        }
        with child("-m", "duly", "serve", "--json", "--port", "0", environ=environ) as process:
            duly = RunningDuly(process)
            with hung(tmp_path / "postgres"):
                assert seconds_to_end(duly) < STOP_S + SLACK_S
            assert process.process.returncode == 0
            assert "Traceback" not in process.said_on_errors
    finally:
        embedded.leave()
