"""The secrets that webhooks are signed with, some per tenant. Signing itself is done elsewhere.

A tenant has a secret from its first delivery on, so that no request leaves unsigned; that one is
never shown. An admin creates another and sees it, and both sign for a while.
"""

from datetime import datetime
from typing import NamedTuple

from duly.environment import Environment
from duly.store.database import Database, Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
SECRET_BYTES = 32
# Each costs every request a signature more.
SECRETS_PER_TENANT_MAX = 10
FIRST_ID = "first"
ID_BITS = 64


class SecretFacts(NamedTuple):
    """A secret as its tenant's admins see it."""

    id: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None


async def read_or_make_secrets(
    database: Database, environment: Environment, tenant: int
) -> list[bytes]:
    """At least one: what this tenant's requests are signed with now, newest first."""
    while True:
        rows = await database.fetch(SQL.read_live_secrets, tenant, SECRETS_PER_TENANT_MAX)
        if rows:
            return [row["secret"] for row in rows]
        drawn = environment.entropy.randbytes(SECRET_BYTES)
        await database.fetch(SQL.make_first_secret, tenant, FIRST_ID, drawn)


async def rotate_secret(
    session: Session, environment: Environment, tenant: int, grace_s: float, actor: str
) -> tuple[SecretFacts, bytes] | None:
    """A new secret, while those before sign on for `grace_s`. None: the tenant has too many."""
    await session.fetch(SQL.lock_secrets, tenant)
    await session.fetch(SQL.delete_expired_secrets, tenant)
    if len(await session.fetch(SQL.expire_secrets, tenant, grace_s)) >= SECRETS_PER_TENANT_MAX:
        return None
    secret = environment.entropy.randbytes(SECRET_BYTES)
    secret_id = f"{environment.entropy.getrandbits(ID_BITS):016x}"
    (row,) = await session.fetch(SQL.create_secret, tenant, secret_id, secret, actor)
    return SecretFacts(*row), secret


async def list_secrets(session: Session, tenant: int) -> list[SecretFacts]:
    rows = await session.fetch(SQL.list_secrets, tenant, SECRETS_PER_TENANT_MAX)
    return [SecretFacts(*row) for row in rows]


async def delete_secret(session: Session, tenant: int, secret_id: str) -> bool:
    return bool(await session.fetch(SQL.delete_secret, tenant, secret_id))
