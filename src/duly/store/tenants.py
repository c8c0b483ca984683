"""Tenants and the inputs of the gates: limits, pauses, breakers, and what is in flight.

Writes answer what they did; permissions are checked in `api/`, never here. The bounds on pauses and
breakers are kept at the write, so that a read never leaves one out.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from duly.domain.breaker import RAMP_S
from duly.domain.limits import IN_FLIGHT_MAX_MAX
from duly.store.database import Session
from duly.store.lease import IN_PLACE_LISTED_MAX
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
TENANTS_PAGE = 1000
PAUSES_PER_TENANT_MAX = 1000
# Writers that race may each pass the bound by one; the read has room for that.
CLOSED_READ_MAX = 2000
# More than any cap, so that a count is never cut off below one.
COUNT_MAX = IN_FLIGHT_MAX_MAX + 100_000
COUNT_BATCH_MAX = 1000
BEFORE_ALL = -(2**31)


class TenantLimits(NamedTuple):
    """A tenant's share and bounds; None is no bound."""

    weight: float = 1.0
    in_flight_max: int | None = None
    dispatch_rate: float | None = None
    dispatch_burst: float | None = None
    submit_rate: float | None = None
    submit_burst: float | None = None
    stored_max: int | None = None
    # How close two fires of one schedule may be; never without a bound.
    schedule_s_min: int = 1


NO_BOUNDS = TenantLimits()


class Tenant(NamedTuple):
    id: int
    name: str
    weight: float
    in_flight_max: int | None
    dispatch_rate: float | None
    dispatch_burst: float | None
    spread: int
    # Checked by the API; the gates do not read these.
    submit_rate: float | None = None
    submit_burst: float | None = None
    stored_max: int | None = None
    schedule_s_min: int = 1
    suspended_at: datetime | None = None

    @property
    def is_at_home(self) -> bool:
        """Whether one node dispatches all of its tasks, so that it can count."""
        return self.in_flight_max is not None or self.dispatch_rate is not None


class PauseKind(StrEnum):
    TENANT = "tenant"
    TYPE = "type"
    POOL = "pool"


class Pause(NamedTuple):
    """What an operator stopped. `name` is empty for a whole tenant; `pool` is a pool's number."""

    tenant: int
    kind: PauseKind
    name: str
    pool: int | None
    actor: str
    reason: str
    paused_at: datetime


class Breaker(NamedTuple):
    tenant: int
    host: str
    reason: str
    open_until: datetime
    ramp_at: datetime | None = None


class GateInputs(NamedTuple):
    """Gate inputs; each page of tenants is as of its own query."""

    tenants: dict[int, Tenant]
    pauses: list[Pause]
    breakers: list[Breaker]


class PauseAnswer(StrEnum):
    PAUSED = "paused"
    NO_TENANT = "no_tenant"
    TOO_MANY = "too_many"


async def read_gate_inputs(session: Session, page: int = TENANTS_PAGE) -> GateInputs:
    """Everything, one statement for each page of tenants."""
    inputs = GateInputs({}, [], [])
    after = BEFORE_ALL
    while True:
        rows = await session.fetch(SQL.read_gate_inputs, after, page, CLOSED_READ_MAX, RAMP_S)
        known = len(inputs.tenants)
        for row in rows:
            inputs.tenants[row["id"]] = Tenant(*row[:7])
            if row["kind"] is not None:
                add_closed(inputs, row["id"], *row[7:])
        if len(inputs.tenants) - known < page:
            return inputs
        after = rows[-1]["id"]


def add_closed(
    inputs: GateInputs,
    tenant: int,
    kind: str,
    subject: str,
    pool: int | None,
    actor: str,
    reason: str,
    instant: datetime,
    ramp_at: datetime | None,
) -> None:
    if kind == "breaker":
        inputs.breakers.append(Breaker(tenant, subject, reason, instant, ramp_at))
    else:
        inputs.pauses.append(Pause(tenant, PauseKind(kind), subject, pool, actor, reason, instant))


async def create_tenant(
    session: Session, name: str, limits: TenantLimits = NO_BOUNDS
) -> Tenant | None:
    """None: the name is taken."""
    rows = await session.fetch(SQL.create_tenant, name, *limits)
    return Tenant(*rows[0]) if rows else None


async def find_tenant(session: Session, name: str) -> Tenant | None:
    rows = await session.fetch(SQL.find_tenant, name)
    return Tenant(*rows[0]) if rows else None


async def read_tenant(session: Session, tenant: int) -> Tenant | None:
    rows = await session.fetch(SQL.read_tenant, tenant)
    return Tenant(*rows[0]) if rows else None


