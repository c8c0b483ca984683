"""Workflow type endpoints: definitions in versions that never change. A run is pinned to one."""

import hashlib
from dataclasses import dataclass
from functools import partial

import msgspec

from duly.api.admission import Admission
from duly.api.asgi import Endpoint, Kind
from duly.api.cursors import Cursor
from duly.api.problems import ApiProblem, Code, invalid, not_found
from duly.api.request import Answer, Call
from duly.api.wire import Instant, Limit, Page, page
from duly.api.workflow_body import WorkflowChecks, decode_type
from duly.api.workflow_wire import WorkflowTypeRequest
from duly.domain.access import OPERATORS, PRODUCERS
from duly.domain.limits import Problem, type_reason
from duly.domain.workflow_types import TypeReference, read_reference
from duly.store.audit import append_audit
from duly.store.database import Database
from duly.store.workflow_types import (
    TYPES_PER_TENANT_MAX,
    VERSIONS_MAX,
    WorkflowType,
    find_workflow_type,
    list_versions,
    list_workflow_types,
    put_workflow_type,
    read_definition,
)

DEFINITION_BYTES_MAX = 4 * 1024 * 1024
TAG = "Workflow types"


class WorkflowTypeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a type. Lists leave out its `definition`."""

    name: str
    version: int
    nodes: int
    created_at: Instant
    definition: msgspec.Raw | None = None


class WorkflowTypesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Cursor | None = None


@dataclass(frozen=True)
class WorkflowTypeRoutes:
    database: Database
    checks: WorkflowChecks
    admission: Admission

    def endpoints(self) -> list[Endpoint]:
        read = partial(Endpoint, kind=Kind.READ, access=PRODUCERS, tag=TAG)
        one = "/v1/workflow-types/{name}"
        return [
            Endpoint(
                "PUT",
                one,
                "Define a workflow type: the next version, unless it is the latest already",
                self.put,
                Kind.HOT,
                access=OPERATORS,
                body=WorkflowTypeRequest,
                checks_types=True,
                answers={200: WorkflowTypeView, 201: WorkflowTypeView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
                tag=TAG,
                body_bytes_max=DEFINITION_BYTES_MAX,
                decode=decode_type,
                is_batch=True,
            ),
            read(
                method="GET",
                path="/v1/workflow-types",
                summary="List workflow types by name, each with its latest version",
                handler=self.list_page,
                query=WorkflowTypesQuery,
                answers={200: Page[WorkflowTypeView]},
            ),
            read(
                method="GET",
                path=one,
                summary="Read a workflow type: `name`, or `name@version`",
                handler=self.get,
                answers={200: WorkflowTypeView},
                refusals=(Code.NOT_FOUND,),
            ),
            read(
                method="GET",
                path=f"{one}/versions",
                summary="List the versions of a workflow type, newest first",
                handler=self.versions,
                query=WorkflowTypesQuery,
                answers={200: Page[WorkflowTypeView]},
                refusals=(Code.NOT_FOUND,),
            ),
        ]

    async def put(self, call: Call, asked: WorkflowTypeRequest) -> Answer:
        name = call.params["name"]
        if reason := type_reason(name):
            raise invalid([Problem("/name", reason)])
        async with self.admission.pace() as pace:
            template = await self.checks.template_of(call, name, asked, pace)
            await pace.step(len(call.raw_body))
            # As it was written, but for spaces between its parts.
            definition = msgspec.json.format(call.raw_body, indent=-1)
            await pace.step(len(definition))
        digest = hashlib.sha256(definition).digest()
        async with self.database.tenant(call.tenant) as session:
            put = await put_workflow_type(
                session, call.tenant, definition.decode(), digest, template
            )
            if put is None:
                most = f"{TYPES_PER_TENANT_MAX} workflow types, each {VERSIONS_MAX} versions"
                raise ApiProblem(Code.TOO_MANY, f"a tenant may have {most}")
            if put.is_new:
                facts = {"version": put.type.version, "nodes": put.type.nodes}
                await append_audit(
                    *(session, call.tenant, call.credential.actor, "workflow_type.put", name),
                    msgspec.json.encode(facts).decode(),
                )
        return Answer(201 if put.is_new else 200, type_view(put.type))

    async def list_page(self, call: Call, query: WorkflowTypesQuery) -> Answer:
        found, following = await list_workflow_types(
            call.session, call.tenant, query.cursor, query.limit
        )
        return Answer(200, page(list(map(type_view, found)), following))

    async def get(self, call: Call) -> Answer:
        found = await self.found(call, read_reference(call.params["name"]))
        definition = msgspec.Raw((await read_definition(call.session, found)).encode())
        view = msgspec.structs.replace(type_view(found), definition=definition)
        return Answer(200, view)

    async def versions(self, call: Call, query: WorkflowTypesQuery) -> Answer:
        name = call.params["name"]
        await self.found(call, None if type_reason(name) else TypeReference(name))
        found, following = await list_versions(
            call.session, call.tenant, name, query.cursor, query.limit
        )
        return Answer(200, page(list(map(type_view, found)), following))

    async def found(self, call: Call, reference: TypeReference | None) -> WorkflowType:
        found = reference and await find_workflow_type(call.session, call.tenant, reference)
        if not found:
            raise not_found("workflow type", call.params["name"])
        return found


def type_view(found: WorkflowType) -> WorkflowTypeView:
    return WorkflowTypeView(
        name=found.name, version=found.version, nodes=found.nodes, created_at=found.created_at
    )
