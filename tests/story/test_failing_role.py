"""A role that fails at every tick in a real process: readiness, status, doctor, metric say so."""

import pytest
from click.testing import CliRunner
from msgspec.json import decode

from duly.cli.main import group
from tests.processes import child, eventually
from tests.story.duly_up import RunningDuly
from tests.story.installation import Installation

pytestmark = pytest.mark.slow

# The role `bounds` reads them at every tick.
FORBID = "REVOKE SELECT ON duly.pauses FROM duly_engine, duly_tenant"
ALLOW = "GRANT SELECT ON duly.pauses TO duly_engine, duly_tenant"
LINES_MAX = 20


def test_a_role_that_fails_at_every_tick_is_seen_everywhere(installation: Installation) -> None:
    """Nothing was dispatched any more, and /readyz, status and doctor said that all was well."""
    key = installation.make_key()
    arguments = ("-m", "duly", "serve", "--json", "--port", "0")
    with child(*arguments, environ=installation.environ) as process:
        running = RunningDuly(process)
        eventually(running.is_ready, "it is ready")
        installation.fetch(FORBID)
        try:
            eventually(lambda: not running.is_ready(), "readiness tells")
            problem = running.checks()["role:bounds"]
            assert "failing: InsufficientPrivilegeError" in problem
            assert b'duly_role_failing{role="bounds"} 1.0' in running.get("/metrics")[1]
            eventually(lambda: failing_by_status(running.url, key), "status tells")
            assert "bounds" in failing_by_status(running.url, key)
            told = diagnosed(installation)
            assert (told["severity"], "bounds on" in told["found"]) == ("error", True)
        finally:
            installation.fetch(ALLOW)
        eventually(running.is_ready, "ready again")
        eventually(lambda: "role recovered" in process.said_on_errors, "the log tells the end")
        eventually(lambda: not failing_by_status(running.url, key), "status tells the end")
        failed = [line for line in process.errors if "tick failed" in line]
        assert 0 < len(failed) <= LINES_MAX


def failing_by_status(url: str, key: str) -> dict[str, str]:
    result = CliRunner().invoke(group, ["status", "--json", "--url", url, "--api-key", key])
    (node,) = [each for each in decode(result.stdout)["nodes"] if each["is_live"]]
    failing: dict[str, str] = node["failing"]
    return failing


def diagnosed(installation: Installation) -> dict[str, str]:
    url = installation.environ["DULY_DATABASE_URL"]
    result = CliRunner().invoke(group, ["doctor", "--json", "--database-url", url])
    assert result.exit_code == 1
    found: dict[str, str]
    (found,) = [item for item in decode(result.stdout)["items"] if item["check"] == "failing"]
    return found
