"""Two bounds at the door: how fast a tenant may submit, and how many live tasks it may have.

The rate is shared evenly between the processes that serve the API. The quota is counted in the
database every few seconds and told of our own submits in between, so that a race between processes
may pass it by what they take in one period.
"""

import asyncio
import math

from duly.api.problems import Code, Refused
from duly.api.recall import Recall
from duly.domain.tokens import TokenBucket
from duly.environment import Environment
from duly.store.database import Database
from duly.store.ownership import count_nodes
from duly.store.tenants import Tenant, count_stored, read_tenant

API_ROLE = "api"
COUNT_EVERY_S = 5.0
TENANTS_MAX = 10_000


class Quota:
    """Live tasks of one tenant, as of the last count and what we took since."""

    __slots__ = ("count", "count_again_at", "counting")

    def __init__(self) -> None:
        self.count = 0
        self.count_again_at = 0.0
        # Whoever comes while it is counted waits for the count, and is then added to it.
        self.counting = asyncio.Lock()


class Throttle:
    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.clock = environment.clock
        self.tenants: Recall[int, Tenant | None] = Recall(
            environment.clock, lambda tenant: read_tenant(database, tenant)
        )
        self.processes: Recall[str, int] = Recall(
            environment.clock, lambda role: count_nodes(database, role)
        )
        self.buckets: dict[int, TokenBucket] = {}
        self.quotas: dict[int, Quota] = {}

    async def admit(self, tenant: int, count: int) -> dict[str, str]:
        """Headers that tell the caller where it stands; Refused past a bound."""
        limits = await self.tenants.get(tenant)
        if limits is None or (limits.submit_rate is None and limits.stored_max is None):
            return {}
        headers = {}
        if limits.submit_rate is not None:
            headers = await self.take(limits, limits.submit_rate, count)
        if limits.stored_max is not None:
            try:
                await self.count_against_quota(tenant, limits.stored_max, count)
            except Refused:
                if tenant in self.buckets:
                    self.buckets[tenant].give_back(count)
                raise
        return headers

    async def admit_spread(self, tenant: int, count: int) -> None:
        """Tasks that fire over a time of their own: only how many there may be matters."""
        limits = await self.tenants.get(tenant)
        if limits is not None and limits.stored_max is not None:
            await self.count_against_quota(tenant, limits.stored_max, count)

    async def take(self, limits: Tenant, whole_rate: float, count: int) -> dict[str, str]:
        processes = max(1, await self.processes.get(API_ROLE))
        rate = whole_rate / processes
        whole_burst = max(1.0, limits.submit_burst or whole_rate)
        burst = max(1.0, whole_burst / processes)
        bucket, now = self.bucket_of(limits.id, rate, burst), self.clock.monotonic()
        if burst < count <= whole_burst and bucket.ready_at(now, burst) <= now:
            # More than our share at once, and no more than the tenant's: the rest is owed.
            bucket.spend(now, count)
            return rate_headers(bucket, now)
        if count > whole_burst:
            most = math.floor(whole_burst)
            detail = f"{count} tasks at once are more than the {most} that may be saved up"
            raise Refused(Code.RATE_LIMITED, detail, headers=rate_headers(bucket, now))
        if not bucket.take(now, count):
            wait_s = math.ceil(bucket.ready_at(now, min(count, burst)) - now)
            headers = rate_headers(bucket, now) | {"retry-after": str(max(1, wait_s))}
            detail = f"the tenant may submit {whole_rate:g} tasks a second"
            raise Refused(Code.RATE_LIMITED, detail, headers=headers)
        return rate_headers(bucket, now)

    def bucket_of(self, tenant: int, rate: float, burst: float) -> TokenBucket:
        bucket = self.buckets.get(tenant)
        if bucket is None or (bucket.rate, bucket.burst) != (rate, burst):
            if len(self.buckets) >= TENANTS_MAX:
                self.buckets.clear()
            bucket = self.buckets[tenant] = TokenBucket.full(rate, burst, self.clock.monotonic())
        return bucket

    async def count_against_quota(self, tenant: int, most: int, count: int) -> None:
        if len(self.quotas) >= TENANTS_MAX:
            self.quotas.clear()
        quota = self.quotas.setdefault(tenant, Quota())
        async with quota.counting:
            now = self.clock.monotonic()
            if now >= quota.count_again_at:
                quota.count = await count_stored(self.database, tenant, most + 1)
                quota.count_again_at = now + COUNT_EVERY_S
        if quota.count + count > most:
            wait_s = max(1, math.ceil(quota.count_again_at - now))
            raise Refused(
                Code.QUOTA_EXCEEDED,
                f"the tenant may have {most} unfinished tasks, and has about {quota.count}",
                headers={"retry-after": str(wait_s)},
            )
        quota.count += count


def rate_headers(bucket: TokenBucket, now: float) -> dict[str, str]:
    bucket.refill(now)
    reset_s = math.ceil((bucket.burst - bucket.tokens) / bucket.rate)
    return {
        "ratelimit-limit": str(math.floor(bucket.burst)),
        "ratelimit-remaining": str(math.floor(bucket.tokens)),
        "ratelimit-reset": str(reset_s),
    }
