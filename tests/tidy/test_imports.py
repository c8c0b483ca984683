"""Allowed imports between the packages of `docs/ARCHITECTURE.md`."""

import graphlib
import sys

import pytest

from tests.tidy.sources import Module, imports_of, modules_imported, source_modules

# Configuration, environment, role loop, events, logs and metrics: every package of the server
# uses them.
SHARED = {
    *("environment", "events", "tenant_changes", "settings", "telemetry", "metric_families"),
    *("backoff", "child_tasks", "ttl_cache", "role", "duly"),
}
ACTORS = {"domain", "store", "broker", "coordinator"} | SHARED
ALLOWED: dict[str, set[str]] = {
    "domain": set(),
    # Apart from the domain, because it needs a compiler of schemas and a process.
    "validation": {"domain"},
    # The checker: pure, like the domain, and no part of the engine.
    "verify": {"domain"},
    "store": {"domain"} | SHARED,
    "broker": {"domain", "store"} | SHARED,
    "coordinator": {"domain", "store"} | SHARED,
    "tracing": {"domain", "duly", "environment", "events", "store"},
    "api": {"tracing", "domain", "store", "validation"} | SHARED,
    "scheduler": ACTORS,
    "execution": ACTORS,
    "maintenance": ACTORS,
    "client": {"domain", "duly", "validation"},
    "cli": {"logs", "app", "bench", "client", "observability", "verify"} | SHARED,
    # A part of programs that use duly, as the client is; a framework's command is one of ours.
    "integrations": {"cli", "client", "domain"},
    # Composes a whole duly, as `app` does, and runs a worker on it.
    "testing": ACTORS | {"app", "client", "composition", "execution"},
    # Measures every part, alone and together; only the command line calls it.
    "bench": ACTORS | {"app", "client", "execution", "scheduler", "testing"},
    # The public names, imported when they are used.
    "duly": {"client", "domain"},
    "environment": {"domain"},
    "events": {"domain", "store", "telemetry"},
    "tenant_changes": {"domain", "events", "store"},
    "logs": set(),
    "telemetry": {"duly", "logs", "metric_families"},
    "metric_families": set(),
    # Files of the dashboard, for browsers.
    "web": set(),
    # Files for Prometheus and Grafana.
    "observability": set(),
    "settings": {"domain"},
    "role": {"backoff", "environment", "telemetry"},
    "child_tasks": set(),
    "local_clients": {"client", "domain", "settings", "store", "telemetry"},
    "backoff": set(),
    "ttl_cache": {"child_tasks", "environment"},
    "__main__": {"cli"},
}
# Single modules that a package may import beyond its list, with the reason.
EXCEPTIONS = {
    ("api", "duly.execution.worker_leases"): "a worker leases over HTTP as the executor does",
    ("store", "duly.verify.history"): "`store/verify.py` reads tables as the checker's rows",
    ("store", "duly.verify.report"): "`store/verify.py` adds each page to the report",
    ("cli", "duly.domain.errors"): "the command line is the edge that turns errors into exit codes",
    ("cli", "duly.store.doctor"): "`duly doctor` runs where no server runs",
    ("cli", "duly.domain.diagnosis"): "`duly doctor` runs where no server runs",
    ("cli", "duly.store.embedded"): "commands look for a running server of this machine",
    ("cli", "duly.store.binaries"): "`duly psql` takes the psql beside the embedded server",
    ("cli", "duly.store.verify"): "`duly verify` reads the tables itself, without a server",
    ("cli", "duly.domain.crontab"): "`duly schedules import` reads a crontab, server or not",
    ("cli", "duly.store.migrate"): "`duly migrate` runs where no server runs",
    ("cli", "duly.store.bootstrap"): "`duly migrate` runs where no server runs",
    ("cli", "duly.store.database"): "`duly migrate` runs where no server runs",
}
PURE_PACKAGES = ("domain", "verify")
PURE = set(sys.stdlib_module_names) | {"duly"}


def is_allowed(module: Module, target: str) -> bool:
    package = target.split(".")[1] if "." in target else "duly"
    return (
        module.package in ("app", "composition", package)
        or package in ALLOWED[module.package]
        or (module.package, target) in EXCEPTIONS
    )


def test_a_package_imports_only_what_it_may() -> None:
    """One convenient import, and two packages can never be changed apart again."""
    packages = {module.package for module in source_modules()} - {"app", "composition"}
    new = sorted(packages - ALLOWED.keys())
    assert not new, f"new packages: decide their imports here and in docs/ARCHITECTURE.md: {new}"
    refused = {
        module.where: [name for name in modules_imported(module) if not is_allowed(module, name)]
        for module in source_modules()
    }
    assert {where: names for where, names in refused.items() if names} == {}


def test_there_is_no_import_cycle() -> None:
    """A cycle means that neither module can be understood, tested or moved without the other."""
    graph = {module.name: modules_imported(module) for module in source_modules()}
    try:
        list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def test_the_rules_are_pure() -> None:
    """Rules that need a driver or a server to run cannot be tested by the million."""
    foreign = {
        module.where: [name for name in imports_of(module) if name.partition(".")[0] not in PURE]
        for module in source_modules()
        if module.package in PURE_PACKAGES
    }
    assert foreign
    assert {where: names for where, names in foreign.items() if names} == {}


def test_a_refused_import_is_noticed() -> None:
    """The rule itself must be able to fail."""
    (domain_errors,) = [each for each in source_modules() if each.name == "duly.domain.errors"]
    assert not is_allowed(domain_errors, "duly.store.database")
    assert not is_allowed(domain_errors, "duly.environment")
    (health,) = [each for each in source_modules() if each.name == "duly.api.health"]
    assert is_allowed(health, "duly.execution.worker_leases")
    assert not is_allowed(health, "duly.execution.executor")
    assert not is_allowed(health, "duly.scheduler.dispatch")
