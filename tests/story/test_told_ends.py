"""kill -9 of the server as it tells of a task's end: told by the next process, and once."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from duly.client.errors import Unreachable
from duly.client.http_sync import PlainConnection
from duly.client.server import Server
from duly.environment import CrashPoint
from tests.processes import doomed, eventually
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "point",
    [
        CrashPoint.SETTLE_AFTER_COMMIT,
        CrashPoint.CALLBACK_BEFORE_COMMIT,
        CrashPoint.CALLBACK_AFTER_COMMIT,
    ],
)
def test_the_end_of_a_task_is_told_once_after_a_kill(tmp_path: Path, point: CrashPoint) -> None:
    """A caller that relies on its callback asks nothing: an end that is not told is lost to it."""
    callback = {"type": "order.told", "target": {"pool": "told"}}
    asked = {"type": "order.pay", "target": {"pool": "pay"}, "callback": callback}
    up = ("-m", "duly", "up", "--json", "--port", "0", "--data-dir", str(tmp_path))
    with doomed(point, *up) as process:
        dying = RunningDuly(process)
        key = dying.ready["api_key"]
        with PlainConnection(Server(dying.url, key)) as connection:
            task = connection.call("POST", "/v1/tasks", asked)
            (lease,) = leased(connection, "pay")
            settlement = {"id": lease["id"], "fence": lease["fence"], "outcome": "completed"}
            body = {"worker_id": "w", "settlements": [settlement | {"result": {"paid": 7}}]}
            with contextlib.suppress(Unreachable):
                connection.call("POST", "/v1/worker/settle", body)
    with (
        duly_up("--data-dir", str(tmp_path)) as running,
        PlainConnection(Server(running.url, key)) as connection,
    ):
        eventually(lambda: told(connection), "it is told")
        (lease,) = leased(connection, "told")
        assert lease["payload"] == {
            "task": task["id"],
            "type": "order.pay",
            "state": "COMPLETED",
            "result": {"paid": 7},
        }
        assert len(told(connection)) == 1


def told(connection: PlainConnection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.call("GET", "/v1/tasks?type=order.told")["items"]
    return found


def leased(connection: PlainConnection, pool: str) -> list[dict[str, Any]]:
    body = {"worker_id": "w", "pools": [pool], "wait_s": 10}
    found: list[dict[str, Any]] = connection.call("POST", "/v1/worker/lease", body)["tasks"]
    return found
