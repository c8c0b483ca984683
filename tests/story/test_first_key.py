"""A cluster on a fresh database: one command makes its first key, and only one."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import msgspec
import pytest

from tests.processes import Child, child
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, announcement
from tests.story.hooks import call

pytestmark = pytest.mark.slow

CREATE_FIRST = ("-m", "duly", "keys", "create", "--first", "--json")
SERVE = ("-m", "duly", "serve", "--port", "0")


@pytest.fixture
def environ(server: ServerOfTheRun) -> Iterator[Mapping[str, str]]:
    """A database that duly never touched."""
    with server.database("template0") as name:
        yield {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
            "DULY_URL": "",
            "DULY_API_KEY": "",
        }


def ended(process: Child) -> tuple[int, str, str]:
    code = process.wait()
    lines = []
    while line := process.lines.get():
        lines.append(line)
    return code, "\n".join(lines), process.said_on_errors


def test_one_command_makes_the_first_key_of_a_cluster(environ: Mapping[str, str]) -> None:
    """`duly serve` makes no key: without the command nobody could ever get in."""
    with ExitStack() as stack:
        cluster = [
            RunningDuly(stack.enter_context(child(*SERVE, "--json", environ=environ)))
            for _ in range(2)
        ]
        assert [duly.ready["api_key"] for duly in cluster] == [None, None]
        at_once = [stack.enter_context(child(*CREATE_FIRST, environ=environ)) for _ in range(2)]
        (code, said, _), (refused, nothing, problem) = sorted(map(ended, at_once))
        assert (code, refused, nothing) == (0, 1, "")
        assert msgspec.json.decode(problem)["code"] == "keys_exist"
        made = msgspec.json.decode(said)
        assert (made["role"], made["reach"], made["tenant"]) == ("admin", "installation", "default")
        for duly in cluster:
            status, task = call(duly, made["key"], "POST", "/v1/tasks", {"type": "first.task"})
            assert status == 201, task
        again = stack.enter_context(child(*CREATE_FIRST[:-1], environ=environ))
        code, nothing, line = ended(again)
        assert (code, nothing) == (1, "")
        assert line.startswith("duly: there is an admin's key")
        assert "duly keys create NAME --role ROLE" in line


def test_a_server_without_keys_says_which_command_makes_one(environ: Mapping[str, str]) -> None:
    """A reader of its output must not have to find the page of the manual first."""
    with ExitStack() as stack:
        fresh = stack.enter_context(child(*SERVE, environ=environ))
        assert "duly keys create --first" in announcement(fresh)
        logged = stack.enter_context(child(*SERVE, "--json", environ=environ))
        logged.line()
        fresh.close()
        logged.close()
        assert "duly keys create --first" in logged.said_on_errors
        assert ended(stack.enter_context(child(*CREATE_FIRST, environ=environ)))[0] == 0
        later = stack.enter_context(child(*SERVE, environ=environ))
        assert "keys create" not in announcement(later)


def test_an_installation_that_revoked_all_its_keys_gets_a_new_one(
    environ: Mapping[str, str],
) -> None:
    """After a leak all keys are revoked; without this command the installation would be lost."""
    with ExitStack() as stack:
        made = ended(stack.enter_context(child(*CREATE_FIRST, environ=environ)))
        key = msgspec.json.decode(made[1])["key"]
        duly = RunningDuly(stack.enter_context(child(*SERVE, "--json", environ=environ)))
        key_id = key.split("_")[1]
        assert call(duly, key, "DELETE", f"/v1/keys/{key_id}")[0] == 200
        code, said, _ = ended(stack.enter_context(child(*CREATE_FIRST, environ=environ)))
        assert code == 0
        assert call(duly, msgspec.json.decode(said)["key"], "GET", "/v1/keys")[0] == 200
