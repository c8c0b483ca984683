"""A PgBouncer in transaction mode in front of the test's database. Skipped at home if missing."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from duly.store.server_user import ServerUser
from tests.processes import eventually

# Fewer sessions than duly has connections, so that statements of one meet those of another.
SESSIONS = 3
STOP_S = 10.0


def find_pgbouncer() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is not None:
        return found
    problem = "PgBouncer is not installed (Debian: apt-get install pgbouncer)"
    if os.environ.get("CI") == "true":
        pytest.fail(problem)
    pytest.skip(problem)


@contextlib.contextmanager
def pgbouncer(engine_url: str, folder: Path) -> Iterator[str]:
    """The same database through the pooler, as a URL."""
    program, port = find_pgbouncer(), free_port()
    parts = urlsplit(engine_url)
    host, server_port = address(engine_url)
    name = parts.path.removeprefix("/")
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        "[databases]\n"
        f"{name} = host={host} port={server_port} user={parts.username} password={parts.password}\n"
        "[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {SESSIONS}\nmax_client_conn = 200\n"
    )
    # It refuses to run as root, like PostgreSQL itself, and must reach its socket.
    account = ServerUser.choose(folder, *([Path(host)] if host.startswith("/") else []))
    account.own(configuration)
    process = subprocess.Popen(
        [*account.prefix, program, str(configuration)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: answers(port), "PgBouncer answers")
        yield f"postgresql://{parts.username}@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait(STOP_S)


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    host = query["host"][0] if "host" in query else parts.hostname or "127.0.0.1"
    port = int(query["port"][0]) if "port" in query else parts.port or 5432
    return unquote(host), port


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
