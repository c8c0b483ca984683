"""Tenant endpoints: tenants and their limits. Only admins of the installation change them; a tenant
reads its own."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from duly.api.asgi import Endpoint, Kind
from duly.api.credentials import Authenticator
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.rate_limit import Throttle
from duly.api.request import Answer, Call
from duly.api.wire import Limit, Page, page
from duly.domain import limits
from duly.domain.access import ADMINS, OPERATORS, READERS, Reach
from duly.domain.limits import Problem, tenant_problems
from duly.store.audit import append_audit
from duly.store.database import Database
from duly.store.tenants import (
    Tenant,
    TenantLimits,
    create_tenant,
    find_tenant,
    list_tenants,
    lock_tenant,
    suspend_tenant,
    update_tenant,
)

TAG = "Tenants"
NAME_PATTERN = f"^{limits.TENANT_PATTERN.pattern}$"

TenantName = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=64)]
Weight = Annotated[
    float,
    Meta(ge=limits.WEIGHT_MIN, le=limits.WEIGHT_MAX, description="Share under saturation."),
]
InFlightMax: TypeAlias = Annotated[int, Meta(ge=1, le=limits.IN_FLIGHT_MAX_MAX)] | None
DispatchRate: TypeAlias = (
    Annotated[float, Meta(ge=limits.DISPATCH_RATE_MIN, le=limits.DISPATCH_RATE_MAX)] | None
)
DispatchBurst: TypeAlias = Annotated[float, Meta(ge=1, le=limits.DISPATCH_BURST_MAX)] | None
SubmitRate: TypeAlias = (
    Annotated[float, Meta(ge=limits.SUBMIT_RATE_MIN, le=limits.SUBMIT_RATE_MAX)] | None
)
SubmitBurst: TypeAlias = Annotated[float, Meta(ge=1, le=limits.SUBMIT_BURST_MAX)] | None
StoredMax: TypeAlias = Annotated[int, Meta(ge=1, le=limits.STORED_MAX_MAX)] | None
ScheduleSecondsMin = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.SCHEDULE_S_MIN_MAX,
        description="The least seconds between two fires of one schedule.",
    ),
]


class TenantRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bound that is null or not given is no bound."""

    name: TenantName
    weight: Weight = 1.0
    in_flight_max: InFlightMax = None
    dispatch_rate: DispatchRate = None
    dispatch_burst: DispatchBurst = None
    submit_rate: SubmitRate = None
    submit_burst: SubmitBurst = None
    stored_max: StoredMax = None
    schedule_s_min: ScheduleSecondsMin = 1


class TenantChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is not given stays as it is; null takes a bound away. While it is `suspended`, calls of
    its credentials are refused and its tasks wait."""

    weight: Weight | UnsetType = UNSET
    in_flight_max: InFlightMax | UnsetType = UNSET
    dispatch_rate: DispatchRate | UnsetType = UNSET
    dispatch_burst: DispatchBurst | UnsetType = UNSET
    submit_rate: SubmitRate | UnsetType = UNSET
    submit_burst: SubmitBurst | UnsetType = UNSET
    stored_max: StoredMax | UnsetType = UNSET
    schedule_s_min: ScheduleSecondsMin | UnsetType = UNSET
    suspended: bool | UnsetType = UNSET


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    weight: float
    in_flight_max: int | None
    dispatch_rate: float | None
    dispatch_burst: float | None
    submit_rate: float | None
    submit_burst: float | None
    stored_max: int | None
    schedule_s_min: int
    suspended: bool


class TenantsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class TenantRoutes:
    database: Database
    authenticator: Authenticator
    throttle: Throttle

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/tenants",
                summary="List the tenants of the installation",
                handler=self.list_page,
                kind=Kind.INSTALLATION,
                access=OPERATORS,
                query=TenantsQuery,
                answers={200: Page[TenantView]},
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/tenants",
                summary="Create a tenant",
                handler=self.create,
                kind=Kind.INSTALLATION,
                access=ADMINS,
                body=TenantRequest,
                answers={201: TenantView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.CONFLICT),
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/tenants/{name}",
                summary="Read a tenant's limits",
                handler=self.get,
                # One row by its name, after we asked whether the caller may see it.
                kind=Kind.HOT,
                access=READERS,
                answers={200: TenantView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
            Endpoint(
                method="PATCH",
                path="/v1/tenants/{name}",
                summary="Change some limits of a tenant",
                handler=self.change,
                kind=Kind.INSTALLATION,
                access=ADMINS,
                body=TenantChange,
                answers={200: TenantView},
                refusals=(Code.NOT_FOUND, Code.MALFORMED_BODY, Code.INVALID),
                tag=TAG,
            ),
        ]

    async def list_page(self, call: Call, query: TenantsQuery) -> Answer:
        found, following = await list_tenants(call.session, query.cursor, query.limit)
        return Answer(200, page([tenant_view(tenant) for tenant in found], following))

    async def create(self, call: Call, asked: TenantRequest) -> Answer:
        fields = msgspec.structs.asdict(asked)
        if problems := tenant_problems(**fields):
            raise invalid(problems)
        name = fields.pop("name")
        tenant = await create_tenant(call.session, name, TenantLimits(**fields))
        if tenant is None:
            raise ApiProblem(Code.CONFLICT, f"tenant {name} exists already")
        await self.record(call, "tenant.create", tenant, fields)
        return Answer(201, tenant_view(tenant))

    async def get(self, call: Call) -> Answer:
        name = tenant_name_of(call)
        is_theirs = name == call.credential.tenant_name
        if not is_theirs and call.credential.reach is not Reach.INSTALLATION:
            raise not_found("tenant", name)
        tenant = await find_tenant(self.database, name)
        if tenant is None:
            raise not_found("tenant", name)
        return Answer(200, tenant_view(tenant))

    async def change(self, call: Call, asked: TenantChange) -> Answer:
        fields = msgspec.structs.asdict(asked).items()
        given = {name: value for name, value in fields if value is not UNSET}
        if not given:
            known_fields = (*TenantLimits._fields, "suspended")
            raise invalid([Problem("", f"give one of {', '.join(known_fields)}")])
        known = await lock_tenant(call.session, tenant_name_of(call))
        if known is None:
            raise not_found("tenant", call.params["name"])
        bounds = {name: value for name, value in given.items() if name != "suspended"}
        changed = limits_of(known)._replace(**bounds)
        if problems := tenant_problems(known.name, **changed._asdict()):
            raise invalid(problems)
        tenant = await update_tenant(call.session, known.id, changed)
        assert tenant is not None, "its row is locked by this transaction"
        if asked.suspended is not UNSET:
            tenant = await suspend_tenant(call.session, known.id, asked.suspended)
        await self.record(call, "tenant.change", tenant, given)
        return Answer(200, tenant_view(tenant))

    async def record(
        self, call: Call, action: str, tenant: Tenant, detail: dict[str, object]
    ) -> None:
        """In the audit of the tenant whose admin did it, and of the one that it was done to."""
        call.note(action, tenant.name, **detail)
        if tenant.id != call.tenant:
            actor, text = call.credential.actor, msgspec.json.encode(detail).decode()
            await append_audit(call.session, tenant.id, actor, action, tenant.name, text)
        call.after.append(lambda: self.forget(tenant))

    def forget(self, tenant: Tenant) -> None:
        """What this process remembers of it, also that it did not exist."""
        self.authenticator.tenants.forget(tenant.name)
        self.throttle.tenants.forget(tenant.id)


def tenant_name_of(call: Call) -> str:
    name = call.params["name"]
    if not limits.TENANT_PATTERN.fullmatch(name):
        raise not_found("tenant", name)
    return name


def limits_of(tenant: Tenant) -> TenantLimits:
    return TenantLimits(*(getattr(tenant, name) for name in TenantLimits._fields))


def tenant_view(tenant: Tenant) -> TenantView:
    is_suspended = tenant.suspended_at is not None
    return TenantView(name=tenant.name, suspended=is_suspended, **limits_of(tenant)._asdict())
