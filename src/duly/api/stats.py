"""Statistics endpoints: counts per minute over time, and the current state of a tenant."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code
from duly.api.request import Answer, Call
from duly.api.wire import Instant, Limit, TypeName
from duly.domain import limits
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.breaker import BreakerKind
from duly.domain.histogram import quantile
from duly.domain.ids import EPOCH
from duly.domain.limits import Problem
from duly.environment import Environment
from duly.store.cluster import COUNT_MAX, Depth, TenantStatus, read_tenant_status
from duly.store.stats import (
    Point,
    TenantCounts,
    added_up,
    read_points,
    read_tenant_stats,
)

TAG = "Operations"
HOUR = timedelta(hours=1)
# Far from what a datetime cannot hold, so that no sum below can leave it.
EARLIEST = EPOCH
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
# Of each band, ready and scheduled: with a million tasks stored, six counts to 10,000 take most of
# the time that a look may take.
COUNT_DEFAULT = 1000
# How far back the pace is measured by which a drain is estimated.
PACE = timedelta(minutes=5)
BAND_NAMES = ("high", "normal", "low")


class StatsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The last hour in minutes, unless it says otherwise."""

    since: Instant | None = msgspec.field(default=None, name="from")
    to: Instant | None = None
    type: TypeName | None = None
    step_s: Annotated[
        int,
        Meta(
            ge=limits.STATS_STEP_S_MIN,
            le=limits.STATS_STEP_S_MAX,
            multiple_of=60,
            description="Length of one point; whole minutes.",
        ),
    ] = 60


class NowQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count_max: Annotated[
        int, Meta(ge=1, le=COUNT_MAX, description="Where a count stops; looking costs as much.")
    ] = COUNT_DEFAULT


class TenantStatsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 20


class TenantStatsView(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    submitted: int
    started: int
    completed: int
    failed: int
    retried: int
    lag_p50_s: float | None
    lag_p99_s: float | None


class TenantStatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Tenants that waited longest first."""

    since: datetime = msgspec.field(name="from")
    items: list[TenantStatsView]


class PointView(msgspec.Struct, frozen=True, kw_only=True):
    """`lag`: from the fire time to the start. `run`: how long attempts took. None: nothing ran."""

    at: datetime
    submitted: int
    started: int
    completed: int
    failed: int
    retried: int
    lag_p50_s: float | None
    lag_p99_s: float | None
    run_p50_s: float | None
    run_p99_s: float | None


class StatsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A step in which nothing happened has no point. `total` is the whole range in one."""

    since: datetime = msgspec.field(name="from")
    to: datetime
    step_s: int
    total: PointView
    items: list[PointView]


class BandView(msgspec.Struct, frozen=True, kw_only=True):
    band: str
    ready: int
    scheduled: int
    oldest_ready_s: float | None


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    kind: BreakerKind
    name: str
    host: str | None
    reason: str
    open_until: datetime


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with due tasks, and how many live workers take from it."""

    name: str
    oldest_ready_s: float
    workers: int


class NowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A count that has reached `count_max` means that many or more.

    `drain_s` is how long the counted ready work lasts at the pace of the last minutes, and a lower
    bound like a count is one; None if nothing was started in them. `workflow_overdue_s` is how
    long what workflows have to do waits for its scheduler.
    """

    at: datetime
    count_max: int
    bands: list[BandView]
    in_flight: int
    dead_letters: int
    breakers: list[BreakerView]
    pools: list[PoolView]
    submitted_per_s: float
    started_per_s: float
    ended_per_s: float
    lag_p50_s: float | None
    lag_p99_s: float | None
    drain_s: float | None
    workflow_overdue_s: float


@dataclass(frozen=True)
class StatsRoutes:
    environment: Environment

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/stats",
                summary="Statistics over time, in steps of minutes",
                handler=self.over_time,
                kind=Kind.READ,
                access=PRODUCERS,
                query=StatsQuery,
                answers={200: StatsAnswer},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/stats/now",
                summary="Current backlog, running tasks and failures",
                handler=self.now,
                kind=Kind.READ,
                access=PRODUCERS,
                query=NowQuery,
                answers={200: NowAnswer},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/stats/tenants",
                summary="Which tenants waited longest in the last five minutes",
                handler=self.by_tenant,
                kind=Kind.INSTALLATION,
                access=OPERATORS,
                query=TenantStatsQuery,
                answers={200: TenantStatsAnswer},
                tag=TAG,
                is_bulk=True,
            ),
        ]

    async def over_time(self, call: Call, query: StatsQuery) -> Answer:
        first, last = checked_range(query, self.environment.clock.now())
        points = await read_points(call.session, call.tenant, first, last, query.step_s, query.type)
        if points is None:
            raise refused("from", "leaves too much to add up; name a type, or a shorter range")
        answer = StatsAnswer(
            since=first,
            to=last,
            step_s=query.step_s,
            total=point_view(added_up(points, first)),
            items=[point_view(point) for point in points],
        )
        return Answer(200, answer)

    async def now(self, call: Call, query: NowQuery) -> Answer:
        now = self.environment.clock.now()
        first = floor_to(now - PACE, 60)
        points = await read_points(call.session, call.tenant, first, now + HOUR, 3600)
        standing = await read_tenant_status(call.session, call.tenant, query.count_max)
        recent = added_up(points or [], first)
        counts, span_s = recent.counts, (now - first).total_seconds()
        pace = counts.started / span_s
        answer = NowAnswer(
            at=now,
            count_max=query.count_max,
            bands=[band_view(depth) for depth in standing.depths],
            in_flight=standing.in_flight,
            dead_letters=standing.dead_letters,
            breakers=[
                BreakerView(
                    kind=each.kind,
                    name=each.name,
                    host=each.name if each.kind is BreakerKind.HOST else None,
                    reason=each.reason,
                    open_until=each.open_until,
                )
                for each in standing.breakers
            ],
            pools=[PoolView(**each._asdict()) for each in standing.pools],
            submitted_per_s=counts.submitted / span_s,
            started_per_s=pace,
            ended_per_s=(counts.completed + counts.failed) / span_s,
            lag_p50_s=quantile(recent.lag, 0.5),
            lag_p99_s=quantile(recent.lag, 0.99),
            drain_s=drain_s(standing, pace),
            workflow_overdue_s=standing.workflow_overdue_s,
        )
        return Answer(200, answer)

    async def by_tenant(self, call: Call, query: TenantStatsQuery) -> Answer:
        since = floor_to(self.environment.clock.now() - PACE, 60)
        found = [tenant_view(each) for each in await read_tenant_stats(call.session, since)]
        found.sort(key=lambda each: (-(each.lag_p99_s or 0.0), each.tenant))
        return Answer(200, TenantStatsAnswer(since=since, items=found[: query.limit]))