async def lock_tenant(session: Session, name: str) -> Tenant | None:
    """Lock the row until the caller's transaction ends."""
    rows = await session.fetch(SQL.lock_tenant, name)
    return Tenant(*rows[0]) if rows else None


async def list_tenants(
    session: Session, cursor: str | None, limit: int
) -> tuple[list[Tenant], str | None]:
    rows = await session.fetch(SQL.list_tenants, cursor or "", limit)
    tenants = [Tenant(*row) for row in rows]
    return tenants, tenants[-1].name if len(tenants) == limit else None


async def count_stored(session: Session, tenant: int, most: int) -> int:
    """Live tasks; above `most` the count is a lower bound."""
    (row,) = await session.fetch(SQL.count_stored, tenant, most)
    stored: int = row["stored"]
    return stored


async def update_tenant(session: Session, tenant: int, limits: TenantLimits) -> Tenant | None:
    """None: there is no such tenant."""
    rows = await session.fetch(SQL.update_tenant, tenant, *limits)
    return Tenant(*rows[0]) if rows else None


async def suspend_tenant(session: Session, tenant: int, is_suspended: bool) -> Tenant:
    """In the transaction that locked it."""
    (row,) = await session.fetch(SQL.suspend_tenant, tenant, is_suspended)
    return Tenant(*row)


async def read_schedule_bound(session: Session, tenant: int) -> tuple[int, datetime]:
    """The least seconds between two fires, and the time by the database's clock."""
    (row,) = await session.fetch(SQL.read_schedule_bound, tenant)
    return row["schedule_s_min"], row["now"]


async def raise_spread(session: Session, tenant: int, old: int, new: int) -> bool:
    """False: it was changed concurrently, it is no wider, or the tenant's cap is too tight."""
    return bool(await session.fetch(SQL.raise_spread, tenant, old, new))


async def set_pause(
    session: Session, tenant: int, kind: PauseKind, name: str, actor: str, reason: str
) -> PauseAnswer:
    """Pausing what is paused already replaces actor and reason."""
    (row,) = await session.fetch(
        SQL.set_pause, tenant, kind.value, name, actor, reason, PAUSES_PER_TENANT_MAX
    )
    if not row["is_known"]:
        return PauseAnswer.NO_TENANT
    return PauseAnswer.PAUSED if row["is_written"] else PauseAnswer.TOO_MANY


async def find_pause(session: Session, tenant: int, kind: PauseKind, name: str) -> Pause | None:
    """Without the number of its pool, which only the gates ask for."""
    rows = await session.fetch(SQL.find_pause, tenant, kind.value, name)
    return Pause(tenant, kind, *rows[0][2:]) if rows else None


async def list_pauses(
    session: Session, tenant: int, after: tuple[str, str], limit: int
) -> list[Pause]:
    """Those after (kind, name), in that order."""
    rows = await session.fetch(SQL.list_pauses, tenant, *after, limit)
    return [Pause(row["tenant"], PauseKind(row["kind"]), *row[2:]) for row in rows]


async def clear_pause(session: Session, tenant: int, kind: PauseKind, name: str) -> bool:
    return bool(await session.fetch(SQL.clear_pause, tenant, kind.value, name))


async def count_in_flight(session: Session, tenants: Iterable[int]) -> dict[int, int]:
    """Leases of each tenant, over every shard it was ever placed on."""
    asked = sorted(set(tenants))
    counts = dict.fromkeys(asked, 0)
    for start in range(0, len(asked), COUNT_BATCH_MAX):
        batch = asked[start : start + COUNT_BATCH_MAX]
        for row in await session.fetch(SQL.count_in_flight, batch, COUNT_MAX, IN_PLACE_LISTED_MAX):
            counts[row["tenant"]] = row["in_flight"]
    return counts


async def count_in_flight_by_key(
    session: Session, keys: Sequence[tuple[int, int, str]]
) -> dict[tuple[int, int, str], int]:
    """Leases of each (tenant, shard, concurrency key)."""
    asked = sorted(set(keys))
    counts = dict.fromkeys(asked, 0)
    for start in range(0, len(asked), COUNT_BATCH_MAX):
        batch = asked[start : start + COUNT_BATCH_MAX]
        rows = await session.fetch(
            SQL.count_in_flight_by_key,
            [tenant for tenant, _, _ in batch],
            [shard for _, shard, _ in batch],
            sorted({key for _, _, key in batch}),
            COUNT_MAX,
        )
        for row in rows:
            # A neighbour's key of the same name may sit in another asked place.
            if (place := (row["tenant"], row["shard"], row["key"])) in counts:
                counts[place] = row["in_flight"]
    return counts
