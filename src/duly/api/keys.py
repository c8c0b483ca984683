"""API key endpoints: create, list, rotate, revoke. The text of a key is returned once, by the
request that created it; a key with less reach cannot create, rotate or revoke one."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.credentials import Authenticator
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.task_rules import TaskRules
from duly.api.wire import Limit, Page, TypeName, page
from duly.domain import limits
from duly.domain.access import ADMINS, OBSERVERS, Access, Credential, Reach
from duly.domain.limits import Problem, text_reason, type_reason
from duly.environment import Environment
from duly.store.keys import (
    KEYS_PER_TENANT_MAX,
    KeyFacts,
    NewKey,
    RotateRefusal,
    create_key,
    find_key,
    limit_key,
    list_keys,
    lock_key,
    revoke_key,
    rotate_key,
)
from duly.store.task_types import pass_on_types

TAG = "Keys"
GRACE_S_DEFAULT = 3600.0

RequestRate: TypeAlias = (
    Annotated[
        float,
        Meta(
            ge=limits.REQUEST_RATE_MIN,
            le=limits.REQUEST_RATE_MAX,
            description="Calls a second, of any kind, on all nodes together.",
        ),
    ]
    | None
)
KeyId = Annotated[str, Meta(pattern=f"^{limits.API_KEY_ID_PATTERN.pattern}$")]


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`types`: the task types that it may submit and change, all by default; it reads all of them,
    and changes nothing that concerns several. `signing`: its secret signs requests
    instead of being sent with them."""

    name: Annotated[str, Meta(min_length=1, max_length=limits.API_KEY_NAME_CHARACTERS_MAX)]
    role: Access
    reach: Reach = Reach.TENANT
    types: (
        Annotated[list[TypeName], Meta(min_length=1, max_length=limits.API_KEY_TYPES_MAX)] | None
    ) = None
    signing: bool = False
    expires_in_s: (
        Annotated[float, Meta(ge=limits.API_KEY_LIFE_S_MIN, le=limits.API_KEY_LIFE_S_MAX)] | None
    ) = None
    request_rate: RequestRate = None


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Null takes the bound away."""

    request_rate: RequestRate


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key lives on beside the new one."""

    grace_s: Annotated[float, Meta(ge=0, le=limits.GRACE_S_MAX)] = GRACE_S_DEFAULT


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as its admins see it: never what verifies it."""

    id: str
    name: str
    role: Access
    reach: Reach
    types: list[str] | None
    signing: bool
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    rotated_from: str | None
    request_rate: float | None


class MadeKeyView(KeyView, frozen=True, kw_only=True):
    """`key` is `duly_<id>_<secret>`, shown this once; a repeated call is answered without it."""

    key: str | None = None


class KeysQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class KeyRoutes:
    environment: Environment
    authenticator: Authenticator
    rules: TaskRules

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/keys",
                summary="List the keys of a tenant",
                handler=self.list_page,
                kind=Kind.READ,
                access=ADMINS,
                query=KeysQuery,
                answers={200: Page[KeyView]},
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/keys",
                summary="Create a key; its secret is shown once",
                handler=self.create,
                checks_types=True,
                kind=Kind.CONTROL,
                access=ADMINS,
                body=KeyRequest,
                answers={201: MadeKeyView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
                tag=TAG,
            ),
            *self.endpoints_of_one(),
        ]

    def endpoints_of_one(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/keys/{id}",
                summary="Read a key, without its secret",
                handler=self.get,
                kind=Kind.READ,
                access=ADMINS,
                answers={200: KeyView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
            Endpoint(
                method="PATCH",
                path="/v1/keys/{id}",
                summary="Change the request rate of a key",
                handler=self.change,
                checks_types=True,
                kind=Kind.CONTROL,
                access=ADMINS,
                body=KeyChange,
                answers={200: KeyView},
                refusals=(Code.NOT_FOUND, Code.MALFORMED_BODY, Code.INVALID),
                tag=TAG,
            ),
            Endpoint(
                method="DELETE",
                path="/v1/keys/{id}",
                summary="Revoke a key, everywhere within seconds",
                handler=self.revoke,
                checks_types=True,
                kind=Kind.CONTROL,
                access=ADMINS,
                answers={200: KeyView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/keys/{id}/rotate",
                summary="Rotate a key; the old one stays valid for a while",
                handler=self.rotate,
                checks_types=True,
                kind=Kind.CONTROL,
                access=ADMINS,
                body=RotateRequest,
                is_body_optional=True,
                answers={201: MadeKeyView},
                refusals=(
                    Code.NOT_FOUND,
                    Code.MALFORMED_BODY,
                    Code.INVALID,
                    Code.CONFLICT,
                    Code.TOO_MANY,
                ),
                tag=TAG,
            ),
        ]

    async def list_page(self, call: Call, query: KeysQuery) -> Answer:
        found, following = await list_keys(call.session, call.tenant, query.cursor, query.limit)
        return Answer(200, page([key_view(key) for key in found], following))

    async def create(self, call: Call, asked: KeyRequest) -> Answer:
        if problems := key_problems(asked):
            raise invalid(problems)
        types = None if asked.types is None else sorted(set(asked.types))
        check_reach(call.credential, asked.reach, types)
        wanted = NewKey(
            asked.name,
            asked.role,
            asked.reach,
            types,
            asked.signing,
            asked.expires_in_s,
            request_rate=asked.request_rate,
        )
        made = await create_key(
            call.session, self.environment, call.tenant, wanted, call.credential.actor
        )
        if made is None:
            raise too_many_keys()
        key, text = made
        call.note("key.create", key.id, **facts_of(key))
        # Its id may have been tried, and be remembered as unknown.
        call.after.append(lambda: self.authenticator.keys.forget(key.id))
        return Answer(201, made_view(key, text), kept=made_view(key, None))

    async def get(self, call: Call) -> Answer:
        key = await find_key(call.session, call.tenant, key_id_of(call))
        if key is None:
            raise not_found("key", call.params["id"])
        return Answer(200, key_view(key))

    async def change(self, call: Call, asked: KeyChange) -> Answer:
        known = await self.locked(call)
        changed = await limit_key(call.session, known, asked.request_rate)
        call.note("key.change", known.id, request_rate=asked.request_rate)
        call.after.append(lambda: self.authenticator.keys.forget(known.id))
        return Answer(200, key_view(changed))

    async def revoke(self, call: Call) -> Answer:
        known = await self.locked(call)
        revoked = await revoke_key(call.session, call.tenant, known.id)
        assert revoked is not None, "its row is locked by this transaction"
        if known.revoked_at is None:
            call.note("key.revoke", known.id, name=known.name)
        call.after.append(lambda: self.authenticator.keys.forget(known.id))
        return Answer(200, key_view(revoked))

    async def locked(self, call: Call) -> KeyFacts:
        """Lock the key of this request, if the caller may change it."""
        key = await lock_key(call.session, call.tenant, key_id_of(call))
        if key is None:
            raise not_found("key", call.params["id"])
        check_reach(call.credential, Reach(key.reach), key.types)
        return key

    async def rotate(self, call: Call, asked: RotateRequest) -> Answer:
        old = await self.locked(call)
        made = await rotate_key(
            call.session, self.environment, old, asked.grace_s, call.credential.actor
        )
        if isinstance(made, RotateRefusal):
            raise rotate_refusal(made)
        key, text = made
        types = await pass_on_types(call.session, call.tenant, old.id, key.id)
        call.note("key.rotate", old.id, successor=key.id, grace_s=asked.grace_s)
        tenant = call.tenant

        def forget() -> None:
            self.authenticator.keys.forget(old.id)
            self.authenticator.keys.forget(key.id)
            for name in types:
                self.rules.known.forget((tenant, name))

        call.after.append(forget)
        return Answer(201, made_view(key, text), kept=made_view(key, None))


def key_problems(asked: KeyRequest) -> list[Problem]:
    found = [Problem("/name", text_reason(asked.name, limits.API_KEY_NAME_CHARACTERS_MAX) or "")]
    if asked.reach is Reach.INSTALLATION and asked.role not in OBSERVERS:
        reason = "of an installation is for the roles viewer, operator and admin"
        found.append(Problem("/reach", reason))
    if asked.types is not None and asked.role is Access.WORKER:
        reason = "are not for the role worker: a pool holds tasks of every type"
        found.append(Problem("/types", reason))
    for index, name in enumerate(asked.types or []):
        found.append(Problem(f"/types/{index}", type_reason(name) or ""))
    return [problem for problem in found if problem.reason]


def check_reach(credential: Credential, reach: Reach, types: list[str] | None) -> None:
    """A caller cannot create, rotate or revoke a key that reaches further than its own."""
    is_further = reach is Reach.INSTALLATION and credential.reach is not Reach.INSTALLATION
    is_wider = credential.types is not None and (
        types is None or not credential.types.issuperset(types)
    )
    if is_further or is_wider:
        raise ApiProblem(
            Code.FORBIDDEN,
            "the key has more reach or more task types than the credential of this call",
        )


def rotate_refusal(refusal: RotateRefusal) -> ApiProblem:
    match refusal:
        case RotateRefusal.DEAD:
            return ApiProblem(Code.CONFLICT, "the key is revoked or expired; make a new one")
        case RotateRefusal.ROTATED:
            return ApiProblem(Code.CONFLICT, "the key has a successor already; rotate that one")
        case RotateRefusal.TOO_MANY:
            return too_many_keys()


def too_many_keys() -> ApiProblem:
    return ApiProblem(
        Code.TOO_MANY, f"a tenant may have {KEYS_PER_TENANT_MAX} live keys; revoke some"
    )


def key_id_of(call: Call) -> str:
    key_id = call.params["id"]
    if not limits.API_KEY_ID_PATTERN.fullmatch(key_id):
        raise not_found("key", key_id)
    return key_id


def facts_of(key: KeyFacts) -> dict[str, object]:
    """For the audit: all that decides what it may do, nothing that verifies it."""
    return {
        "name": key.name,
        "role": key.role,
        "reach": key.reach,
        "types": key.types,
        "signing": key.is_signing,
        "expires_at": key.expires_at,
        "request_rate": key.request_rate,
    }


def key_view(key: KeyFacts) -> KeyView:
    return msgspec.convert(view_fields(key), KeyView)


def made_view(key: KeyFacts, text: str | None) -> MadeKeyView:
    return msgspec.convert(view_fields(key) | {"key": text}, MadeKeyView)


def view_fields(key: KeyFacts) -> dict[str, object]:
    fields = key._asdict()
    del fields["tenant"]
    fields["signing"] = fields.pop("is_signing")
    return fields
