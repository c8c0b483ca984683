"""Inputs of the gates for dispatch: tenants' limits, pauses, breakers, what is in flight.

The rules are in `domain/gates.py`. The role at the end reloads the limits every few seconds.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from duly.coordinator.ownership import Coordinator
from duly.domain.breaker import BreakerKind, kind_of, pool_subject, type_subject
from duly.domain.explain import RateLevel
from duly.domain.gates import GateFacts, Refusal, first_refusal
from duly.domain.task import Policy
from duly.domain.token_bucket import TokenBucket, burst_of
from duly.role import Wakeup
from duly.scheduler.closed_lanes import ClosedLanes
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.dispatch_scope import DispatchScope, home_shard
from duly.scheduler.in_flight import InFlight, key_of
from duly.scheduler.probes import Probes
from duly.scheduler.ready_state import ReadyTimer
from duly.store.database import Database
from duly.store.explain import tell_rate_levels
from duly.store.load import DueTimer
from duly.store.tenants import Breaker, GateInputs, Pause, PauseKind, Tenant, read_gate_inputs

REFRESH_S = 3.0
NOT_YET_S = 0.05
NOTHING = GateInputs({}, [], [])


class Bounds:
    """Inputs of the gates, indexed."""

    def __init__(self, inputs: GateInputs) -> None:
        self.tenants: dict[int, Tenant] = inputs.tenants
        self.pauses = {(p.tenant, p.kind, pause_subject(p)): p for p in inputs.pauses}
        self.breakers = {(b.tenant, b.host): b for b in inputs.breakers}
        # Tenants whose workers' attempts are watched: a success may end a breaker.
        self.watched_workers = frozenset(
            b.tenant for b in inputs.breakers if kind_of(b.host)[0] is not BreakerKind.HOST
        )
        self.capped = frozenset(
            tenant.id for tenant in inputs.tenants.values() if tenant.in_flight_max is not None
        )
        self.at_home = frozenset(each.id for each in inputs.tenants.values() if each.is_at_home)
        stopped = {p.tenant for p in inputs.pauses} | {b.tenant for b in inputs.breakers}
        # Tenants whose tasks must be asked about one by one.
        self.restricted = frozenset(self.at_home | stopped)

    def pause_of(self, due: DueTimer, pool: int) -> Pause | None:
        for kind, subject in (
            (PauseKind.TENANT, ""),
            (PauseKind.TYPE, due.type),
            (PauseKind.POOL, str(pool)),
        ):
            pause = self.pauses.get((due.tenant, kind, subject))
            if pause is not None:
                return pause
        return None


def pause_subject(pause: Pause) -> str:
    return str(pause.pool) if pause.kind is PauseKind.POOL else pause.name


class Gatekeeper:
    def __init__(self, time: DatabaseTime, counts: InFlight, coordinator: Coordinator) -> None:
        self.time = time
        self.counts = counts
        self.scope = DispatchScope(coordinator)
        self.bounds = Bounds(NOTHING)
        # Until the bounds were read once, everything would pass: pauses and caps are not known.
        self.is_informed = False
        self.buckets: dict[int, TokenBucket] = {}
        self.probes = Probes()
        # Where tasks with a concurrency key were seen: their leases are counted.
        self.keyed: set[tuple[int, int]] = set()
        # When the leases of a (tenant, shard) were last counted, by the database's clock.
        self.counted_at: dict[tuple[int, int], float] = {}

    def learn(self, bounds: Bounds) -> None:
        """New bounds; a bucket whose rate changed keeps what its new burst allows."""
        now, known = self.time.now(), self.bounds.tenants
        moved = frozenset(t for t in self.bounds.at_home ^ bounds.at_home if t in known)
        self.scope.learn(bounds.at_home, moved, now)
        self.bounds = bounds
        self.is_informed = True
        self.probes.forget(bounds.breakers)
        rated = [t for t in bounds.tenants.values() if t.dispatch_rate is not None]
        self.buckets = {
            tenant.id: bucket
            for tenant in rated
            if (bucket := self.bucket_of(tenant.id, now)) is not None
        }

    def bucket_of(self, number: int, now: float) -> TokenBucket | None:
        """None: no rate, or another node dispatches the tenant. A former owner may have spent all
        there was until its tickets began to be void: a new owner's bucket was empty then."""
        tenant = self.bounds.tenants.get(number)
        owned = self.scope.believed(number, home_shard(number))
        if tenant is None or tenant.dispatch_rate is None or owned is None:
            return None
        rate, burst = tenant.dispatch_rate, burst_of(tenant.dispatch_rate, tenant.dispatch_burst)
        bucket = self.buckets.get(number)
        if bucket is None:
            left_at = owned.void_at - timedelta(seconds=self.scope.coordinator.ticket_s)
            bucket = TokenBucket(rate, burst, 0.0, min(left_at.timestamp(), now))
        elif (bucket.rate, bucket.burst) != (rate, burst):
            bucket.refill(now)
            bucket = TokenBucket(rate, burst, min(bucket.tokens, burst), now)
        self.buckets[number] = bucket
        return bucket

    def rate_levels(self) -> dict[int, RateLevel]:
        """Buckets that are not full; one node has a bucket of each tenant."""
        now, levels = self.time.now(), {}
        for tenant, bucket in self.buckets.items():
            bucket.refill(now)
            if bucket.tokens < bucket.burst:
                levels[tenant] = RateLevel(bucket.tokens, bucket.rate, bucket.burst, instant(now))
        return levels

    def weight_of(self, number: int) -> float:
        tenant = self.bounds.tenants.get(number)
        return 1.0 if tenant is None else tenant.weight

    def is_ungated(self, tenant: int, asked: DueTimer | Policy) -> bool:
        """Whether only a full lane can hold this task back: the common case, decided quickly."""
        return (
            asked.concurrency_key is None
            and asked.start_by is None
            and tenant not in self.bounds.restricted
        )

    def transfer_until(self, due: DueTimer, now: float) -> datetime | None:
        """Until the old owner's tickets are void, and what they became has been counted."""
        void_at = self.scope.void_at(due.tenant, due.shard)
        if void_at is None:
            return None
        counted_at = self.counted_at.get((due.tenant, due.shard))
        if counted_at is not None and counted_at >= void_at.timestamp():
            return None
        return max(void_at, instant(now + NOT_YET_S))

    def forget_foreign(self) -> None:
        """Forget counts of tenants that another node dispatches."""
        includes = self.scope.includes
        for shard in [shard for shard in self.counted_at if not includes(*shard)]:
            del self.counted_at[shard]
        self.keyed = {shard for shard in self.keyed if includes(*shard)}
        self.buckets = {t: b for t, b in self.buckets.items() if includes(t, home_shard(t))}

    def is_counted(self, due: DueTimer) -> bool:
        return due.concurrency_key is not None or due.tenant in self.bounds.capped

    def ask(self, entry: ReadyTimer, depth: int, depth_max: int) -> Refusal | None:
        """The gate that holds the task back, or None; a token is taken when it may go."""
        if entry.due.concurrency_key is not None:
            self.keyed.add((entry.due.tenant, entry.due.shard))
        refusal = first_refusal(self.facts(entry, depth, depth_max))
        if refusal is None:
            now = self.time.now()
            bucket = self.bucket_of(entry.due.tenant, now)
            if bucket is not None:
                bucket.spend(now)
            for breaker in self.breakers_of(entry):
                self.probes.passed(breaker, now)
        return refusal

    def breakers_of(self, entry: ReadyTimer) -> list[Breaker]:
        """Of its host, or of its type and pool: it must pass all of them."""
        due = entry.due
        subjects: tuple[str, ...] = (due.host or "",)
        if due.host is None:
            subjects = (type_subject(due.type), pool_subject(entry.tenant_pool[1]))
        known = (self.bounds.breakers.get((due.tenant, subject)) for subject in subjects)
        return [breaker for breaker in known if breaker is not None]

    def breaker_until(self, entry: ReadyTimer, now: float) -> datetime | None:
        ready = [self.probes.ready_at(breaker, now) for breaker in self.breakers_of(entry)]
        return instant(max(ready)) if ready else None

    def facts(self, entry: ReadyTimer, depth: int, depth_max: int) -> GateFacts:
        due, now = entry.due, self.time.now()
        tenant = self.bounds.tenants.get(due.tenant)
        key = key_of(due)
        bucket = self.bucket_of(due.tenant, now)
        pause = self.bounds.pause_of(due, entry.tenant_pool[1])
        return GateFacts(
            now=instant(now),
            tenant=tenant.name if tenant is not None else "",
            paused_by=f"paused by {pause.actor}: {pause.reason}" if pause is not None else None,
            start_by=due.start_by,
            breaker_open_until=self.breaker_until(entry, now),
            transfer_until=self.transfer_until(due, now) if self.is_counted(due) else None,
            rate_ready_at=instant(bucket.ready_at(now)) if bucket is not None else None,
            in_flight=self.counts.in_flight(due.tenant),
            in_flight_max=tenant.in_flight_max if tenant is not None else None,
            concurrency_key=due.concurrency_key,
            key_in_flight=self.counts.key_in_flight(key) if key is not None else 0,
            key_limit=due.concurrency_limit,
            lane_depth=depth,
            lane_depth_max=depth_max,
        )


class BoundsReader:
    """A role: what an operator changed takes effect within its period, `explain` hears of rates
    that are in use, and the log of lanes that stay full."""

    name = "bounds"

    def __init__(
        self,
        database: Database,
        gatekeeper: Gatekeeper,
        on_change: Callable[[Bounds], None],
        closed_lanes: ClosedLanes,
        wakeup: Wakeup,
    ) -> None:
        self.database = database
        self.gatekeeper = gatekeeper
        self.on_change = on_change
        self.closed_lanes = closed_lanes
        self.wakeup = wakeup

    async def tick(self) -> float:
        if not self.gatekeeper.time.is_known:
            return NOT_YET_S
        bounds = Bounds(await read_gate_inputs(self.database))
        self.gatekeeper.learn(bounds)
        self.on_change(bounds)
        levels = self.gatekeeper.rate_levels()
        if levels:
            await tell_rate_levels(self.database, levels)
        await self.closed_lanes.look(bounds.tenants)
        return REFRESH_S

    async def close(self) -> None:
        """Nothing is held."""


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
