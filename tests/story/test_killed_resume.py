"""kill -9 of the server within a resume: nothing of it is there, and it can be asked again."""

import contextlib
from pathlib import Path

import pytest

from duly.client.errors import Unreachable
from duly.client.http_sync import PlainConnection
from duly.client.server import Server
from duly.environment import CrashPoint
from tests.processes import doomed
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow

GRAPH = {
    "name": "order",
    "nodes": {"pay": {"type": "order.pay"}, "ship": {"type": "order.ship", "after": ["pay"]}},
}


@pytest.mark.parametrize("point", [CrashPoint.RESUME_BETWEEN])
def test_half_a_resume_is_none(tmp_path: Path, point: CrashPoint) -> None:
    """A new workflow without what it reuses would run again what was done."""
    up = ("-m", "duly", "up", "--json", "--port", "0", "--data-dir", str(tmp_path))
    with doomed(point, *up) as process:
        dying = RunningDuly(process)
        key = dying.ready["api_key"]
        with PlainConnection(Server(dying.url, key)) as connection:
            workflow = connection.call("POST", "/v1/workflows", GRAPH)["id"]
            connection.call("POST", f"/v1/workflows/{workflow}/cancel")
            with contextlib.suppress(Unreachable):
                connection.call("POST", f"/v1/workflows/{workflow}/resume")
    with (
        duly_up("--data-dir", str(tmp_path)) as running,
        PlainConnection(Server(running.url, key)) as connection,
    ):
        (only,) = connection.call("GET", "/v1/workflows")["items"]
        assert (only["id"], only["state"]) == (workflow, "CANCELLED")
        resumed = connection.call("POST", f"/v1/workflows/{workflow}/resume")
        assert resumed["state"] == "RUNNING"
        assert len(connection.call("GET", "/v1/workflows")["items"]) == 2
