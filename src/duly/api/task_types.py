"""Task type endpoints: payload schema, defaults, permitted keys. task_rules.py applies them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.keys import KeyId
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.task_rules import TaskRules, permit_type
from duly.api.tasks import target_problems
from duly.api.wire import NULL, Limit, Page, TaskDefaults, TaskRequest, page
from duly.domain import limits
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.limits import Problem, submission_problems, type_reason
from duly.domain.schemas import schema_reason
from duly.environment import Environment
from duly.store.keys import read_known_ids
from duly.store.task_types import (
    TYPES_PER_TENANT_MAX,
    TaskType,
    delete_task_type,
    find_task_type,
    list_task_types,
    put_task_type,
)
from duly.validation.schema import read_schema

TAG = "Task types"
REASON_CHARACTERS_MAX = 300


class TaskTypeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`schema`: a JSON Schema for payloads, of at most 64 KiB, 32 levels and 5,000 parts. A payload
    whose check would take more than 0.5 s of processor time or 128 MB is refused with 422. `keys`:
    the ids of the keys that may submit it; null lets every key, and an empty list none."""

    schema: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    defaults: TaskDefaults | None = None
    keys: Annotated[list[KeyId], Meta(max_length=limits.TYPE_KEYS_MAX)] | None = None


class TaskTypeView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    schema: msgspec.Raw
    defaults: dict[str, Any] | None
    keys: list[str] | None
    created_at: datetime
    updated_at: datetime


class TaskTypesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class TaskTypeRoutes:
    environment: Environment
    rules: TaskRules

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/task-types",
                summary="List task types by name",
                handler=self.list_page,
                kind=Kind.READ,
                access=PRODUCERS,
                query=TaskTypesQuery,
                answers={200: Page[TaskTypeView]},
                tag=TAG,
            ),
            Endpoint(
                method="PUT",
                path="/v1/task-types/{name}",
                summary="Describe a task type: schema, defaults, permitted keys",
                handler=self.put,
                checks_types=True,
                prepare=self.check_schema,
                kind=Kind.CONTROL,
                access=OPERATORS,
                body=TaskTypeRequest,
                answers={200: TaskTypeView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/task-types/{name}",
                summary="Read a task type",
                handler=self.get,
                kind=Kind.READ,
                access=PRODUCERS,
                answers={200: TaskTypeView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
            Endpoint(
                method="DELETE",
                path="/v1/task-types/{name}",
                summary="Delete the description of a task type; its tasks stay",
                handler=self.delete,
                checks_types=True,
                kind=Kind.CONTROL,
                access=OPERATORS,
                answers={204: None},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
        ]

    async def list_page(self, call: Call, query: TaskTypesQuery) -> Answer:
        found, following = await list_task_types(
            call.session, call.tenant, query.cursor, query.limit
        )
        return Answer(200, page([type_view(kind) for kind in found], following))

    async def get(self, call: Call) -> Answer:
        found = await find_task_type(call.session, call.tenant, known_name_of(call))
        if found is None:
            raise not_found("task type", call.params["name"])
        return Answer(200, type_view(found))

    async def check_schema(self, call: Call, asked: TaskTypeRequest) -> None:
        """Before the call holds a connection: a costly one is compiled in a process of its own."""
        if asked.schema != NULL and (
            reason := await schema_reason_of(self.rules, call.tenant, asked.schema)
        ):
            raise invalid([Problem("/schema", reason)])

    async def put(self, call: Call, asked: TaskTypeRequest) -> Answer:
        name = call.params["name"]
        if reason := type_reason(name):
            raise invalid([Problem("/name", reason)])
        permit_type(call.credential, name)
        problems = self.default_problems(name, asked.defaults)
        problems += await key_problems(call, asked.keys or [])
        if problems:
            raise invalid(problems)
        stored = await put_task_type(
            call.session,
            call.tenant,
            name,
            None if asked.schema == NULL else bytes(asked.schema).decode(),
            None if asked.defaults is None else encode_defaults(asked.defaults),
            None if asked.keys is None else sorted(set(asked.keys)),
        )
        if stored is None:
            detail = f"a tenant may describe {TYPES_PER_TENANT_MAX} task types"
            raise ApiProblem(Code.TOO_MANY, detail)
        self.record(call, name, "task_type.put", facts_of(stored))
        return Answer(200, type_view(stored))

    async def delete(self, call: Call) -> Answer:
        name = known_name_of(call)
        permit_type(call.credential, name)
        if not await delete_task_type(call.session, call.tenant, name):
            raise not_found("task type", name)
        self.record(call, name, "task_type.delete", {})
        return Answer(204)

    def record(self, call: Call, name: str, action: str, detail: dict[str, object]) -> None:
        call.note(action, name, **detail)
        known = (call.tenant, name)
        call.after.append(lambda: self.rules.known.forget(known))

    def default_problems(self, name: str, defaults: TaskDefaults | None) -> list[Problem]:
        """Defaults must make a task that could be submitted."""
        if defaults is None:
            return []
        asked = TaskRequest(type=name, target=defaults.target)
        probe = asked.submission(tenant=0, defaults=defaults)
        now = self.environment.clock.now()
        found = submission_problems(probe, now, self.rules.outbound) + target_problems(asked)
        return [Problem(f"/defaults{problem.pointer}", problem.reason) for problem in found]


async def schema_reason_of(rules: TaskRules, tenant: int, schema: msgspec.Raw) -> str | None:
    text = bytes(schema)
    reason = schema_reason(text, msgspec.json.decode(text))
    if reason is None and read_schema(text.decode()).weight is None:
        reason = await rules.checks.unsound_reason(tenant, text.decode())
    return None if reason is None else reason[:REASON_CHARACTERS_MAX]


async def key_problems(call: Call, keys: list[str]) -> list[Problem]:
    if not keys:
        return []
    known = await read_known_ids(call.session, call.tenant, keys)
    return [
        Problem(f"/keys/{index}", "is not a key of this tenant")
        for index, key in enumerate(keys)
        if key not in known
    ]


def encode_defaults(defaults: TaskDefaults) -> str:
    """Only what was given: a default of duly that changes later is then not frozen here."""
    fields = msgspec.structs.asdict(defaults).items()
    given = {name: value for name, value in fields if value is not None}
    return msgspec.json.encode(given).decode()


def facts_of(stored: TaskType) -> dict[str, object]:
    """For the audit: headers among the defaults may be secrets, so only names."""
    defaults = {} if stored.defaults is None else msgspec.json.decode(stored.defaults)
    return {
        "schema": stored.schema is not None,
        "defaults": sorted(defaults),
        "keys": stored.keys,
    }


def known_name_of(call: Call) -> str:
    name = call.params["name"]
    if type_reason(name):
        raise not_found("task type", name)
    return name


def type_view(stored: TaskType) -> TaskTypeView:
    return TaskTypeView(
        name=stored.name,
        schema=NULL if stored.schema is None else msgspec.Raw(stored.schema.encode()),
        defaults=None if stored.defaults is None else msgspec.json.decode(stored.defaults),
        keys=stored.keys,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )
