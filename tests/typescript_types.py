"""TypeScript types of tasks, schedules and workflows, made from the OpenAPI description of the API:
`python -m tests.typescript_types` writes them, and a test fails when they are stale."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duly.api.explain import ExplainRoutes
from duly.api.openapi import describe
from duly.api.schedules import ScheduleRoutes
from duly.api.tasks import TaskRoutes
from duly.api.workflow_signals import WorkflowSignalRoutes
from duly.api.workflows import WorkflowRoutes

TYPES = Path(__file__).parent.parent / "clients" / "typescript" / "src" / "api.ts"
HEADER = """/**
 * Bodies of requests and answers, made from duly's OpenAPI description by
 * `python -m tests.typescript_types`. Instants are RFC 3339 texts, durations numbers of seconds.
 */
"""
# With all that they refer to.
WANTED = (
    *("TaskRequest", "TaskView", "AttemptView", "ExplanationView"),
    *("ScheduleRequest", "ScheduleView"),
    *("WorkflowRequest", "WorkflowView", "WorkflowNodeView", "GraphView", "WorkflowExplanation"),
    *("SignalRequest", "SignalView"),
)
REFERENCE = "#/components/schemas/"
SIMPLE = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def make_types() -> str:
    endpoints = [
        *without_parts(TaskRoutes).endpoints(),
        *ExplainRoutes(None, 0).endpoints(),
        *without_parts(ScheduleRoutes).endpoints(),
        *without_parts(WorkflowRoutes).endpoints(),
        *without_parts(WorkflowSignalRoutes).endpoints(),
    ]
    schemas: dict[str, Any] = describe(endpoints)["components"]["schemas"]
    names = list(WANTED)
    for name in names:
        found = re.findall(f'"{REFERENCE}([^"]+)"', json.dumps(schemas[name]))
        names += [each for each in dict.fromkeys(found) if each not in names]
    return "\n".join(
        [HEADER, *("\n".join(declared(name, schemas[name])) + "\n" for name in sorted(names))]
    )


def without_parts(routes: Any) -> Any:
    """Endpoints are declared without what their handlers work with."""
    return routes(*[None] * len(dataclasses.fields(routes)))


def declared(name: str, schema: dict[str, Any]) -> Iterator[str]:
    if description := schema.get("description"):
        yield f"/** {' '.join(description.split()).replace('*/', '* /')} */"
    if "properties" not in schema:
        yield f"export type {name} = {expression(schema)};"
        return
    required = set(schema.get("required", []))
    yield f"export interface {name} {{"
    for field, inner in schema["properties"].items():
        if inner.get("description"):
            yield f"  /** {' '.join(inner['description'].split())} */"
        mark = "" if field in required else "?"
        key = field if field.isidentifier() else f'"{field}"'
        yield f"  {key}{mark}: {expression(inner)};"
    yield "}"


def expression(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(REFERENCE)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(expression(each) for each in schema[several]))
    if "const" in schema:
        return literal(schema["const"])
    if "enum" in schema:
        return " | ".join(literal(each) for each in schema["enum"])
    match schema.get("type"):
        case "array":
            inner = expression(schema.get("items", {}))
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        case "object":
            inside = schema.get("additionalProperties", {})
            return (
                f"Record<string, {expression(inside) if isinstance(inside, dict) else 'unknown'}>"
            )
        case list() as kinds:
            return " | ".join(SIMPLE.get(kind, "unknown") for kind in kinds)
        case str() as kind:
            return SIMPLE[kind]
    return "unknown"


def literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


if __name__ == "__main__":
    written = make_types()
    changed = not TYPES.exists() or TYPES.read_text() != written
    TYPES.write_text(written)
    sys.stdout.write(f"api.ts is {'new' if changed else 'unchanged'}\n")