def tenant_view(each: TenantCounts) -> TenantStatsView:
    return TenantStatsView(
        tenant=each.tenant,
        **each.counts._asdict(),
        lag_p50_s=quantile(each.lag, 0.5),
        lag_p99_s=quantile(each.lag, 0.99),
    )


def checked_range(query: StatsQuery, now: datetime) -> tuple[datetime, datetime]:
    """From the step that `from` lies in, up to `to`."""
    last = query.to or now
    if not EARLIEST < last <= LATEST:
        raise refused("to", "is out of range")
    last = last.astimezone(UTC)
    since = query.since or last - HOUR
    if not EARLIEST <= since < last:
        raise refused("from", "is not before to")
    first = floor_to(since, query.step_s)
    if (last - first).total_seconds() > limits.STATS_POINTS_MAX * query.step_s:
        raise refused("step_s", f"is too short: the range has over {limits.STATS_POINTS_MAX} steps")
    return first, last


def floor_to(instant: datetime, step_s: int) -> datetime:
    seconds = (instant - EPOCH) // timedelta(seconds=1)
    return EPOCH + timedelta(seconds=seconds - seconds % step_s)


def refused(name: str, reason: str) -> ApiProblem:
    return ApiProblem(Code.INVALID_QUERY, f"{name}: {reason}", [Problem(f"/{name}", reason)])


def drain_s(standing: TenantStatus, pace: float) -> float | None:
    ready = sum(depth.ready for depth in standing.depths)
    if not ready:
        return 0.0
    return ready / pace if pace else None


def band_view(depth: Depth) -> BandView:
    return BandView(
        band=BAND_NAMES[depth.band],
        ready=depth.ready,
        scheduled=depth.scheduled,
        oldest_ready_s=depth.oldest_ready_s,
    )


def point_view(point: Point) -> PointView:
    return PointView(
        at=point.at,
        **point.counts._asdict(),
        lag_p50_s=quantile(point.lag, 0.5),
        lag_p99_s=quantile(point.lag, 0.99),
        run_p50_s=quantile(point.run_time, 0.5),
        run_p99_s=quantile(point.run_time, 0.99),
    )
