"""The embedded server is shared, stopped by the last user, and survives every kind of death."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest

from duly.domain.errors import EmbeddedServerFailed
from duly.environment import Environment
from duly.store.embedded import EmbeddedPostgres, Server, processes_in
from duly.store.server_user import ServerUser, unprivileged_user
from tests.processes import child, eventually, is_alive, kill_all
from tests.store.folders import is_root, server_folder

USER = ("-m", "tests.store.embedded_user")
# Five and two seconds are the promise on a quiet machine; a busy one may take longer.
FIRST_START_MAX_S = 30.0
LATER_START_MAX_S = 15.0
STARTERS = 3


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


@pytest.fixture
def embedded(data_dir: Path) -> Iterator[EmbeddedPostgres]:
    embedded = EmbeddedPostgres(data_dir, Environment())
    yield embedded
    embedded.leave()


def mode_of(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


@contextmanager
def stranger_of_the_same_account() -> Iterator["subprocess.Popen[bytes]"]:
    """PostgreSQL takes a pid of another account for stale by itself; this one it would believe."""
    prefix = ServerUser.choose(Path("/")).prefix
    with subprocess.Popen([*prefix, "sleep", "600"]) as process:
        try:
            uid = unprivileged_user(Path()).pw_uid if is_root() else os.geteuid()
            eventually(lambda: Path(f"/proc/{process.pid}").stat().st_uid == uid, "it is another")
            yield process
        finally:
            process.kill()


def remove_folder(path: str) -> None:
    Path(path).rmdir()


async def ask(server: Server, question: str) -> object:
    connection = await asyncpg.connect(server.url("postgres"))
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_a_first_start_gives_a_durable_server_that_the_last_user_stops(
    embedded: EmbeddedPostgres,
) -> None:
    """A server that loses commits, answers strangers, or stays behind would break the promise."""
    server = embedded.attach()
    assert await ask(server, "SELECT current_setting('fsync')") == "on"
    assert await ask(server, "SELECT current_setting('full_page_writes')") == "on"
    assert await ask(server, "SELECT current_setting('synchronous_commit')") == "on"
    assert await ask(server, "SELECT current_setting('listen_addresses')") == "127.0.0.1"
    embedded.leave()
    assert not is_alive(server.pid)
    assert processes_in(embedded.cluster) == set()


@pytest.mark.slow
def test_starts_are_quick(data_dir: Path) -> None:
    """A start that waits out a timeout of its own still ends, and nobody would wait for it."""
    durations = []
    for _ in range(4):
        embedded = EmbeddedPostgres(data_dir, Environment())
        started = time.monotonic()
        embedded.attach()
        durations.append(time.monotonic() - started)
        embedded.leave()
    assert durations[0] < FIRST_START_MAX_S
    assert min(durations[1:]) < LATER_START_MAX_S


@pytest.mark.slow
def test_a_second_process_attaches_and_only_the_last_to_leave_stops(
    data_dir: Path, embedded: EmbeddedPostgres
) -> None:
    """Two servers in one folder corrupt it; a server stopped under a user loses its connections."""
    with child(*USER, str(data_dir)) as other:
        pid = other.answer()["pid"]
        assert embedded.attach().pid == pid
        other.say("leave")
        assert other.answer() == {"left": True}
        assert is_alive(pid)
        embedded.leave()
        assert not is_alive(pid)


@pytest.mark.slow
def test_simultaneous_starters_share_one_server(data_dir: Path) -> None:
    """Without the lock, two of them would initialise the same folder."""
    with ExitStack() as stack:
        users = [stack.enter_context(child(*USER, str(data_dir))) for _ in range(STARTERS)]
        pids = {user.answer()["pid"] for user in users}
        assert len(pids) == 1
        for user in users:
            user.say("leave")
        for user in users:
            assert user.answer() == {"left": True}
    assert not is_alive(pids.pop())


@pytest.mark.slow
def test_after_the_death_of_duly_alone_the_next_attaches_and_stops_the_server(
    data_dir: Path, embedded: EmbeddedPostgres
) -> None:
    """A user count kept in a file would never reach zero again."""
    with child(*USER, str(data_dir)) as other:
        pid = other.answer()["pid"]
        other.kill()
    assert is_alive(pid)
    assert embedded.attach().pid == pid
    embedded.leave()
    assert processes_in(embedded.cluster) == set()


@pytest.mark.slow
async def test_after_the_death_of_everything_the_next_start_keeps_every_commit(
    data_dir: Path, embedded: EmbeddedPostgres
) -> None:
    """Power loss: a stale pid file must not block the start, and nothing committed may be gone."""
    server = embedded.attach()
    await ask(server, "CREATE TABLE kept AS SELECT 42 AS answer")
    embedded.drop_users_lock()
    kill_all(processes_in(embedded.cluster))
    again = embedded.attach()
    assert again.pid != server.pid
    assert await ask(again, "SELECT answer FROM kept") == 42
    assert {again.pid} <= processes_in(embedded.cluster)
    assert server.pid not in processes_in(embedded.cluster)


@pytest.mark.slow
async def test_after_a_crash_the_server_comes_back_at_the_same_address(
    embedded: EmbeddedPostgres,
) -> None:
    """Processes that still run hold the old URL; at a new port they would never find it again."""
    server = embedded.attach()
    kill_all(processes_in(embedded.cluster))
    assert embedded.attach().url() == server.url()


@pytest.mark.slow
async def test_a_start_right_after_the_death_of_the_postmaster_alone_succeeds(
    embedded: EmbeddedPostgres,
) -> None:
    """Its children outlive it for a moment and hold the shared memory that a new one refuses."""
    server = embedded.attach()
    kill_all({server.pid})
    again = embedded.attach()
    assert await ask(again, "SELECT 1") == 1


@pytest.mark.slow
async def test_a_stale_pid_file_with_the_pid_of_a_stranger_does_not_block_the_start(
    embedded: EmbeddedPostgres,
) -> None:
    """Pids come round again: after a reboot the recorded one may be anybody's."""
    server = embedded.attach()
    kill_all(processes_in(embedded.cluster))
    with stranger_of_the_same_account() as stranger:
        pid_file = embedded.cluster / "postmaster.pid"
        pid_file.write_text(pid_file.read_text().replace(str(server.pid), str(stranger.pid), 1))
        again = embedded.attach()
        assert await ask(again, "SELECT 1") == 1
        assert is_alive(stranger.pid)


