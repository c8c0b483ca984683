"""A server that is stopped or killed while a tenant's schema runs away in its process."""

import json
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.processes import eventually, is_alive
from tests.story.duly_up import RunningDuly, duly_up

RUNAWAY = {"pattern": "((a{0,40}){0,40}){0,40}x"}


def call(duly: RunningDuly, method: str, path: str, body: dict[str, Any]) -> None:
    headers = {
        "Authorization": f"Bearer {duly.ready['api_key']}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(
        duly.url + path, json.dumps(body).encode(), headers, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status < 300


def children_of(pid: int) -> set[int]:
    """Those that check payloads."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and "duly.validation.child" in command:
            found.add(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_server_whose_schema_runs_away(
    owner_url: str, engine_url: str, number: signal.Signals
) -> None:
    """SIGTERM was not heard for minutes, and what runs on alone is ended by nobody."""
    environ = {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}
    with duly_up(environ=environ) as duly:
        call(duly, "PUT", "/v1/task-types/costly", {"schema": RUNAWAY})
        call(duly, "POST", "/v1/tasks", {"type": "costly", "payload": "x", "delay_s": 3600})
        started = children_of(duly.process.pid)
        assert started

        def attack() -> None:
            body = {"type": "costly", "payload": "a" * 60_000}
            try:
                call(duly, "POST", "/v1/tasks", body)
            except OSError:
                return  # refused, or cut off

        attacking = threading.Thread(target=attack)
        attacking.start()
        duly.process.signal(number)
        code = duly.process.wait()
        assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
        assert "Traceback" not in duly.process.said_on_errors
        eventually(lambda: not any(is_alive(pid) for pid in started), "its processes are gone")
        attacking.join(60)
