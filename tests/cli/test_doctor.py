"""`duly doctor` on real servers: a healthy one, one without duly, and one that somebody pins."""

from datetime import timedelta

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner

from duly.cli.main import group
from duly.domain.diagnosis import Facts, diagnose
from duly.environment import Environment
from duly.store.doctor import read_facts
from duly.store.migrate import read_migrations

LATEST = len(read_migrations())


async def facts_of(url: str) -> Facts:
    return await read_facts(url, Environment(), schema_wanted=LATEST)


def test_a_fresh_installation_is_fine_but_for_its_nodes(owner_url: str) -> None:
    """The test server is fast because it may lose commits, which is found too."""
    result = CliRunner().invoke(group, ["doctor", "--json", "--database-url", owner_url])
    items = msgspec.json.decode(result.stdout)["items"]
    found = {item["check"]: item["severity"] for item in items}
    assert found["version"] == found["schema"] == found["partitions"] == "ok"
    assert found["slots"] == "warning"
    assert all(item["remedy"] for item in items if item["severity"] != "ok")


def test_the_table_is_for_people(owner_url: str) -> None:
    """A remedy stands under what it is for."""
    result = CliRunner().invoke(group, ["doctor", "--database-url", owner_url])
    assert "no node is running" in result.stdout
    assert "-> start `duly up` or `duly serve`" in result.stdout


async def test_a_role_that_nobody_has_is_named(owner_url: str, owner: asyncpg.Connection) -> None:
    """Everything that runs is well, and no webhook is ever called."""
    add = """
        INSERT INTO duly.nodes (id, name, version, roles, started_at, seen_at, expires_at)
        VALUES (gen_random_uuid(), $1, '1', $2, duly.now(), duly.now(), duly.now() + $3)
    """
    await owner.execute(add, "front", ["api"], timedelta(hours=1))
    await owner.execute(add, "back", ["scheduler", "maintenance"], timedelta(hours=1))
    await owner.execute(add, "dead", ["executor"], timedelta(0))
    await owner.execute(
        "UPDATE duly.ownership SET expires_at = duly.now() + interval '1 hour',"
        " holder = (SELECT id FROM duly.nodes WHERE name = 'back') WHERE kind = 'slot'"
    )
    found = {finding.check: finding for finding in diagnose(await facts_of(owner_url))}
    assert found["roles"].severity == "warning"
    assert found["roles"].found == "no live node has the role executor: no webhook is called"
    assert found["slots"].found == "all 64 owned by 1 nodes"
    await owner.execute(add, "third", ["executor"], timedelta(hours=1))
    (line,) = [each for each in diagnose(await facts_of(owner_url)) if each.check == "roles"]
    assert line.severity == "ok"
    assert line.found == "api on front; scheduler on back; executor on third; maintenance on back"


async def test_a_role_that_fails_on_any_node_is_broken(
    owner_url: str, owner: asyncpg.Connection
) -> None:
    """Doctor said ok while no task was dispatched any more."""
    add = """
        INSERT INTO duly.nodes
               (id, name, version, roles, started_at, seen_at, expires_at, failing)
        VALUES (gen_random_uuid(), $1, '1', '{}', duly.now(), duly.now(), duly.now() + $2, $3)
    """
    hour = timedelta(hours=1)
    await owner.execute(add, "dead", timedelta(0), '{"loader": "failing"}')
    await owner.execute(add, "well", hour, "{}")
    (line,) = [each for each in diagnose(await facts_of(owner_url)) if each.check == "failing"]
    assert (line.severity, line.found) == ("ok", "no role fails")
    await owner.execute(add, "sick", hour, '{"dispatcher": "failing: OSError, 9 times in 4 s"}')
    (line,) = [each for each in diagnose(await facts_of(owner_url)) if each.check == "failing"]
    assert line.severity == "error"
    assert line.found == "dispatcher on sick: failing: OSError, 9 times in 4 s"
    assert line.remedy


async def test_a_maintenance_without_leader_is_told(
    owner_url: str, owner: asyncpg.Connection
) -> None:
    """Every alert on a figure of the installation is silent then, because nothing exports it."""
    await owner.execute(
        """
        INSERT INTO duly.nodes (id, name, version, roles, started_at, seen_at, expires_at)
        VALUES (gen_random_uuid(), 'n', '1', '{maintenance}', duly.now(), duly.now(),
                duly.now() + interval '1 hour')
        """
    )
    (line,) = [each for each in diagnose(await facts_of(owner_url)) if each.check == "leader"]
    assert line.severity == "warning"
    assert "no process leads the maintenance" in line.found
    await owner.execute(
        "UPDATE duly.ownership SET expires_at = duly.now() + interval '1 hour',"
        " holder = (SELECT id FROM duly.nodes) WHERE kind = 'maintenance'"
    )
    (line,) = [each for each in diagnose(await facts_of(owner_url)) if each.check == "leader"]
    assert (line.severity, line.found) == (
        "ok",
        "n leads the maintenance, and serves its metrics",
    )


async def test_a_workflow_that_nothing_goes_on_with_is_told(
    owner_url: str, owner: asyncpg.Connection
) -> None:
    """Its deadline passed, its callback is due, and every process is well."""
    await owner.execute(
        """
        INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
        VALUES (0, 1, gen_random_uuid(), 'deadline', duly.now() - interval '90 s')
        """
    )
    (line,) = [each for each in diagnose(await facts_of(owner_url)) if each.check == "overdue"]
    assert line.severity == "error"
    assert line.found.startswith("overdue: something that a workflow has to do for 9")


async def test_a_database_without_duly_is_told_so(empty_url: str) -> None:
    """Half of the checks have nothing to look at, and that is said instead of a traceback."""
    findings = {finding.check: finding for finding in diagnose(await facts_of(empty_url))}
    assert findings["schema"].remedy == "run `duly migrate`"
    assert "slots" not in findings


async def test_whoever_pins_old_rows_is_named(
    owner_url: str, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a name nobody knows which session to end."""
    monkeypatch.setattr("duly.domain.diagnosis.SNAPSHOT_AGE_S_MAX", 0.0)
    async with owner.transaction(isolation="repeatable_read"):
        await owner.fetch("SELECT count(*) FROM duly.tasks")
        findings = {finding.check: finding for finding in diagnose(await facts_of(owner_url))}
    assert f"pid {owner.get_server_pid()}" in findings["xmin"].found
