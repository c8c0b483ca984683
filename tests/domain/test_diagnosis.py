"""Each thing that goes wrong in production is found, and comes with what to do."""

from dataclasses import replace
from typing import Any

import pytest

from duly.domain.diagnosis import Facts, Severity, Snapshot, diagnose

FINE = Facts(
    version=180004,
    version_text="18.4",
    is_fsync=True,
    is_full_page_writes=True,
    is_synchronous=True,
    connections=10,
    connections_max=97,
    is_clock_overridden=False,
    clock_offset_s=0.002,
    clock_uncertainty_s=0.001,
    sessions=1,
    schema_wanted=5,
    schema_version=5,
    timers_live=1000,
    timers_dead=10,
    timers_bytes=10**6,
    vacuumed_ago_s=60.0,
    is_autovacuum=True,
    months_ahead=3,
    slots=64,
    slots_ownerless=0,
    slot_owners=1,
    nodes=2,
    roles={"api": ["a", "b"], "scheduler": ["a"], "executor": ["a"], "maintenance": ["a"]},
    leader="a",
    schedule_overdue_s=0.0,
    workflow_overdue_s=0.0,
)
WRONG: list[tuple[str, Severity, dict[str, Any]]] = [
    ("version", Severity.ERROR, {"version": 130011}),
    ("durability", Severity.ERROR, {"is_fsync": False}),
    ("durability", Severity.ERROR, {"is_full_page_writes": False}),
    ("durability", Severity.ERROR, {"is_synchronous": False}),
    ("standby", Severity.WARNING, {"standby_states": ["async"]}),
    ("standby", Severity.WARNING, {"standby_states": [""]}),
    ("standby", Severity.ERROR, {"waits_for_standby": True}),
    ("standby", Severity.ERROR, {"waits_for_standby": True, "standby_states": ["async"]}),
    ("leader", Severity.WARNING, {"leader": ""}),
    ("overdue", Severity.ERROR, {"schedule_overdue_s": 61.0}),
    ("overdue", Severity.ERROR, {"workflow_overdue_s": 61.0}),
    ("overdue", Severity.WARNING, {"workflow_timers_failing": 1}),
    ("clock", Severity.ERROR, {"is_clock_overridden": True}),
    ("clock", Severity.WARNING, {"clock_offset_s": -3600.0}),
    ("connections", Severity.WARNING, {"connections": 90}),
    ("pooler", Severity.ERROR, {"sessions": 3}),
    ("xmin", Severity.WARNING, {"snapshots": [Snapshot("session", "pid 7", 301.0)]}),
    ("xmin", Severity.WARNING, {"snapshots": [Snapshot("replication slot", "old", None)]}),
    ("schema", Severity.ERROR, {"schema_version": None}),
    ("schema", Severity.ERROR, {"schema_version": 4}),
    ("autovacuum", Severity.ERROR, {"is_autovacuum": False}),
    ("autovacuum", Severity.WARNING, {"timers_dead": 50_000}),
    ("partitions", Severity.ERROR, {"months_ahead": -1}),
    ("partitions", Severity.WARNING, {"months_ahead": 0}),
    ("slots", Severity.WARNING, {"nodes": 0}),
    ("slots", Severity.WARNING, {"slots_ownerless": 3}),
    ("roles", Severity.WARNING, {"roles": {"api": ["a"], "scheduler": ["b"]}}),
    ("roles", Severity.WARNING, {"roles": {**(FINE.roles or {}), "api": []}}),
]


def test_a_healthy_installation_has_no_complaint() -> None:
    """A doctor that always finds something is not asked twice."""
    findings = diagnose(FINE)
    assert len(findings) == 14
    assert {finding.severity for finding in findings} == {Severity.OK}


@pytest.mark.parametrize(("check", "severity", "change"), WRONG)
def test_what_is_wrong_is_found_with_a_remedy(
    check: str, severity: Severity, change: dict[str, Any]
) -> None:
    """And nothing else is blamed for it."""
    complaints = [f for f in diagnose(replace(FINE, **change)) if f.severity is not Severity.OK]
    assert [(finding.check, finding.severity) for finding in complaints] == [(check, severity)]
    assert complaints[0].remedy


@pytest.mark.parametrize(
    "change",
    [
        {"snapshots": [Snapshot("session", "pid 7", 299.0)]},
        {"sessions": 3, "is_told_pooled": True},
        {"timers_dead": 9_999},
        {"clock_offset_s": 5.0, "clock_uncertainty_s": 4.5},
        {"connections": 77},
    ],
)
def test_what_is_within_bounds_is_no_complaint(change: dict[str, Any]) -> None:
    """A bound is a bound on both sides."""
    assert all(f.severity is Severity.OK for f in diagnose(replace(FINE, **change)))
