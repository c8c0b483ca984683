"""Signing webhooks as Standard Webhooks says: one signature for each live secret of the tenant."""

import asyncio
import hmac
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Sequence

from duly.child_tasks import ChildTasks
from duly.domain.errors import DulyError
from duly.environment import Environment
from duly.execution.worker_leases import remember
from duly.store.database import Database
from duly.store.webhook_secrets import read_or_make_secrets

# How long a secret that was made or deleted elsewhere may go unnoticed.
KEEP_S = 5.0
TENANTS_MAX = 10_000


def sign(secrets: Sequence[bytes], webhook_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    digests = [hmac.digest(secret, signed, "sha256") for secret in secrets]
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


class Keyring:
    """The secrets of tenants, as of a moment ago."""

    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.environment = environment
        self.kept: OrderedDict[int, tuple[float, list[bytes]]] = OrderedDict()
        self.looking: dict[int, asyncio.Future[list[bytes]]] = {}
        self.loads = ChildTasks()

    async def secrets_of(self, tenant: int) -> list[bytes]:
        """While the database is away, those that were known last."""
        kept = self.kept.get(tenant)
        if kept is not None and self.environment.clock.monotonic() < kept[0]:
            return kept[1]
        flight = self.looking.get(tenant)
        if flight is None:
            flight = self.looking[tenant] = self.loads.start(self.look(tenant))
            flight.add_done_callback(lambda _: self.looking.pop(tenant, None))
        try:
            # A cancelled request must not cancel the load that others wait for.
            return await asyncio.shield(flight)
        except DulyError:
            if kept is None:
                raise
            return kept[1]

    async def look(self, tenant: int) -> list[bytes]:
        secrets = await read_or_make_secrets(self.database, self.environment, tenant)
        until = self.environment.clock.monotonic() + KEEP_S
        remember(self.kept, tenant, (until, secrets), TENANTS_MAX)
        return secrets

    async def close(self) -> None:
        await self.loads.close()
