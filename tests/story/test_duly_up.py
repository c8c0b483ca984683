"""`duly up` as a person or a supervisor meets it: ready, asked, stopped, killed, started again."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import Client
from duly.store.embedded import processes_in
from tests.processes import child, eventually, is_alive, kill_all
from tests.store.folders import server_folder
from tests.story.duly_up import RunningDuly, announcement, duly_up, embedded_duly


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


def external(owner_url: str, engine_url: str) -> dict[str, str]:
    return {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}


def test_on_an_external_database_it_says_one_ready_line_and_answers(
    owner_url: str, engine_url: str
) -> None:
    """Scripts wait for that line; whatever comes after it must already work."""
    with duly_up(environ=external(owner_url, engine_url)) as duly:
        assert duly.ready.keys() == {"url", "api_key", "data_dir", "dashboard"}
        assert duly.ready["data_dir"] is None
        assert duly.get("/healthz")[0] == 200
        assert duly.get("/readyz")[0] == 200
        status, numbers = duly.get("/metrics")
        assert status == 200
        assert b"duly_build_info" in numbers
        assert duly.get("/nowhere")[0] == 404
        duly.process.signal(signal.SIGTERM)
        assert duly.process.wait() == 0
        assert "Traceback" not in duly.process.said_on_errors


def test_it_migrates_an_empty_external_database(empty_url: str) -> None:
    """The first start is where most people decide whether to go on."""
    with duly_up(environ={"DULY_DATABASE_URL": empty_url}) as duly:
        assert duly.checks() | {"schema": "ok"} == duly.checks()


def test_a_later_start_says_where_the_key_is(
    owner_url: str, engine_url: str, tmp_path: Path
) -> None:
    """The key is shown once; who did not keep it sees a second start that says nothing of keys."""
    up = ("-m", "duly", "up", "--port", "0", "--data-dir", str(tmp_path))
    with child(*up, environ=external(owner_url, engine_url)) as first:
        assert "keep it" in announcement(first)
    with child(*up, environ=external(owner_url, engine_url)) as second:
        assert "API key   as before; `duly env` prints it" in announcement(second)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_leaves_no_process(
    data_dir: Path, number: signal.Signals
) -> None:
    """A PostgreSQL left behind holds memory, a port, and the user's trust."""
    with embedded_duly(data_dir) as duly:
        assert duly.ready["data_dir"] == str(data_dir)
        servers = processes_in(data_dir / "postgres")
        assert servers
        duly.process.signal(number)
        assert duly.process.wait() == 0
        assert "Traceback" not in duly.process.said_on_errors
    assert not any(is_alive(pid) for pid in servers)
    assert processes_in(data_dir / "postgres") == set()


def test_a_port_in_use_is_one_line_and_exit_code_2(owner_url: str, engine_url: str) -> None:
    """The commonest failure of all, on every laptop with two terminals."""
    environ = external(owner_url, engine_url)
    with duly_up(environ=environ) as duly:
        port = duly.url.rpartition(":")[2]
        with child("-m", "duly", "up", "--json", "--port", port, environ=environ) as second:
            assert second.wait() == 2
            assert second.said_on_errors.count("\n") == 1, second.said_on_errors
            assert f"127.0.0.1:{port}: Address already in use" in second.said_on_errors
        assert duly.is_ready()


def test_a_server_that_may_lose_commits_is_refused_until_allowed(owner_url: str) -> None:
    """synchronous_commit = off on one database is enough to lose what was acknowledged."""
    unsafe = f"{owner_url}{'&' if '?' in owner_url else '?'}synchronous_commit=off"
    with child("-m", "duly", "up", "--port", "0", "--database-url", unsafe) as process:
        assert process.wait() == 2
        assert "synchronous_commit" in process.said_on_errors
        assert process.said_on_errors.count("\n") == 1
    allowed = {"DULY_ALLOW_UNSAFE_DURABILITY": "true", "DULY_DATABASE_URL": unsafe}
    with duly_up(environ=allowed) as duly:
        assert duly.is_ready()