@pytest.mark.slow
@pytest.mark.parametrize("torn", ["", "\n", "not a number\n"])
async def test_a_torn_pid_file_does_not_block_the_start(
    embedded: EmbeddedPostgres, torn: str
) -> None:
    """A machine that lost power may leave the file empty, and PostgreSQL refuses an empty one."""
    embedded.attach()
    embedded.leave()
    (embedded.cluster / "postmaster.pid").write_text(torn)
    assert await ask(embedded.attach(), "SELECT 1") == 1


@pytest.mark.slow
async def test_a_half_made_folder_is_thrown_away(
    data_dir: Path, embedded: EmbeddedPostgres
) -> None:
    """A cluster that initdb did not finish starts and is broken later, or never starts again."""
    unfinished = data_dir / "postgres.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    assert await ask(embedded.attach(), "SELECT 1") == 1
    assert not unfinished.exists()


@pytest.mark.slow
async def test_a_start_right_after_a_death_inside_initdb_succeeds(
    data_dir: Path, embedded: EmbeddedPostgres
) -> None:
    """initdb outlives the duly that was killed, and goes on writing where the next one works."""
    with child(*USER, str(data_dir)) as other:
        made = data_dir / "postgres.unfinished" / "base"
        eventually(made.exists, "initdb has begun")
        other.kill()
        assert await ask(embedded.attach(), "SELECT 1") == 1


def test_a_password_is_private_and_needed_on_both_doors(embedded: EmbeddedPostgres) -> None:
    """On a shared machine, any local user could otherwise read or write every task."""
    server = embedded.attach()
    assert (embedded.data_dir / "password").stat().st_mode & 0o777 == 0o600
    wrong = server.url("postgres").replace(server.password, "wrong")
    over_tcp = f"postgresql://duly_owner:wrong@127.0.0.1:{server.port}/postgres"
    for url in (wrong, over_tcp):
        program = (
            "import asyncio, asyncpg, sys\n"
            "try: asyncio.run(asyncpg.connect(sys.argv[1]))\n"
            "except asyncpg.InvalidPasswordError: print('refused')"
        )
        said = subprocess.run(
            [sys.executable, "-c", program, url], capture_output=True, text=True, check=False
        )
        assert said.stdout == "refused\n", said.stderr
    assert server.password not in repr(server)


@pytest.mark.slow
async def test_a_deep_data_directory_still_gets_a_socket(data_dir: Path) -> None:
    """A Unix socket path is limited to 107 bytes; PostgreSQL would refuse to start."""
    deep = EmbeddedPostgres(data_dir / ("d" * 100) / ("e" * 60), Environment())
    server = deep.attach()
    try:
        assert len(server.socket_dir) < 100
        assert mode_of(server.socket_dir) == 0o700
        assert await ask(server, "SELECT 1") == 1
    finally:
        deep.leave()
        remove_folder(server.socket_dir)


@pytest.mark.slow
async def test_a_data_directory_with_spaces_and_other_letters_works(data_dir: Path) -> None:
    """Options reach the server through a shell; an unquoted path would fall apart there."""
    odd = EmbeddedPostgres(data_dir / "mein Ordner's ü", Environment())
    try:
        assert await ask(odd.attach(), "SELECT 1") == 1
    finally:
        odd.leave()


@pytest.mark.slow
def test_a_server_that_cannot_start_frees_the_folder(data_dir: Path, tmp_path: Path) -> None:
    """A failed start must not keep the locks: the next one would wait for nobody."""
    failing = EmbeddedPostgres(
        data_dir, Environment(), configuration={"shared_buffers": "nonsense"}
    )
    with pytest.raises(EmbeddedServerFailed, match="shared_buffers"):
        failing.attach()
    assert failing.users_lock is None
    embedded = EmbeddedPostgres(data_dir, Environment())
    embedded.attach()
    embedded.leave()
