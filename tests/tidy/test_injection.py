"""Time, randomness and crashes come from the environment; SQL comes from the store's files."""

import ast
import re

import pytest

from duly.environment import CrashPoint
from duly.store.statements import BLOCK, parse_statements
from tests.tidy.sources import PACKAGE, Module, dotted, imports_of, source_modules

STORE = PACKAGE / "store"
# Modules whose very import is a temptation.
SOURCES_OF_CHANCE = {"time", "random", "secrets"}
# Calls that answer differently each time.
CALLS = {
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "datetime.datetime.now",
    "date.today",
    "os.urandom",
    "os.getrandom",
    "Random",
    "SystemRandom",
    "uuid1",
    "uuid4",
    "uuid7",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid7",
}
# The polling of a server that has no signal to wait for, before any event loop runs.
ALLOWED = {
    "src/duly/store/embedded.py": {"time.sleep"},
    # The client runs in other people's programs, where nobody hands it a world.
    "src/duly/client/wire.py": {"os.urandom"},
    "src/duly/client/clock.py": {
        "time.clock_gettime",
        "time.CLOCK_MONOTONIC",
        "datetime.now",
        "Random",
    },
}
STARTS_LIKE_SQL = re.compile(
    r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|CREATE|ALTER|DROP|TRUNCATE|LISTEN|NOTIFY|SET"
    r"|GRANT|REVOKE|LOCK TABLE|COPY) [a-zA-Z$*(\"]"
)


def outside_environment() -> list[Module]:
    return [module for module in source_modules() if module.name != "duly.environment"]


def takings(module: Module) -> set[str]:
    """Every use of a clock or of chance that was not given."""
    found: set[str] = set()
    imported: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names} & SOURCES_OF_CHANCE
        elif isinstance(node, ast.ImportFrom) and node.module in SOURCES_OF_CHANCE:
            # `Random` may be named as the type of what is given.
            found |= {
                f"{node.module}.{alias.name}" for alias in node.names if alias.name != "Random"
            }
        elif isinstance(node, ast.Call) and dotted(node.func) in CALLS:
            found.add(dotted(node.func))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and dotted(node).partition(".")[0] in imported:
            found.add(dotted(node))
    return found


def test_nobody_takes_time_or_chance() -> None:
    """One forgotten clock, and a failing seed of the simulated cluster can never be replayed. A
    permission that nothing needs is one that will be used."""
    taken = {module.where: takings(module) for module in outside_environment()}
    assert {where: found for where, found in taken.items() if found} == ALLOWED


@pytest.mark.parametrize(
    "program",
    [
        "import time\ntime.time()",
        "from time import monotonic",
        "import random\nrandom.random()",
        "from datetime import datetime\ndatetime.now()",
        "from uuid import uuid4\nuuid4()",
        "from random import Random\nRandom(1)",
    ],
)
def test_taking_is_noticed(program: str) -> None:
    """The rule itself must be able to fail."""
    assert takings(Module(STORE, "duly.domain.x", program, ast.parse(program)))


def test_sql_stands_only_in_sql_files() -> None:
    """SQL inside Python escapes the plan tests, the reviewer, and the search for a table's name."""
    found = {m.where: sql_in(m) for m in source_modules() if m.package != "client"}
    assert {where: texts for where, texts in found.items() if texts} == {}


def sql_in(module: Module) -> list[str]:
    documentation = module.docstrings
    return [
        node.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
        and STARTS_LIKE_SQL.match(node.value)
    ]


SQL_FILES = sorted(path for path in STORE.glob("*.sql") if path.name != "schema.sql")


@pytest.mark.parametrize("name", [path.stem for path in SQL_FILES])
def test_every_statement_says_why_and_is_used(name: str) -> None:
    """A statement without a reason cannot be judged; one without a caller is not tested."""
    path = STORE / f"{name}.sql"
    blocks = parse_statements(path.read_text())
    assert BLOCK.split(path.read_text())[0].strip() == "", f"{path.name} has text before its names"
    silent = [block for block, text in blocks.items() if not text.startswith("-- ")]
    assert not silent, f"no reason given: {silent}"
    beside = path.with_suffix(".py")
    assert beside.exists(), f"{path.name} has no module beside it"
    shared = f"duly.store.{name}.SQL"
    users = [
        module.text
        for module in source_modules()
        if module.path == beside or shared in imports_of(module)
    ]
    used = set(re.findall(r"\bSQL\.([a-z0-9_]+)", "\n".join(users)))
    assert blocks.keys() <= used, f"never used: {sorted(blocks.keys() - used)}"
    own = set(re.findall(r"\bSQL\.([a-z0-9_]+)", beside.read_text())) - {"blocks"}
    assert own <= blocks.keys(), f"no such statement: {sorted(own - blocks.keys())}"


@pytest.mark.parametrize("path", sorted((STORE / "migrations").glob("*.sql")), ids=lambda p: p.stem)
def test_every_migration_has_a_way_back_and_a_reason(path: object) -> None:
    """A release that cannot be taken back is a one-way door at the worst moment."""
    blocks = parse_statements((STORE / "migrations" / str(path)).read_text())
    assert list(blocks) == ["forward", "reverse"]
    assert blocks["forward"].startswith("-- ")


@pytest.mark.parametrize("point", CrashPoint)
def test_every_crash_point_is_reached_by_the_code(point: CrashPoint) -> None:
    """A point that no code passes makes a test of that crash succeed without crashing."""
    use = re.compile(rf"\bCrashPoint\.{point.name}\b")
    assert any(use.search(module.text) for module in outside_environment()), point
