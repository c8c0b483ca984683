"""Embedded PostgreSQL from a wheel: initialise, start, share, stop.

Two file locks carry the protocol. `start.lock` is held while a process starts or stops the server;
`users.lock` is held shared by every process that uses it. The kernel drops both when a process
dies, however it dies, so nothing here depends on a clean exit.

| event | what happens |
|---|---|
| two processes start at once | one starts the server, the other waits and attaches |
| a process leaves | it stops the server if it can lock `users.lock` alone |
| kill -9 of every duly | the server runs on; the next duly attaches and stops it when it leaves |
| kill -9 of the server too | the next start recovers; a stale pid file is recognised and removed |
| kill -9 inside initdb | it is waited for, then thrown away: only a finished one gets its name |
| it hangs when it is to be stopped | given a moment, then left: it ends once it runs again |
| root | the server runs as an unprivileged user, which owns its folder and nothing else |
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from duly.domain.errors import DataDirectoryUnusable, EmbeddedServerFailed
from duly.environment import Environment
from duly.store.binaries import Binaries, find_binaries
from duly.store.server_ping import is_answering
from duly.store.server_user import ServerUser

SUPERUSER = "duly_owner"
DATABASE = "duly"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
LOCK_TIMEOUT_S = 90
CHILDREN_GONE_S = 10
POLL_S = 0.02
# The kernel's limit for a Unix socket path is 107 bytes; `.s.PGSQL.65535` takes 15 of them.
SOCKET_FOLDER_BYTES_MAX = 90


@dataclass(frozen=True)
class Server:
    """A running server that this process has attached to."""

    data_dir: Path
    pid: int
    port: int
    socket_dir: str
    password: str = field(repr=False)

    def url(self, database: str = DATABASE, login: str = SUPERUSER) -> str:
        """Over the Unix socket, which costs half of what loopback TCP does."""
        folder = quote(self.socket_dir, safe="")
        return f"postgresql://{login}:{self.password}@/{database}?host={folder}&port={self.port}"


class EmbeddedPostgres:
    """This process's use of the server in one data directory. Blocking: call it from a thread."""

    def __init__(
        self,
        data_dir: Path,
        environment: Environment,
        pg_bin: str = "",
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.environment = environment
        self.pg_bin = pg_bin
        self.configuration = dict(configuration or {})
        self.users_lock: int | None = None
        self.start_lock: int | None = None

    @property
    def cluster(self) -> Path:
        return self.data_dir / "postgres"

    def attach(self) -> Server:
        """Start the server, or join the one that runs."""
        prepare_folder(self.data_dir)
        with self.starting():
            try:
                self.users_lock = self.users_lock or open_lock(self.data_dir / "users.lock")
                fcntl.flock(self.users_lock, fcntl.LOCK_SH)
                return self.running() or self.start()
            except OSError as error:
                self.drop_users_lock()
                raise DataDirectoryUnusable(
                    data_dir=self.data_dir, problem=error.strerror
                ) from error
            except BaseException:
                self.drop_users_lock()
                raise

    def is_alive(self) -> bool:
        """Whether the server's process exists; for the role that watches the server."""
        lines = self.pid_file()
        return bool(lines) and lines[0].isdecimal() and Path(f"/proc/{lines[0]}").exists()

    def leave(self) -> None:
        """Stop using the server; the last process stops it."""
        if self.users_lock is None:
            return None
        with self.starting():
            try:
                fcntl.flock(self.users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return self.drop_users_lock()
            try:
                self.stop()
            finally:
                self.drop_users_lock()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        descriptor = open_lock(self.data_dir / "start.lock")
        try:
            wait_for_lock(descriptor, self.data_dir)
            self.start_lock = descriptor
            yield
        finally:
            self.start_lock = None
            os.close(descriptor)

    def drop_users_lock(self) -> None:
        if self.users_lock is not None:
            os.close(self.users_lock)
            self.users_lock = None

    def running(self) -> Server | None:
        """The server that runs in our folder, once it accepts connections."""
        for _ in range(int(START_TIMEOUT_S / POLL_S)):
            lines = self.pid_file()
            if not self.is_ours(lines):
                return None
            if len(lines) >= 8 and lines[7].strip() == "ready":
                return Server(
                    self.data_dir, int(lines[0]), int(lines[3]), lines[4], self.password()
                )
            time.sleep(POLL_S)
        raise EmbeddedServerFailed(
            data_dir=self.data_dir, problem=f"did not become ready in {START_TIMEOUT_S} s"
        )

    def pid_file(self) -> list[str]:
        try:
            return (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def is_ours(self, lines: list[str]) -> bool:
        """A pid file torn by a power loss names no process."""
        return bool(lines) and lines[0].isdecimal() and int(lines[0]) in processes_in(self.cluster)

    def start(self) -> Server:
        binaries = find_binaries(self.pg_bin, self.existing_major())
        account = ServerUser.choose(self.data_dir, binaries.folder)
        if not self.cluster.exists():
            self.initialise(binaries, account)
        self.clear_remains()
        options = " ".join(
            # pg_ctl hands them to a shell.
            f"-c {shlex.quote(f'{name}={value}')}"
            for name, value in self.options(account).items()
        )
        start = [binaries.program("pg_ctl"), "start", "--silent", "--wait"]
        start += ["--timeout", str(START_TIMEOUT_S), "--pgdata", str(self.cluster)]
        start += ["--log", str(self.data_dir / "postgres.log"), "--options", options]
        self.run_program(start, account, "did not start")
        server = self.running()
        if server is None:
            raise EmbeddedServerFailed(
                data_dir=self.data_dir, problem=f"stopped at once; see {self.data_dir}/postgres.log"
            )
        return server

    def stop(self) -> None:
        lines = self.pid_file()
        if not self.is_ours(lines):
            return
        binaries = find_binaries(self.pg_bin, self.existing_major())
        account = ServerUser.choose(self.data_dir, binaries.folder)
        stop = [binaries.program("pg_ctl"), "stop", "--silent", "--pgdata", str(self.cluster)]
        if len(lines) >= 5 and not is_answering(Path(lines[4]), int(lines[3])):
            self.run_program([*stop, "--mode", "fast", "--no-wait"], account, "did not stop")
            problem = "does not answer; it was told to stop, and does so once it runs again"
            raise EmbeddedServerFailed(data_dir=self.data_dir, problem=problem)
        stop += ["--wait", "--timeout", str(STOP_TIMEOUT_S), "--mode"]
        try:
            self.run_program([*stop, "fast"], account, "did not stop")
        except EmbeddedServerFailed:
            # Something holds the server; an immediate stop is a crash that recovery undoes.
            self.run_program([*stop, "immediate"], account, "did not stop")

    def existing_major(self) -> int | None:
        try:
            return int((self.cluster / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def initialise(self, binaries: Binaries, account: ServerUser) -> None:
        """Make the cluster beside its final name and rename it when it is whole."""
        if account.uid is None:
            check_own_name(self.data_dir)
        unfinished = self.data_dir / "postgres.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account.own(unfinished)
        password_file = self.data_dir / "password"
        write_private(password_file, f"{self.environment.entropy.getrandbits(192):048x}")
        account.own(password_file)
        touch_private(self.data_dir / "postgres.log")
        account.own(self.data_dir / "postgres.log")
        initdb = [binaries.program("initdb"), "--pgdata", str(unfinished), "--no-instructions"]
        initdb += ["--username", SUPERUSER, "--pwfile", str(password_file)]
        initdb += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"]
        # initdb outlives a killed duly; it keeps the lock, so that no other process works beside
        # it.
        self.run_program(initdb, account, "could not be initialised", keep=self.start_lock)
        unfinished.rename(self.cluster)

    def password(self) -> str:
        return (self.data_dir / "password").read_text().strip()

    def options(self, account: ServerUser) -> dict[str, str]:
        socket_dir = socket_folder(self.data_dir)
        socket_dir.mkdir(mode=0o700, exist_ok=True)
        account.own(socket_dir)
        return (
            tuned_configuration()
            | self.configuration
            | {
                "listen_addresses": "127.0.0.1",
                "port": str(self.choose_port()),
                # A list to PostgreSQL: quoted, so that a comma in the path does not split it.
                "unix_socket_directories": '"' + str(socket_dir).replace('"', '""') + '"',
            }
        )

    def choose_port(self) -> int:
        """The last one if it is free: processes that outlived a crash look for the server there."""
        path = self.data_dir / "port"
        try:
            last = int(path.read_text())
        except (FileNotFoundError, ValueError):
            last = 0
        port = free_port(last) or free_port(0)
        assert port is not None, "the kernel chooses a free port when asked for none"
        path.write_text(f"{port}\n")
        return port

    def clear_remains(self) -> None:
        """After a crash another process may carry the old pid, and PostgreSQL would refuse to
        start beside it. The children of a killed server outlive it for a moment."""
        for _ in range(int(CHILDREN_GONE_S / POLL_S)):
            if not processes_in(self.cluster):
                break
            time.sleep(POLL_S)
        else:
            return
        for stale in (
            self.cluster / "postmaster.pid",
            *socket_folder(self.data_dir).glob(".s.PGSQL.*"),
        ):
            stale.unlink(missing_ok=True)

    def run_program(
        self, command: list[str], account: ServerUser, failure: str, keep: int | None = None
    ) -> None:
        """Run one of PostgreSQL's programs; its output goes to a file, for a pipe would be
        inherited by the server and never close. `keep` is a lock that the program shares."""
        output_path = self.data_dir / "postgres.output"
        with output_path.open("wb+") as output:
            ended = subprocess.run(
                [*account.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                # A Ctrl-C on the terminal is for duly, which then stops the server in order.
                start_new_session=True,
                env=os.environ | {"LC_ALL": "C", "TZ": "UTC"},
                pass_fds=[] if keep is None else [keep],
                check=False,
            )
            output.seek(0)
            said = output.read().decode(errors="replace")
        if ended.returncode != 0:
            problem = f"{failure}: {self.reason(said)}"
            raise EmbeddedServerFailed(data_dir=self.data_dir, problem=problem)

    def reason(self, said: str) -> str:
        """The one line of PostgreSQL's output that names the cause."""
        log = self.data_dir / "postgres.log"
        tail = log.read_text(errors="replace")[-4000:] if log.exists() else ""
        lines = [line for line in (said + "\n" + tail).splitlines() if line.strip()]
        for marker in ("No space left on device", "FATAL:", "error:", "ERROR:"):
            for line in reversed(lines):
                if marker in line:
                    return line.strip()
        return lines[-1].strip() if lines else "no reason given"


def prepare_folder(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        os.close(open_lock(data_dir / "start.lock"))
    except OSError as error:
        raise DataDirectoryUnusable(data_dir=data_dir, problem=error.strerror) from None


def check_own_name(data_dir: Path) -> None:
    """initdb looks up the name of its user; a container may run under a number without one."""
    uid = os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        problem = f"cannot be made by user {uid}, who has no entry in /etc/passwd; add one, run as"
        problem += " another user, or set DULY_DATABASE_URL to an external PostgreSQL"
        raise EmbeddedServerFailed(data_dir=data_dir, problem=problem) from None


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def wait_for_lock(descriptor: int, data_dir: Path) -> None:
    for _ in range(int(LOCK_TIMEOUT_S / POLL_S)):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(POLL_S)
    problem = f"is being started or stopped by another process for {LOCK_TIMEOUT_S} s"
    raise EmbeddedServerFailed(data_dir=data_dir, problem=problem)


def write_private(path: Path, content: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content + "\n")


def touch_private(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def socket_folder(data_dir: Path) -> Path:
    inside = data_dir / "socket"
    if len(os.fsencode(inside)) <= SOCKET_FOLDER_BYTES_MAX:
        return inside
    # A deep data directory: a short private folder with a name that only it leads to.
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    return Path("/tmp") / f"duly-{os.geteuid()}-{name}"  # noqa: S108


def free_port(wanted: int) -> int | None:
    """The wanted port if it is free; 0 wants any."""
    with socket.socket() as probe:
        # As PostgreSQL binds it: connections of the last server that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return None
        port: int = probe.getsockname()[1]
        return port


def processes_in(cluster: Path) -> set[int]:
    """Processes whose working directory is the cluster: the postmaster and its children."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == cluster.resolve():
                    found.add(int(entry.name))
    return found


def tuned_configuration() -> dict[str, str]:
    """For a machine shared with duly itself: a modest cache, roomy WAL, brisk autovacuum."""
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "shared_buffers": f"{min(max(memory_mb // 8, 64), 2048)}MB",
        "effective_cache_size": f"{max(memory_mb // 2, 256)}MB",
        "maintenance_work_mem": f"{min(max(memory_mb // 32, 64), 512)}MB",
        "max_connections": "400",
        "wal_compression": "on",
        "max_wal_size": "4GB",
        "min_wal_size": "256MB",
        "checkpoint_timeout": "15min",
        "wal_buffers": "16MB",
        "random_page_cost": "1.1",
        "jit": "off",
        "autovacuum_naptime": "5s",
        # Plans do not depend on statistics (ADR 0011), and every look at a young table makes all
        # connections plan again, while a task that comes alone waits for it.
        "autovacuum_analyze_threshold": "5000",
        "autovacuum_vacuum_insert_threshold": "5000",
        "autovacuum_vacuum_cost_delay": "1ms",
        "log_line_prefix": "%m[%p]",
        "log_checkpoints": "off",
    }
