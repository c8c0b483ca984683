"""kill -9 of the server in the middle of a call, and a client that tries again: nothing is lost,
nothing happens twice (I1, I8)."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duly.client.errors import Unreachable
from duly.client.synchronous import Client, Task
from duly.environment import CrashPoint
from tests.processes import Child, child, doomed
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def doomed_duly(data_dir: Path, point: CrashPoint) -> Iterator[RunningDuly]:
    """It dies, as if the power went, when it first comes to the point."""
    arguments = ("-m", "duly", "up", "--json", "--port", "0", "--data-dir", str(data_dir))
    with doomed(point, *arguments) as process:
        yield RunningDuly(process)


def stored_tasks(client: Client) -> list[Task[Any]]:
    return list(client.tasks(type="a.b"))


@pytest.mark.parametrize("point", [CrashPoint.SUBMIT_BEFORE, CrashPoint.SUBMIT_AFTER_COMMIT])
@pytest.mark.parametrize("count", [1, 30])
def test_a_submit_that_met_a_killed_server_is_stored_once(
    tmp_path: Path, point: CrashPoint, count: int
) -> None:
    """Before the commit nothing is stored, after it everything; the caller cannot know which."""
    specs: list[Any] = [
        {"type": "a.b", "payload": n, "delay_s": 3600, "idempotency_key": f"key-{n}"}
        for n in range(count)
    ]
    with doomed_duly(tmp_path, point) as dying:
        key = dying.ready["api_key"]
        with Client(dying.url, key, tries=1) as client, pytest.raises(Unreachable):
            client.submit_many(specs)
    with duly_up("--data-dir", str(tmp_path)) as running, Client(running.url, key) as client:
        tasks = client.submit_many(specs)
        assert len({task.id for task in tasks}) == count
        assert {task.id for task in stored_tasks(client)} == {task.id for task in tasks}


def test_a_client_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    """Its own retries carry one key through the kill, so that the restarted server stores once."""
    with doomed_duly(tmp_path, CrashPoint.SUBMIT_AFTER_COMMIT) as dying:
        key, url = dying.ready["api_key"], dying.url
        port = url.rpartition(":")[2]
        with Client(url, key, tries=20) as client:
            loop = client.running_loop()
            pending = asyncio.run_coroutine_threadsafe(
                client.asynchronous.submit("a.b", 1, delay_s=3600), loop
            )
            assert dying.process.wait() == -9
            with restarted(tmp_path, port):
                task = pending.result(timeout=60)
                assert [stored.id for stored in stored_tasks(client)] == [task.id]


@contextlib.contextmanager
def restarted(data_dir: Path, port: str) -> Iterator[Child]:
    arguments = ["--data-dir", str(data_dir), "--port", port]
    with child("-m", "duly", "up", "--json", *arguments) as process:
        process.answer()
        yield process
