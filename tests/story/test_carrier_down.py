"""The carrier's state in a real process beside a real Redis: status, nodes and doctor tell it."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.json import decode

from duly.cli.main import group
from tests.broker.broker_programs import redis_server
from tests.processes import child, eventually
from tests.story.duly_up import RunningDuly
from tests.story.installation import Installation

pytestmark = pytest.mark.slow


def test_a_carrier_that_is_down_is_seen_everywhere(
    installation: Installation, tmp_path: Path
) -> None:
    """Tickets took the other way, half a second later each, and only a metric knew."""
    key = installation.make_key()
    with redis_server(tmp_path) as redis:
        environ = {**installation.environ, "DULY_CARRIER": redis.url}
        with child("-m", "duly", "serve", "--json", "--port", "0", environ=environ) as process:
            running = RunningDuly(process)
            eventually(running.is_ready, "it is ready")
            flags = ["--json", "--url", running.url, "--api-key", key]
            eventually(lambda: carrier_of(flags) == ("redis", redis.url, None), "nodes tell: up")
            assert told(flags) == []
            assert diagnosed(installation) == ("ok", f"redis {redis.url} is up")
            redis.kill()
            eventually(lambda: told(flags) != [], "status tells")
            (problem,) = told(flags)
            assert f"carrier {redis.url} is down, tasks go through PostgreSQL" in problem
            severity, found = diagnosed(installation)
            assert severity == "warning"
            assert f"redis {redis.url} takes no tickets" in found
            assert running.is_ready(), "tasks go on through PostgreSQL"
            redis.start()
            eventually(lambda: told(flags) == [], "status tells the end")


def run(*arguments: str) -> Any:
    return decode(CliRunner().invoke(group, arguments).stdout)


def carrier_of(flags: list[str]) -> tuple[str, str, str | None] | None:
    """None before the only node was seen."""
    for node in run("nodes", "list", *flags)["items"]:
        if node["is_live"]:
            return node["carrier"]["kind"], node["carrier"]["address"], node["carrier"]["problem"]
    return None


def told(flags: list[str]) -> list[str]:
    return [each for each in run("status", *flags)["problems"] if "carrier" in each]


def diagnosed(installation: Installation) -> tuple[str, str]:
    url = installation.environ["DULY_DATABASE_URL"]
    items = run("doctor", "--json", "--database-url", url)["items"]
    (found,) = [item for item in items if item["check"] == "carrier"]
    return found["severity"], found["found"]
