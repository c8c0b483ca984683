"""A sender with the keys of its tenants, and leases for it without a scheduler or a database."""

import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from duly.domain.addresses import OutboundRules
from duly.domain.task import DEFAULT_POLICY, Policy
from duly.environment import Environment
from duly.execution.webhooks.sender import WebhookSender
from duly.store.lease import Lease
from duly.store.policies import encode_policy
from tests.execution.receiver import Receiver, receiving

TENANT = 1
TENANTS = (TENANT, 2)
SECRET = b"a secret of 24 bytes....."
ANYWHERE = OutboundRules(allow_private=True)


def lease_of(
    url: str | None,
    policy: Policy = DEFAULT_POLICY,
    payload: str | None = '{"a": 1}',
    execution_key: str | None = None,
    number: int = 1,
    tenant: int = TENANT,
    moved_to: datetime | None = None,
) -> Lease:
    now = Environment().clock.now()
    return Lease(
        id=UUID(int=(7 << 76) + number),
        tenant=tenant,
        fence=number,
        attempt=2,
        started_at=now,
        lease_until=now + timedelta(seconds=15),
        progress=None,
        run_at=now,
        type="invoice.charge",
        payload=payload,
        policy_text=encode_policy(policy),
        url=url,
        given_execution_key=execution_key,
        moved_to=moved_to,
    )


@dataclass
class Senders:
    """Senders that are closed when the test ends; `told` is what each said of its hosts."""

    stack: contextlib.AsyncExitStack
    told: list[tuple[int, str, bool]] = field(default_factory=list)

    def open(self, rules: OutboundRules = ANYWHERE, **how: Any) -> WebhookSender:
        nowhere: Any = None
        sender = WebhookSender(
            nowhere,
            Environment(),
            rules,
            on_outcome=lambda *fact: self.told.append(fact[:3]),
            **how,
        )
        for tenant in TENANTS:
            sender.keyring.secrets.kept[tenant] = (math.inf, [SECRET])
        self.stack.push_async_callback(sender.close)
        return sender


@pytest.fixture
async def senders() -> AsyncIterator[Senders]:
    async with contextlib.AsyncExitStack() as stack:
        yield Senders(stack)


@pytest.fixture
async def sender(senders: Senders) -> WebhookSender:
    return senders.open()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as started:
        yield started
