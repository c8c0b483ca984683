"""Signatures, verified by somebody else's implementation of Standard Webhooks."""

from base64 import b64encode

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from duly.domain.addresses import OutboundRules
from duly.environment import Environment
from duly.execution.webhooks import signing as webhook_signing
from duly.execution.webhooks.sender import WebhookSender
from duly.execution.webhooks.signing import Keyring
from duly.store.database import Database
from duly.store.webhook_secrets import (
    SECRETS_PER_TENANT_MAX,
    delete_secret,
    list_secrets,
    read_or_make_secrets,
    rotate_secret,
)
from duly.testing.clock import ManualClock
from tests.execution.conftest import ANYWHERE, lease_of
from tests.execution.receiver import Receiver, Request

TENANT, OTHER = 1, 2


def verify(secret: bytes, request: Request) -> None:
    """As a receiver does it; raises if the request is not ours."""
    Webhook("whsec_" + b64encode(secret).decode()).verify(request.body, request.headers)


async def rotated(database: Database, grace_s: float = 3600.0) -> bytes:
    made = await rotate_secret(database, Environment(), TENANT, grace_s, "test")
    assert made is not None
    return made[1]


async def delivered(database: Database, receiver: Receiver, **lease: object) -> Request:
    sender = WebhookSender(database, Environment(), ANYWHERE)
    try:
        await sender(lease_of(receiver.url, **lease))  # type: ignore[arg-type]
    finally:
        await sender.close()
    return receiver.requests[-1]


@pytest.mark.parametrize("payload", ['{"a": 1}', '"\u00e4\u4e16"', "null", None])
@pytest.mark.parametrize("key", [None, "order-7", "a b%c", " \u00e4 ", "7.1700000000.x"])
async def test_every_request_is_verified_by_another_implementation(
    database: Database, receiver: Receiver, payload: str | None, key: str | None
) -> None:
    """A signature that only we understand protects nobody."""
    secret = await rotated(database)
    request = await delivered(database, receiver, payload=payload, execution_key=key)
    verify(secret, request)
    with pytest.raises(WebhookVerificationError):
        verify(bytes([secret[0] ^ 1]) + secret[1:], request)
    forged = Request(request.path, request.headers, request.body + b" ", request.reader)
    with pytest.raises(WebhookVerificationError):
        verify(secret, forged)


async def test_during_a_rotation_both_secrets_verify(
    database: Database, receiver: Receiver
) -> None:
    """Receivers learn a new secret one after another; none of them may refuse us meanwhile."""
    old = await rotated(database)
    new = await rotated(database)
    request = await delivered(database, receiver)
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    verify(old, request)
    verify(new, request)
    newest = await rotated(database, grace_s=0.0)
    request = await delivered(database, receiver)
    verify(newest, request)
    for gone in (old, new):
        with pytest.raises(WebhookVerificationError):
            verify(gone, request)


async def test_without_a_secret_one_is_made_and_kept(
    database: Database, receiver: Receiver
) -> None:
    """An unsigned request could be anybody's; two secrets for two processes would flap."""
    request = await delivered(database, receiver)
    (secret,) = await read_or_make_secrets(database, Environment(), TENANT)
    assert len(secret) == 32
    verify(secret, request)
    verify(secret, await delivered(database, receiver))
    # The first that an admin makes is known to him; the one before signs on for a while.
    known = await rotated(database)
    request = await delivered(database, receiver)
    verify(secret, request)
    verify(known, request)


async def test_a_secret_is_one_tenants(database: Database) -> None:
    """With a secret for all, each receiver could forge requests to every other."""
    mine = await read_or_make_secrets(database, Environment(), TENANT)
    theirs = await read_or_make_secrets(database, Environment(), OTHER)
    assert set(mine).isdisjoint(theirs)
    (facts,) = await list_secrets(database, OTHER)
    assert not await delete_secret(database, TENANT, facts.id[:-1] + "x")
    assert await delete_secret(database, TENANT, facts.id)
    assert await read_or_make_secrets(database, Environment(), OTHER) == theirs


async def test_an_expired_first_secret_is_replaced(database: Database) -> None:
    """Everything deleted or expired, the next request must still be signed, by something new."""
    (first,) = await read_or_make_secrets(database, Environment(), TENANT)
    made = await rotate_secret(database, Environment(), TENANT, 0.0, "test")
    assert made is not None
    assert await delete_secret(database, TENANT, made[0].id)
    (second,) = await read_or_make_secrets(database, Environment(), TENANT)
    assert second not in (first, made[1])


async def test_the_number_of_secrets_is_bounded(database: Database) -> None:
    """Each costs every request a signature, and every receiver a comparison."""
    for _ in range(SECRETS_PER_TENANT_MAX):
        await rotated(database)
    assert await rotate_secret(database, Environment(), TENANT, 3600.0, "test") is None
    assert len(await list_secrets(database, TENANT)) == SECRETS_PER_TENANT_MAX


async def test_a_new_secret_is_used_within_seconds_and_not_asked_for_each_time(
    database: Database, environment: Environment, clock: ManualClock
) -> None:
    """One look at the database for each request would halve the rate; none would never rotate."""
    keyring = Keyring(database, environment)
    before = await keyring.secrets_of(TENANT)
    await rotated(database)
    assert await keyring.secrets_of(TENANT) is before
    clock.advance(webhook_signing.KEEP_S)
    assert len(await keyring.secrets_of(TENANT)) == 2


async def test_while_the_database_is_away_the_known_secrets_sign(
    engine_url: str, environment: Environment, clock: ManualClock, receiver: Receiver
) -> None:
    """Requests that are under way must not fail because a signature could not be looked up."""
    database = await Database.open(engine_url, 2)
    keyring = Keyring(database, environment)
    known = await keyring.secrets_of(TENANT)
    sender = WebhookSender(database, environment, OutboundRules(allow_private=True))
    try:
        await database.close()
        clock.advance(webhook_signing.KEEP_S)
        assert await keyring.secrets_of(TENANT) == known
        verdict = await sender(lease_of(receiver.url))
        assert verdict.outcome == "released", "nothing is known: given back, uncharged"
        assert receiver.requests == []
    finally:
        await sender.close()
