"""A Database that asks for the plan of every statement before it runs it. Judges nothing."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from duly.store.connection_pool import Connections
from duly.store.database import Database, Session

MODES = ("force_generic_plan", "force_custom_plan")
EXPLAIN = "EXPLAIN (ANALYZE, VERBOSE, TIMING OFF, COSTS OFF, FORMAT JSON) EXECUTE asked"


@dataclass(frozen=True)
class Node:
    """One line of a plan."""

    facts: dict[str, Any]

    def said(self, name: str) -> str:
        return str(self.facts.get(name, ""))

    @property
    def kind(self) -> str:
        return self.said("Node Type")

    @property
    def table(self) -> str:
        return self.said("Relation Name")

    @property
    def was_run(self) -> bool:
        return bool(self.facts.get("Actual Loops", 0))


@dataclass(frozen=True)
class Plan:
    """How one statement was executed once, in one mode of the plan cache."""

    statement: str
    mode: str
    text: str
    nodes: list[Node] = field(default_factory=list)


def parse_plan(statement: str, mode: str, answer: str) -> Plan:
    (explained,) = json.loads(answer)
    lines: list[str] = []
    nodes: list[Node] = []

    def walk(facts: dict[str, Any], depth: int) -> None:
        nodes.append(Node(facts))
        lines.append("  " * depth + describe(facts))
        for child in facts.get("Plans", []):
            walk(child, depth + 1)

    walk(explained["Plan"], 0)
    return Plan(statement, mode, "\n".join(lines), nodes)


def describe(facts: dict[str, Any]) -> str:
    shown = ("Relation Name", "Index Name", "Index Cond", "Filter", "Sort Key", "Actual Loops")
    details = [f"{name}: {facts[name]}" for name in shown if name in facts]
    return " | ".join([str(facts["Node Type"]), *details])


async def no_other() -> asyncpg.Connection:
    raise AssertionError("everything goes through the one session")


class ExplainingDatabase(Database):
    """One session; each statement is explained in both modes and rolled back, then really run."""

    def __init__(self, url: str, connection: asyncpg.Connection, names: dict[str, str]) -> None:
        super().__init__(url, Connections(no_other, most=1))
        self.connection = connection
        self.names = names
        self.plans: list[Plan] = []

    async def fetch(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        if statement in self.names:
            for mode in MODES:
                self.plans.append(await self.explain(statement, mode, arguments))
        rows: list[asyncpg.Record] = await self.connection.fetch(statement, *arguments)
        return rows

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        async with self.connection.transaction():
            yield self

    async def explain(self, statement: str, mode: str, arguments: Sequence[Any]) -> Plan:
        given = ", ".join(literal(argument) for argument in arguments)
        undo = self.connection.transaction()
        await undo.start()
        try:
            await self.connection.execute(f"SET LOCAL plan_cache_mode = {mode}")
            await self.connection.execute(f"PREPARE asked AS {statement}")
            answer = await self.connection.fetchval(f"{EXPLAIN}({given})")
            await self.connection.execute("DEALLOCATE asked")
        finally:
            await undo.rollback()
        return parse_plan(self.names[statement], mode, answer)


def literal(value: Any) -> str:
    """A value as EXECUTE takes it; its type comes from the statement."""
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple):
        return quoted("{" + ",".join(element(each) for each in value) + "}")
    return quoted(str(value))


def element(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