@pytest.mark.slow
def test_a_second_duly_on_the_same_folder_is_refused_and_takes_no_client(
    data_dir: Path, owner_url: str, engine_url: str
) -> None:
    """It took over the file by which clients find the first, and half of its slots, whose tasks
    then waited in the memory of a process that no worker asked."""
    flags = ("--json", "--port", "0", "--data-dir", str(data_dir))
    with embedded_duly(data_dir) as first:
        with child("-m", "duly", "up", *flags) as second:
            assert second.wait() == 2
            assert second.said_on_errors.count("\n") == 1, second.said_on_errors
            assert f"runs on the data directory {data_dir} already" in second.said_on_errors
            assert first.url in second.said_on_errors
        assert submit_as_a_local_client(data_dir) == 0
        # One on a database of its own may run, and the folder's clients still find the first.
        with child("-m", "duly", "up", *flags, environ=external(owner_url, engine_url)) as other:
            assert other.answer()["url"] != first.url
            assert submit_as_a_local_client(data_dir) == 0
            other.signal(signal.SIGTERM)
            assert other.wait() == 0
            assert "clients of this user find another duly or none" in other.said_on_errors
        assert submit_as_a_local_client(data_dir) == 0
        with Client(first.url, first.ready["api_key"]) as client:
            assert len(list(client.tasks())) == 3
    assert processes_in(data_dir / "postgres") == set()


@pytest.mark.slow
def test_another_database_in_between_costs_no_client_its_key(
    data_dir: Path, owner_url: str, engine_url: str
) -> None:
    """A key is shown once: a file that forgot the folder's own would lock its user out."""
    with embedded_duly(data_dir) as first:
        key = first.ready["api_key"]
    environ = external(owner_url, engine_url)
    with duly_up("--data-dir", str(data_dir), environ=environ) as other:
        assert other.ready["api_key"] not in (None, key)
        assert submit_as_a_local_client(data_dir) == 0
    with embedded_duly(data_dir) as again:
        assert again.ready["api_key"] is None
        assert submit_as_a_local_client(data_dir) == 0
    with duly_up("--data-dir", str(data_dir), environ=environ):
        assert submit_as_a_local_client(data_dir) == 0


def submit_as_a_local_client(data_dir: Path) -> int:
    """It knows the folder and nothing else."""
    environ = {"DULY_DATA_DIR": str(data_dir)}
    with child("-m", "duly", "tasks", "submit", "mail.send", environ=environ) as client:
        return client.wait()


@pytest.mark.slow
def test_without_a_folder_to_write_to_it_works_on_an_external_database(
    owner_url: str, engine_url: str
) -> None:
    """A container may have nothing but its database; the file for local clients is a comfort."""
    flags = ("--json", "--port", "0", "--data-dir", "/dev/null/nowhere")
    with child("-m", "duly", "up", *flags, environ=external(owner_url, engine_url)) as duly:
        assert RunningDuly(duly).is_ready()


@pytest.mark.slow
def test_after_kill_9_of_everything_it_is_ready_again(data_dir: Path) -> None:
    """The machine lost power; nobody should have to repair anything by hand."""
    with embedded_duly(data_dir) as duly:
        kill_all({duly.process.pid} | processes_in(data_dir / "postgres"))
        duly.process.wait()
    with embedded_duly(data_dir) as again:
        assert again.is_ready()
    assert processes_in(data_dir / "postgres") == set()


@pytest.mark.slow
def test_when_its_postgresql_is_killed_it_starts_it_again(data_dir: Path) -> None:
    """The kernel took the memory of the server: nobody is there to start it but duly itself."""
    with embedded_duly(data_dir) as duly:
        killed = processes_in(data_dir / "postgres")
        kill_all(killed)
        assert duly.get("/healthz")[0] == 200
        eventually(lambda: processes_in(data_dir / "postgres") - killed, "a server runs again")
        eventually(duly.is_ready, "duly found the restarted server")
        assert duly.checks()["role:server"] == "ok"
        duly.process.signal(signal.SIGTERM)
        assert duly.process.wait() == 0
    assert processes_in(data_dir / "postgres") == set()


@pytest.mark.slow
def test_a_signal_while_postgresql_is_dead_still_stops_it(data_dir: Path) -> None:
    """A stop that waits for a dead database ends in kill -9, without any hand-over."""
    with embedded_duly(data_dir) as duly:
        kill_all(processes_in(data_dir / "postgres"))
        duly.process.signal(signal.SIGTERM)
        assert duly.process.wait(timeout_s=20) == 0
