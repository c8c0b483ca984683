"""Nodes that start a workflow: of which version, whether the caller may, what its template says.

Versions never change, so that each is looked at once for a request, however many nodes start it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from duly.api.admission import WorkSlicer
from duly.api.problems import invalid
from duly.api.request import Call
from duly.api.task_rules import permit_type
from duly.api.workflow_nodes import InnerGraph, NodeRequest
from duly.domain.limits import Problem
from duly.domain.node_spec import NodeKind
from duly.domain.task import Policy, Submission
from duly.domain.workflow import NESTED_MAX, NODES_MAX, pointer_name
from duly.domain.workflow_types import TypeReference, read_reference
from duly.store.database import Database
from duly.store.policies import decode_policy
from duly.store.templates import INNER, InnerStart, WorkflowTemplate
from duly.store.workflow_nodes import decode_spec
from duly.store.workflow_types import find_workflow_type, read_templates


class InnerFacts(NamedTuple):
    """Of a workflow with all that it starts: how many are within each other, and the key by which
    their tasks are counted."""

    levels: int = 1
    key: str | None = None
    limit: int | None = None
    # Two keys: they cannot live on one shard.
    is_torn: bool = False

    def around(self, other: "InnerFacts") -> "InnerFacts":
        keys = {self.key, other.key} - {None}
        return InnerFacts(
            max(self.levels, other.levels + 1),
            self.key or other.key,
            self.limit if self.key is not None else other.limit,
            self.is_torn or other.is_torn or len(keys) > 1,
        )


@dataclass
class InnerWorkflows:
    """Of one request; `call` is by whom."""

    database: Database
    call: Call
    pace: WorkSlicer
    known: dict[TypeReference, InnerFacts] = field(default_factory=dict)
    versions: dict[str, TypeReference] = field(default_factory=dict)

    async def pinned(self, name: str, node: NodeRequest, *, is_open: bool) -> NodeRequest:
        """The node with the version of its type; a definition says it itself."""
        text = node.workflow
        if not isinstance(text, str):
            return node
        if text not in self.versions:
            self.versions[text] = await self.version_of(text, name, is_open=is_open)
        return msgspec.structs.replace(node, workflow=str(self.versions[text]))

    async def version_of(self, text: str, name: str, *, is_open: bool) -> TypeReference:
        at = f"/nodes/{pointer_name(name)}/workflow"
        reference = read_reference(text)
        if reference is not None and reference.version is None and is_open:
            raise invalid([Problem(at, f"names no version, as a definition must: {text}@1")])
        found = reference and await find_workflow_type(self.database, self.call.tenant, reference)
        if not found:
            raise invalid([Problem(at, f"no workflow type or version is {text}")])
        return TypeReference(found.name, found.version)

    async def task_of(
        self, node: NodeRequest, template: WorkflowTemplate | None
    ) -> Submission | Problem:
        """The task that stands for it: its key is that of the tasks inside, whose shard is that of
        the workflow around. A template is that of a graph of its own."""
        if template is None:
            assert isinstance(node.workflow, str)
            reference = read_reference(node.workflow)
            assert reference is not None
            facts = await self.facts_of_type(reference)
        else:
            facts = await self.facts_of(template)
        if facts.levels >= NESTED_MAX:
            return Problem("/workflow", f"makes more than {NESTED_MAX} workflows within each other")
        if facts.is_torn:
            reason = "has two concurrency keys; a workflow has one at most, with those inside it"
            return Problem("/workflow", reason)
        policy = Policy(concurrency_key=facts.key, concurrency_limit=facts.limit)
        payload = msgspec.json.encode(InnerStart(node.payload, template)).decode()
        return node.stand_in(self.call.tenant)._replace(payload=payload, policy=policy)

    async def facts_of_type(self, reference: TypeReference) -> InnerFacts:
        if reference not in self.known:
            (found,) = await read_templates(self.database, [(self.call.tenant, reference)])
            assert found is not None, "versions of types are never deleted"
            self.known[reference] = await self.facts_of(found.template)
        return self.known[reference]

    async def facts_of(self, template: WorkflowTemplate) -> InnerFacts:
        """Also whether the caller may have such tasks."""
        facts = InnerFacts()
        for node in template.nodes:
            await self.pace.step()
            spec = decode_spec(node.spec)
            if spec.kind is not NodeKind.WORKFLOW:
                if spec.kind is not NodeKind.WAIT:
                    permit_type(self.call.credential, node.task.type)
                policy = decode_policy(node.task.policy)
                own = InnerFacts(0, policy.concurrency_key, policy.concurrency_limit)
                facts = facts.around(own)
                continue
            assert spec.workflow is not None
            inner = INNER.decode(node.task.payload).template
            if inner is None:
                reference = TypeReference(spec.workflow.name, spec.workflow.version)
                facts = facts.around(await self.facts_of_type(reference))
            else:
                facts = facts.around(await self.facts_of(inner))
        return facts


def nesting_problems(nodes: dict[str, NodeRequest]) -> list[Problem]:
    """Of graphs within each other: too many nodes in all, or too many levels. Without recursion,
    which a body could exhaust."""
    level, total = [nodes], 0
    for _ in range(NESTED_MAX):
        total += sum(map(len, level))
        level = [
            node.workflow.nodes
            for graph in level
            for node in graph.values()
            if isinstance(node.workflow, InnerGraph)
        ]
    if level:
        return [Problem("/nodes", f"has more than {NESTED_MAX} workflows within each other")]
    if total > NODES_MAX:
        reason = f"has {total} nodes with those of workflows inside; {NODES_MAX} are the most"
        return [Problem("/nodes", reason)]
    return []
