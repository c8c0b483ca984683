"""A cluster of processes that each do one thing: `duly serve --roles`."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from duly.environment import Environment
from duly.settings import ROLES
from duly.store.database import Database
from duly.store.keys import make_first_key
from tests.processes import child, eventually
from tests.story.duly_up import RunningDuly
from tests.story.hooks import call, hooks

pytestmark = pytest.mark.slow

Cluster = dict[str, RunningDuly]


@pytest.fixture
def cluster(owner_url: str, engine_url: str) -> Iterator[Cluster]:
    """One process for each role."""
    environ = {
        "DULY_DATABASE_URL": engine_url,
        "DULY_MIGRATION_DATABASE_URL": owner_url,
        "DULY_WEBHOOK_ALLOW_PRIVATE": "true",
    }
    with ExitStack() as stack:
        serve = ("-m", "duly", "serve", "--json", "--port", "0", "--roles")
        children = {
            role: stack.enter_context(child(*serve, role, environ=environ)) for role in ROLES
        }
        yield {role: RunningDuly(process) for role, process in children.items()}


@pytest.fixture
def key(engine_url: str) -> str:
    async def make() -> str:
        database = await Database.open(engine_url, 2)
        try:
            made = await make_first_key(database, Environment())
        finally:
            await database.close()
        assert made is not None
        return made

    return asyncio.run(make())


def test_a_task_passes_through_processes_that_each_do_one_thing(cluster: Cluster, key: str) -> None:
    """A role that needs another in its own process works on a laptop and nowhere else."""
    with hooks() as received:
        asked = {"type": "chaos.hook", "target": {"url": received.url}}
        status, task = call(cluster["api"], key, "POST", "/v1/tasks", asked)
        assert status == 201, task
        path = f"/v1/tasks/{task['id']}/wait?timeout_s=30"
        status, ended = call(cluster["api"], key, "GET", path)
    assert (status, ended["state"]) == (200, "COMPLETED")
    for duly in cluster.values():
        eventually(duly.is_ready, "every process is ready")


def test_a_process_does_only_what_it_was_told(cluster: Cluster, key: str) -> None:
    """An executor in the outer network that also serves the API is a door nobody knows of."""
    for role, duly in cluster.items():
        status, _ = duly.get("/v1/tasks")
        assert status == (401 if role == "api" else 404)
        assert ("role:executor" in duly.checks()) == (role == "executor")
        assert ("role:dispatcher" in duly.checks()) == (role == "scheduler")
        assert ("role:maintenance" in duly.checks()) == (role == "maintenance")

    def slots_by_roles() -> dict[str, int]:
        _, page = call(cluster["api"], key, "GET", "/v1/nodes")
        return {" ".join(node["roles"]): node["slots"] for node in page["items"]}

    expected = {role: 64 if role == "scheduler" else 0 for role in ROLES}
    eventually(lambda: slots_by_roles() == expected, "the scheduler has all slots")


def test_up_refuses_to_do_only_a_part(tmp_path: object) -> None:
    """No other process could do the rest: its ready queue is in its own memory."""
    environ = {"DULY_ROLES": "api", "DULY_DATA_DIR": str(tmp_path)}
    with child("-m", "duly", "up", "--port", "0", environ=environ) as process:
        assert process.wait() == 2
        assert "duly serve" in process.said_on_errors
