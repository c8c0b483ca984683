"""Who may import whom: the rooms of `docs/ARCHITECTURE.md` and the doors between them."""

import graphlib
import sys

import pytest

from tests.tidy.sources import Module, imports_of, modules_imported, source_modules

# Configuration, the injected world, the loop, logs and metrics: every room of the server uses them.
SHARED = {"environment", "settings", "telemetry", "role", "duly"}
ACTORS = {"domain", "store", "broker", "coordinator"} | SHARED
DOORS: dict[str, set[str]] = {
    "domain": set(),
    # Beside the domain, because it needs a compiler of schemas and a process.
    "validation": {"domain"},
    "store": {"domain"} | SHARED,
    "broker": {"domain", "store"} | SHARED,
    "coordinator": {"domain", "store"} | SHARED,
    "api": {"domain", "store", "validation"} | SHARED,
    "scheduler": ACTORS,
    "execution": ACTORS,
    "maintenance": ACTORS,
    "client": {"domain", "duly", "validation"},
    "cli": {"app", "bench", "client"} | SHARED,
    # It puts a whole duly together, as `app` does, and runs a worker on it.
    "testing": ACTORS | {"app", "client", "execution"},
    # It measures every part, alone and put together; only the command line calls it.
    "bench": ACTORS | {"app", "client", "execution", "scheduler", "testing"},
    # Its names for other people's programs, imported when they are used.
    "duly": {"client"},
    "environment": {"domain"},
    "telemetry": {"duly"},
    "settings": {"domain"},
    "role": {"environment", "telemetry"},
    "__main__": {"cli"},
}
# One module through a door that its room does not have, with the reason.
EXCEPTIONS = {
    ("api", "duly.execution.leasing"): "a worker leases over HTTP exactly as the executor does",
    ("cli", "duly.domain.errors"): "the command line is the edge that turns errors into exit codes",
    ("cli", "duly.store.doctor"): "`duly doctor` runs where no server runs",
    ("cli", "duly.domain.diagnosis"): "`duly doctor` runs where no server runs",
    ("cli", "duly.store.embedded"): "they look at a server of this machine, and make none",
    ("cli", "duly.store.verify"): "`duly verify` judges the tables, not what a server says of them",
    ("cli", "duly.domain.verification"): "`duly verify` judges the tables",
    ("cli", "duly.domain.check"): "`duly verify` judges the tables",
    ("cli", "duly.domain.crontab"): "`duly schedules import` reads a crontab, server or not",
    ("cli", "duly.store.migrate"): "`duly migrate` runs where no server runs",
    ("cli", "duly.store.place"): "`duly migrate` runs where no server runs",
    ("cli", "duly.store.database"): "`duly migrate` runs where no server runs",
}
PURE = set(sys.stdlib_module_names) | {"duly"}


def by_name(module: Module) -> str:
    return module.name


def is_open(module: Module, target: str) -> bool:
    room = target.split(".")[1] if "." in target else "duly"
    return (
        module.room in ("app", room)
        or room in DOORS[module.room]
        or (module.room, target) in EXCEPTIONS
    )


@pytest.mark.parametrize("module", source_modules(), ids=by_name)
def test_a_room_is_entered_only_through_its_doors(module: Module) -> None:
    """One convenient import, and two rooms can never be changed apart again."""
    assert module.room == "app" or module.room in DOORS, (
        f"{module.room} is a new room: decide its doors here and in docs/ARCHITECTURE.md"
    )
    closed = sorted(target for target in modules_imported(module) if not is_open(module, target))
    assert not closed, f"{module.where} may not import {', '.join(closed)}"


def test_there_is_no_import_cycle() -> None:
    """A cycle means that neither module can be understood, tested or moved without the other."""
    graph = {module.name: modules_imported(module) for module in source_modules()}
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


@pytest.mark.parametrize(
    "module", [module for module in source_modules() if module.room == "domain"], ids=by_name
)
def test_the_domain_is_pure(module: Module) -> None:
    """Rules that need a driver or a server to run cannot be tested by the million."""
    foreign = sorted(name for name in imports_of(module) if name.partition(".")[0] not in PURE)
    assert not foreign, f"{module.where} imports {', '.join(foreign)}"


def test_a_closed_door_is_noticed() -> None:
    """The rule itself must be able to fail."""
    (domain_errors,) = [each for each in source_modules() if each.name == "duly.domain.errors"]
    assert not is_open(domain_errors, "duly.store.database")
    assert not is_open(domain_errors, "duly.environment")
    (health,) = [each for each in source_modules() if each.name == "duly.api.health"]
    assert is_open(health, "duly.execution.leasing")
    assert not is_open(health, "duly.execution.executor")
    assert not is_open(health, "duly.scheduler.dispatch")
