"""Workflow types: named definitions in versions that never change.

| event | what happens |
|---|---|
| the definition of the latest version again | that version is answered |
| two definitions at once | each has a version; the second takes the next number |
| a run of an older version | goes on with it: a run is pinned to its version |
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from duly.domain.errors import StatementRefused
from duly.domain.workflow_types import VERSION_MAX, TypeReference
from duly.store.database import SERIALIZATION_FAILURE, Session
from duly.store.statements import statements_beside
from duly.store.templates import WorkflowTemplate
from duly.store.unnest import columns

SQL = statements_beside(__file__)
TYPES_PER_TENANT_MAX = 1000
VERSIONS_MAX = 1000
# Each is lost to another version of the same type.
TRIES_MAX = 5
TEMPLATE = msgspec.json.Decoder(WorkflowTemplate)


class WorkflowType(NamedTuple):
    """One version; its definition is read apart."""

    tenant: int
    name: str
    version: int
    nodes: int
    digest: bytes
    created_at: datetime


class DefinedVersion(NamedTuple):
    type: WorkflowType
    is_new: bool


class PinnedTemplate(NamedTuple):
    """What a reference stands for: the version that a run is pinned to."""

    name: str
    version: int
    template: WorkflowTemplate


async def put_workflow_type(
    session: Session, tenant: int, definition: str, digest: bytes, template: WorkflowTemplate
) -> DefinedVersion | None:
    """None: the tenant has too many, or this one too many versions."""
    written = msgspec.json.encode(template).decode()
    for _ in range(TRIES_MAX):
        known = await find_workflow_type(session, tenant, TypeReference(template.name))
        if known is not None and known.digest == digest:
            return DefinedVersion(known, is_new=False)
        (counted,) = await session.fetch(SQL.count_workflow_types, tenant, template.name)
        is_full = known is None and counted["types"] >= TYPES_PER_TENANT_MAX
        if is_full or counted["versions"] >= VERSIONS_MAX:
            return None
        rows = await session.fetch(
            *(SQL.put_workflow_type, tenant, template.name, len(template.nodes)),
            *(digest, definition, written),
        )
        if rows:
            return DefinedVersion(WorkflowType(*rows[0]), is_new=True)
    raise StatementRefused(problem="its versions change too fast", code=SERIALIZATION_FAILURE)


async def find_workflow_type(
    session: Session, tenant: int, reference: TypeReference
) -> WorkflowType | None:
    rows = await session.fetch(SQL.find_workflow_type, tenant, reference.name, reference.version)
    return WorkflowType(*rows[0]) if rows else None


async def read_definition(session: Session, found: WorkflowType) -> str:
    """JSON text, as it was written but for spaces."""
    (row,) = await session.fetch(SQL.read_definition, found.tenant, found.name, found.version)
    definition: str = row["definition"]
    return definition


async def read_templates(
    session: Session, references: Sequence[tuple[int, TypeReference]]
) -> list[PinnedTemplate | None]:
    """Of each (tenant, reference); None where there is no such type or version."""
    found: list[PinnedTemplate | None] = [None] * len(references)
    if not references:
        return found
    asked = [(tenant, reference.name, reference.version) for tenant, reference in references]
    for row in await session.fetch(SQL.read_templates, *columns(asked, 3)):
        template = TEMPLATE.decode(row["template"])
        found[row["ordinal"] - 1] = PinnedTemplate(row["name"], row["version"], template)
    return found


async def list_workflow_types(
    session: Session, tenant: int, cursor: str | None, limit: int
) -> tuple[list[WorkflowType], str | None]:
    rows = await session.fetch(SQL.list_workflow_types, tenant, cursor or "", limit)
    types = [WorkflowType(*row) for row in rows]
    return types, types[-1].name if len(types) == limit else None


async def list_versions(
    session: Session, tenant: int, name: str, cursor: str | None, limit: int
) -> tuple[list[WorkflowType], str | None]:
    before = VERSION_MAX + 1 if cursor is None else int(cursor)
    rows = await session.fetch(SQL.list_versions, tenant, name, before, limit)
    versions = [WorkflowType(*row) for row in rows]
    return versions, str(versions[-1].version) if len(versions) == limit else None
