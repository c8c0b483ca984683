"""Signing webhooks as Standard Webhooks says: one signature for each live secret of the tenant."""

import hmac
from base64 import b64encode
from collections.abc import Sequence

from duly.domain.errors import DulyError
from duly.environment import Environment
from duly.store.database import Database
from duly.store.webhook_secrets import read_or_make_secrets
from duly.ttl_cache import TtlCache

# How long a secret that was made or deleted elsewhere may go unnoticed.
KEEP_S = 5.0


def sign(secrets: Sequence[bytes], webhook_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    digests = [hmac.digest(secret, signed, "sha256") for secret in secrets]
    return " ".join(f"v1,{b64encode(digest).decode()}" for digest in digests)


class Keyring:
    """The secrets of tenants, as of a moment ago."""

    def __init__(self, database: Database, environment: Environment) -> None:
        self.secrets: TtlCache[int, list[bytes]] = TtlCache(
            environment.clock,
            lambda tenant: read_or_make_secrets(database, environment, tenant),
            keep_s=KEEP_S,
        )

    async def secrets_of(self, tenant: int) -> list[bytes]:
        """While the database is away, those that were known last."""
        try:
            return await self.secrets.get(tenant)
        except DulyError:
            known = self.secrets.last(tenant)
            if known is None:
                raise
            return known

    async def close(self) -> None:
        await self.secrets.close()
