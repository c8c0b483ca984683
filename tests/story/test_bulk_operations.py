"""kill -9 of the server in the middle of a bulk operation: the next process ends it, and no task is
moved twice."""

from pathlib import Path

import pytest

from duly.client.http_sync import PlainConnection
from duly.client.server import Server
from duly.environment import CrashPoint
from tests.processes import doomed, eventually
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow

COUNT = 30


@pytest.mark.parametrize("point", [CrashPoint.BULK_BEFORE_COMMIT, CrashPoint.BULK_AFTER_COMMIT])
def test_a_bulk_operation_outlives_the_kill_of_its_process(
    tmp_path: Path, point: CrashPoint
) -> None:
    """The page that started it is closed, and the process that ran it is gone."""
    asked = {"action": "reschedule", "filter": {"type": "a.b"}, "delay_s": 7200, "rate_per_s": 10}
    tasks = [{"type": "a.b", "delay_s": 3600} for _ in range(COUNT)]
    up = ("-m", "duly", "up", "--json", "--port", "0", "--data-dir", str(tmp_path))
    with doomed(point, *up) as process:
        dying = RunningDuly(process)
        key = dying.ready["api_key"]
        with PlainConnection(Server(dying.url, key)) as connection:
            made = connection.call("POST", "/v1/tasks/batch", {"tasks": tasks})
            operation = connection.call("POST", "/v1/bulk", asked)
    ids = [task["id"] for task in made["items"]]
    path = f"/v1/bulk/{operation['id']}"
    with (
        duly_up("--data-dir", str(tmp_path)) as running,
        PlainConnection(Server(running.url, key)) as connection,
    ):
        eventually(lambda: connection.call("GET", path)["state"] == "DONE", "it ends")
        ended = connection.call("GET", path)
        fences = [connection.call("GET", f"/v1/tasks/{each}")["fence"] for each in ids]
    assert (ended["done"], ended["refused"]) == (COUNT, 0)
    assert fences == [1] * COUNT
