"""A primary PostgreSQL and its synchronous standby, to be killed, stopped and promoted.

Both listen on loopback; one URL names both and asks for the one that takes writes.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from duly.environment import Environment
from duly.store.binaries import Binaries, find_binaries
from duly.store.embedded import free_port, processes_in
from duly.store.migrate import Migrator
from duly.store.server_user import ServerUser
from tests.processes import kill_all

SUPERUSER = "owner"
ENGINE = "duly_app"
DATABASE = "duly"
PROGRAM_TIMEOUT_S = 120.0
# A killed process loses nothing that the kernel has; only a killed machine would need fsync.
CONFIGURATION = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "fsync": "off",
    "wal_level": "replica",
    "hot_standby": "on",
    "wal_receiver_status_interval": "1s",
}
FOLLOWERS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"


class Node:
    """One PostgreSQL of the pair."""

    def __init__(self, folder: Path, binaries: Binaries, account: ServerUser) -> None:
        self.folder = folder
        self.binaries = binaries
        self.account = account
        port = free_port(0)
        assert port is not None
        self.port = port

    def run(self, program: str, *arguments: str) -> None:
        output_path = self.folder.parent / f"{self.folder.name}.output"
        with output_path.open("ab") as output:
            ended = subprocess.run(
                [*self.account.prefix, self.binaries.program(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
                env=os.environ | {"LC_ALL": "C", "TZ": "UTC"},
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
            )
        assert ended.returncode == 0, output_path.read_text()

    def make(self) -> None:
        self.make_folder()
        options = ["--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        self.run("initdb", "--pgdata", str(self.folder), "--username", SUPERUSER, *options)
        lines = [f"{name} = '{value}'\n" for name, value in CONFIGURATION.items()]
        with (self.folder / "postgresql.conf").open("a") as configuration:
            configuration.writelines(lines)

    def make_folder(self) -> None:
        self.folder.mkdir(mode=0o700)
        self.account.own(self.folder)

    def follow(self, primary: "Node") -> None:
        """A copy of the primary that goes on receiving what it writes."""
        self.make_folder()
        source = f"host=127.0.0.1 port={primary.port} user={SUPERUSER}"
        options = ["--wal-method", "stream", "--checkpoint", "fast", "--no-sync"]
        self.run("pg_basebackup", "-D", str(self.folder), "-d", source, "-R", *options)
        self.start()

    def control(self, *arguments: str) -> None:
        log = str(self.folder / "server.log")
        self.run("pg_ctl", *arguments, "--silent", "--wait", "-D", str(self.folder), "-l", log)

    def start(self) -> None:
        self.control("start", "-o", f"-p {self.port} -k {self.folder}")

    def promote(self) -> None:
        self.control("promote")

    def restart_at_once(self) -> None:
        """As after a crash: unlogged tables are emptied by the recovery."""
        self.control("restart", "-m", "immediate")

    def kill(self) -> None:
        kill_all(processes_in(self.folder))

    def freeze(self) -> None:
        """Its connections stay open and answer nothing."""
        for pid in processes_in(self.folder):
            os.kill(pid, signal.SIGSTOP)

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"


class Replicas:
    def __init__(self, folder: Path) -> None:
        binaries = find_binaries("")
        account = ServerUser.choose(folder, binaries.folder)
        self.primary = Node(folder / "primary", binaries, account)
        self.standby = Node(folder / "standby", binaries, account)

    def url(self, login: str) -> str:
        """Whichever of the two takes writes."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return f"postgresql://{login}@{hosts}/{DATABASE}?target_session_attrs=read-write"

    async def prepare(self) -> None:
        """The schema, the engine's login without ownership, and commits that wait for the standby:
        set on the primary alone, because the standby, promoted, has no follower to wait for."""
        connection = await asyncpg.connect(self.primary.url("postgres"))
        try:
            await connection.execute(f"CREATE DATABASE {DATABASE}")
            await Migrator(self.primary.url(), Environment()).migrate()
            await connection.execute(f"CREATE ROLE {ENGINE} LOGIN IN ROLE duly_engine, duly_tenant")
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await connection.execute("SELECT pg_reload_conf()")
            for _ in range(1000):
                if await connection.fetchval(FOLLOWERS):
                    return
                await connection.execute("SELECT pg_sleep(0.01)")
            raise AssertionError("the standby does not follow")
        finally:
            await connection.close()


@contextlib.contextmanager
def replicas(folder: Path) -> Iterator[Replicas]:
    """A primary with its standby, both running; neither is left behind."""
    pair = Replicas(folder)
    try:
        pair.primary.make()
        pair.primary.start()
        pair.standby.follow(pair.primary)
        yield pair
    finally:
        pair.primary.kill()
        pair.standby.kill()
