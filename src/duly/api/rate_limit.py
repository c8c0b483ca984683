"""Rate limits and quotas of the API: submits a second and live tasks of a tenant, requests a second
of a key.

A rate is for the installation: its tokens are in the database, and each process that serves the API
leases slices of them. The quota is counted in the database every few seconds and told of our own
submits in between; a race between processes may pass it by what they take in one period.

| event | what happens |
|---|---|
| calls come to one process of several | it leases all that the rate gives |
| many calls wait for a lease | one statement asks for all of them |
| calls come faster than the rate | refused here, without a statement, until a token can be there |
| the process ends with leased tokens | they are lost: at most a tenth of a second's worth |
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from duly.api.problems import ApiProblem, Code
from duly.domain.token_bucket import burst_of
from duly.environment import Clock, Environment
from duly.store.database import Database
from duly.store.submit_tokens import (
    LeasedTokens,
    lease_request_tokens,
    lease_submit_tokens,
)
from duly.store.tenants import Tenant, count_stored, read_tenant
from duly.ttl_cache import TtlCache

# How much of a rate is leased ahead of calls, and for how long.
TOKEN_SLICE_S = 0.1
TOKEN_LEASE_S = 1.0
COUNT_EVERY_S = 5.0
OWNERS_MAX = 10_000

Owner = TypeVar("Owner", bound=Hashable)


class Quota:
    """Live tasks of one tenant, as of the last count and what we took since."""

    __slots__ = ("count", "count_again_at", "counting")

    def __init__(self) -> None:
        self.count = 0
        self.count_again_at = 0.0
        # A caller that comes during the count waits for it, and is then added to it.
        self.counting = asyncio.Lock()


class RateTokens:
    """Of one tenant or key: what this process has leased, and what it last saw of the bucket."""

    __slots__ = ("asking", "leased", "leased_until", "left", "left_at", "wanted")

    def __init__(self) -> None:
        self.leased = 0.0
        self.leased_until = 0.0
        # As of that instant; others may have taken of it since.
        self.left = math.inf
        self.left_at = 0.0
        # Held by the one caller that leases tokens for all that wait.
        self.wanted = 0
        self.asking = asyncio.Lock()

    def held(self, now: float) -> float:
        return self.leased if now < self.leased_until else 0.0

    def most(self, now: float, rate: float, burst: float) -> float:
        """What may be had by now, if no other process took any."""
        in_bucket = min(burst, self.left + (now - self.left_at) * rate)
        return self.held(now) + in_bucket

    def take(self, count: int, now: float) -> bool:
        if self.held(now) < count:
            return False
        self.leased -= count
        return True


class LeasedRate(Generic[Owner]):
    """One rate of each owner, for the installation: tokens are leased from its bucket in the
    database, by `lease`, which answers None once there is no such rate."""

    def __init__(
        self,
        clock: Clock,
        lease: Callable[[Owner, float, float, float], Awaitable[LeasedTokens | None]],
    ) -> None:
        self.clock = clock
        self.lease_tokens = lease
        self.tokens: dict[Owner, RateTokens] = {}

    async def take(
        self, owner: Owner, rate: float, burst: float, count: int, detail: str
    ) -> dict[str, str]:
        """Rate limit headers; ApiProblem with `detail` past the rate."""
        tokens = self.tokens_of(owner)
        if count > burst:
            detail = f"{count} tasks at once are more than the {burst:g} that may be saved up"
            headers = rate_headers(tokens, self.clock.monotonic(), rate, burst)
            raise ApiProblem(Code.RATE_LIMITED, detail, headers=headers)
        if not tokens.take(count, self.clock.monotonic()):
            tokens.wanted += count
            try:
                async with tokens.asking:
                    await self.lease(tokens, owner, rate, burst, count, detail)
            finally:
                tokens.wanted -= count
        return rate_headers(tokens, self.clock.monotonic(), rate, burst)

    async def lease(
        self, tokens: RateTokens, owner: Owner, rate: float, burst: float, count: int, detail: str
    ) -> None:
        """Take tokens that an earlier call leased for all, or lease; ApiProblem if it is too
        soon."""
        now = self.clock.monotonic()
        if tokens.take(count, now):
            return
        if tokens.most(now, rate, burst) >= count:
            need, wanted = count - tokens.held(now), tokens.wanted - tokens.held(now)
            answer = await self.lease_tokens(owner, need, wanted, TOKEN_SLICE_S)
            if answer is None:
                return
            asked_at, now = now, self.clock.monotonic()
            tokens.leased = tokens.held(now) + answer.granted
            tokens.leased_until = now + TOKEN_LEASE_S
            tokens.left, tokens.left_at = answer.left, asked_at
            if tokens.take(count, now):
                return
        missing = count - tokens.most(now, rate, burst)
        headers = rate_headers(tokens, now, rate, burst)
        headers["retry-after"] = str(max(1, math.ceil(missing / rate)))
        raise ApiProblem(Code.RATE_LIMITED, detail, headers=headers)

    def tokens_of(self, owner: Owner) -> RateTokens:
        tokens = self.tokens.get(owner)
        if tokens is None:
            if len(self.tokens) >= OWNERS_MAX:
                self.tokens.clear()
            tokens = self.tokens[owner] = RateTokens()
        return tokens


class RequestRates:
    """Calls of keys that have a request rate, of any kind."""

    def __init__(self, database: Database, environment: Environment) -> None:
        self.rates: LeasedRate[str] = LeasedRate(
            environment.clock, partial(lease_request_tokens, database)
        )

    async def admit(self, key_id: str, rate: float) -> None:
        detail = f"the key may make {rate:g} calls a second"
        await self.rates.take(key_id, rate, max(rate, 1.0), 1, detail)


class Throttle:
    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.clock = environment.clock
        self.tenants: TtlCache[int, Tenant | None] = TtlCache(
            environment.clock, lambda tenant: read_tenant(database, tenant)
        )
        self.submits: LeasedRate[int] = LeasedRate(
            environment.clock, partial(lease_submit_tokens, database)
        )
        self.quotas: dict[int, Quota] = {}

    async def admit(self, tenant: int, count: int) -> dict[str, str]:
        """Rate limit headers; ApiProblem past a limit."""
        limits = await self.tenants.get(tenant)
        if limits is None or (limits.submit_rate is None and limits.stored_max is None):
            return {}
        # The quota first: what it refuses costs no token, and can be undone.
        if limits.stored_max is not None:
            await self.count_against_quota(tenant, limits.stored_max, count)
        if limits.submit_rate is None:
            return {}
        try:
            return await self.take(limits, limits.submit_rate, count)
        except BaseException:
            if limits.stored_max is not None:
                self.quotas[tenant].count -= count
            raise

    async def admit_spread(self, tenant: int, count: int) -> None:
        """Tasks that fire over a time of their own: only how many there may be matters."""
        limits = await self.tenants.get(tenant)
        if limits is not None and limits.stored_max is not None:
            await self.count_against_quota(tenant, limits.stored_max, count)

    async def take(self, limits: Tenant, rate: float, count: int) -> dict[str, str]:
        burst = burst_of(rate, limits.submit_burst)
        detail = f"the tenant may submit {rate:g} tasks a second"
        return await self.submits.take(limits.id, rate, burst, count, detail)

    async def count_against_quota(self, tenant: int, most: int, count: int) -> None:
        if len(self.quotas) >= OWNERS_MAX:
            self.quotas.clear()
        quota = self.quotas.setdefault(tenant, Quota())
        async with quota.counting:
            now = self.clock.monotonic()
            if now >= quota.count_again_at:
                quota.count = await count_stored(self.database, tenant, most + 1)
                quota.count_again_at = now + COUNT_EVERY_S
        if quota.count + count > most:
            wait_s = max(1, math.ceil(quota.count_again_at - now))
            raise ApiProblem(
                Code.QUOTA_EXCEEDED,
                f"the tenant may have {most} unfinished tasks, and has about {quota.count}",
                headers={"retry-after": str(wait_s)},
            )
        quota.count += count

    async def close(self) -> None:
        await self.tenants.close()


def rate_headers(tokens: RateTokens, now: float, rate: float, burst: float) -> dict[str, str]:
    remaining = max(0.0, min(burst, tokens.most(now, rate, burst)))
    return {
        "ratelimit-limit": str(math.floor(burst)),
        "ratelimit-remaining": str(math.floor(remaining)),
        "ratelimit-reset": str(math.ceil((burst - remaining) / rate)),
    }
