"""Broker programs that a test starts for itself, on free ports of the loopback: never a service of
the machine. Without a program its tests are skipped at home and fail on CI."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

START_MAX_S = 60.0


def program(*names: str) -> str:
    """The first of these that is installed."""
    for name in names:
        if found := shutil.which(
            name, path=os.environ["PATH"] + ":/usr/sbin:/usr/lib/rabbitmq/bin"
        ):
            return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"{names[0]} is not installed; .ci/run installs it")
    pytest.skip(f"{names[0]} is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def await_port(port: int, process: "subprocess.Popen[bytes]", limit_s: float = START_MAX_S) -> None:
    ends_at = time.monotonic() + limit_s
    while time.monotonic() < ends_at:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        assert process.poll() is None, "the broker ended at its start"
        time.sleep(0.02)
    raise AssertionError("the broker does not listen")


def await_closed(port: int) -> None:
    ends_at = time.monotonic() + START_MAX_S
    while time.monotonic() < ends_at:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            return
        time.sleep(0.02)
    raise AssertionError("the broker was killed and still listens")


class RedisServer:
    """One Redis of a test; nothing of it is written to disk unless `keeps` is set."""

    def __init__(self, folder: Path, *, keeps: bool = False) -> None:
        self.command = program("redis-server")
        self.folder = folder
        self.keeps = keeps
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = ("--appendonly", "yes" if self.keeps else "no", "--save", "")
        self.process = subprocess.Popen(
            [
                *(self.command, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self.folder), *kept, *options),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await_port(self.port, self.process)

    def kill(self) -> None:
        """As by the kernel; what it had not written is gone."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(10)
        self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


@contextlib.contextmanager
def redis_server(folder: Path, *, keeps: bool = False) -> Iterator[RedisServer]:
    server = RedisServer(folder, keeps=keeps)
    try:
        server.start()
        yield server
    finally:
        server.stop()


class RedisSet:
    """A primary, a replica, and a sentinel that promotes it."""

    name = "tickets"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.primary = RedisServer(folder / "primary")
        self.replica = RedisServer(folder / "replica")
        self.sentinel_port = free_port()
        self.sentinel: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel_port}/{self.name}"

    def __enter__(self) -> "RedisSet":
        self.primary.start()
        self.replica.start("--replicaof", "127.0.0.1", str(self.primary.port))
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\n"
            f"sentinel monitor {self.name} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {self.name} 500\n"
            f"sentinel failover-timeout {self.name} 3000\n"
        )
        self.sentinel = subprocess.Popen(
            [self.primary.command, str(config), "--sentinel"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await_port(self.sentinel_port, self.sentinel)
        self.await_known_replica()
        return self

    def __exit__(self, *_: object) -> None:
        if self.sentinel is not None:
            self.sentinel.kill()
            self.sentinel.wait(10)
        self.primary.stop()
        self.replica.stop()

    def await_known_replica(self) -> None:
        """A sentinel that does not know the replica yet has nothing to promote."""
        with Redis(port=self.sentinel_port, decode_responses=True) as sentinel:
            self.until(lambda: len(sentinel.sentinel_slaves(self.name)) == 1)

    def await_promotion(self) -> None:
        with Redis(port=self.replica.port, decode_responses=True) as replica:
            self.until(lambda: replica.info("replication")["role"] == "master")

    def until(self, holds: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + START_MAX_S
        while not holds():
            assert time.monotonic() < ends_at
            time.sleep(0.05)


class RabbitServer:
    """One node of RabbitMQ, with an epmd, a cookie and folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.command = program("rabbitmq-server")
        self.script = "/usr/lib/rabbitmq/bin/rabbitmq-server"
        self.folder = folder
        self.port = free_port()
        self.epmd_port = free_port()
        self.dist_port = free_port()
        self.epmd: subprocess.Popen[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def environ(self) -> dict[str, str]:
        folder = self.folder
        return {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"duly{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": str(folder / "log.txt"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("onlyfortests")
            cookie.chmod(0o400)
        if self.epmd is None:
            self.epmd = subprocess.Popen(
                [program("epmd"), "-port", str(self.epmd_port), "-address", "127.0.0.1"]
            )
            await_port(self.epmd_port, self.epmd)
        # A group of its own: the node is a child of the script.
        self.process = subprocess.Popen(
            [self.script],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        await_port(self.port, self.process)

    def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self.process = None
        # The node itself is the script's child, not ours.
        await_closed(self.port)

    def wipe(self) -> None:
        shutil.rmtree(self.folder / "data")

    def control(self, *arguments: str) -> None:
        """`rabbitmqctl`, as an operator."""
        subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", *arguments],
            env=self.environ,
            check=True,
            timeout=START_MAX_S,
            stdout=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        if self.process is not None:
            self.kill()
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait(10)


@contextlib.contextmanager
def rabbit_server(folder: Path) -> Iterator[RabbitServer]:
    server = RabbitServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
