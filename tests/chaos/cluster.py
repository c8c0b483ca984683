"""The cluster that is broken: PostgreSQL, `duly serve` by role, workers, a receiver, and the links
between each pair. Everything started here is ended here, by its pid."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import quote

import asyncpg

from duly.environment import Environment
from duly.settings import Settings
from duly.store.bootstrap import EMBEDDED_LOGIN, DatabaseTarget, create_database, prepare_target
from duly.store.database import Database
from duly.store.embedded import DATABASE, SUPERUSER, EmbeddedPostgres, Server, free_port
from duly.store.keys import NewKey, create_key
from duly.store.tenants import NO_BOUNDS, create_tenant
from tests.chaos.link import Link
from tests.chaos.member import Member

# Few, so that they can be used up: four nodes have at most nine each, and PostgreSQL keeps three.
CONNECTIONS_MAX = 60
POOL_CONNECTIONS_MAX = 6
READY_S = 60.0
POOL = "work"
CAPS: dict[str, int | None] = {"plain": None, "capped": 8}
ROLES = {
    "api": "api",
    "scheduler-1": "scheduler,maintenance",
    "scheduler-2": "scheduler,maintenance",
    "executor": "executor",
}


@dataclass(frozen=True)
class Tenant:
    id: int
    name: str
    key: str


class Cluster:
    """`caps`: a tenant of each name, with so many of its tasks in flight at most.

    `is_near`: nothing stands between nodes and PostgreSQL, for measuring how fast they are.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        pools: Sequence[str] = (POOL,),
        caps: Mapping[str, int | None] = CAPS,
        *,
        is_near: bool = False,
    ) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.pools = pools
        self.caps = caps
        self.is_near = is_near
        self.environment = Environment()
        self.postgres = EmbeddedPostgres(
            folder / "data",
            self.environment,
            configuration={"max_connections": str(CONNECTIONS_MAX)},
        )
        self.members: dict[str, Member] = {}
        self.links: dict[str, Link] = {}
        self.tenants: list[Tenant] = []
        self.server: Server | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Cluster"]:
        """Ready when this yields; all of it gone when it ends, however it ends."""
        await self.prepare()
        supervisors: list[asyncio.Task[None]] = []
        try:
            await self.open_links()
            self.make_members()
            supervisors += [asyncio.create_task(each.supervise()) for each in self.members.values()]
            async with asyncio.timeout(READY_S):
                for member in self.members.values():
                    await member.is_ready.wait()
            yield self
        finally:
            await asyncio.gather(*(member.end() for member in self.members.values()))
            await asyncio.gather(*supervisors, return_exceptions=True)
            for link in self.links.values():
                await link.close()
            await asyncio.to_thread(self.postgres.leave)

    async def prepare(self) -> None:
        self.server = server = await asyncio.to_thread(self.postgres.attach)
        await create_database(server)
        place = DatabaseTarget(server.url(), server.url(login=EMBEDDED_LOGIN), "chaos", server)
        await prepare_target(place, Settings(), self.environment)
        database = await Database.open(place.engine_url, 2)
        try:
            for name, cap in self.caps.items():
                self.tenants.append(await self.make_tenant(database, name, cap))
        finally:
            await database.close()

    async def make_tenant(self, database: Database, name: str, cap: int | None) -> Tenant:
        tenant = await create_tenant(database, name, NO_BOUNDS._replace(in_flight_max=cap))
        assert tenant is not None
        asked = NewKey("chaos", role="admin")
        made = await create_key(database, self.environment, tenant.id, asked, actor="chaos")
        assert made is not None
        return Tenant(tenant.id, name, made[1])

    async def open_links(self) -> None:
        assert self.server is not None
        api_port, receiver_port = free_port(0), free_port(0)
        assert api_port is not None
        assert receiver_port is not None
        self.api_port, self.receiver_port = api_port, receiver_port
        targets = {f"{node}>postgres": self.server.port for node in ROLES}
        targets |= {f"{caller}>api": api_port for caller in ("worker-1", "worker-2", "client")}
        targets["executor>receiver"] = receiver_port
        for name, port in targets.items():
            self.links[name] = Link(name, port)
            await self.links[name].open()

    def make_members(self) -> None:
        for name, roles in ROLES.items():
            port = self.api_port if name == "api" else 0
            serve = ["-m", "duly", "serve", "--json", "--port", str(port), "--roles", roles]
            self.add(name, serve, self.node_environ(f"{name}>postgres"))
        effects = ("--effects", str(self.folder))
        port_flags = ("--port", str(self.receiver_port))
        self.add("receiver", ["-m", "tests.chaos.receiver", *port_flags, *effects], {})
        environ = {"DULY_TEST_TENANTS": json.dumps([(each.id, each.key) for each in self.tenants])}
        for name in ("worker-1", "worker-2"):
            url = ("--url", f"http://127.0.0.1:{self.links[f'{name}>api'].port}")
            flags = [*url, "--pools", ",".join(self.pools), *effects]
            self.add(name, ["-m", "tests.chaos.worker", *flags], environ)

    def add(self, name: str, arguments: list[str], environ: dict[str, str]) -> None:
        self.members[name] = Member(name, arguments, environ, self.folder, self.random)

    def node_environ(self, link: str) -> dict[str, str]:
        return {
            "DULY_DATABASE_URL": self.url_through(link, EMBEDDED_LOGIN),
            "DULY_MIGRATION_DATABASE_URL": self.url_through(link, SUPERUSER),
            "DULY_POOL_CONNECTIONS_MAX": str(POOL_CONNECTIONS_MAX),
            "DULY_WEBHOOK_ALLOW_PRIVATE": "true",
            "DULY_LOG_LEVEL": os.environ.get("DULY_LOG_LEVEL", "warning"),
        }

    def url_through(self, link: str, login: str) -> str:
        assert self.server is not None
        password = quote(self.server.password)
        port = self.server.port if self.is_near else self.links[link].port
        return f"postgresql://{login}:{password}@127.0.0.1:{port}/{DATABASE}"

    async def connect(self) -> asyncpg.Connection:
        """Past every link, as the owner, for whom PostgreSQL keeps a connection."""
        assert self.server is not None
        return await asyncpg.connect(self.server.url(), timeout=10.0, command_timeout=120.0)

    @property
    def client_url(self) -> str:
        return f"http://127.0.0.1:{self.links['client>api'].port}"

    @property
    def hook_url(self) -> str:
        return f"http://127.0.0.1:{self.links['executor>receiver'].port}/hook"
