"""Checks of `duly doctor`: what is wrong with an installation and the remedy. Pure rules over
facts.

Each check answers with one finding: fine, worth knowing, or broken, and then with a remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

VERSION_MIN = 140000
CONNECTIONS_SHARE_MAX = 0.8
CLOCK_OFFSET_S_MAX = 1.0
SNAPSHOT_AGE_S_MAX = 300.0
DEAD_SHARE_MAX = 0.5
DEAD_ROWS_MIN = 10_000
MONTHS_AHEAD_MIN = 1
OVERDUE_S_MAX = 60.0
NAMES_SHOWN = 3
# What is left undone without a node of this role.
ROLES_NEEDED = {
    "api": "nothing can be submitted, and no worker is served",
    "scheduler": "nothing is dispatched",
    "executor": "no webhook is called",
    "maintenance": "no partitions are made, and nothing old is removed",
}


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Snapshot(NamedTuple):
    """A holder of an old snapshot, which keeps dead rows from being removed; an age of None is
    unknown."""

    kind: str
    who: str
    age_s: float | None


@dataclass
class Facts:
    """Of one look. What could not be read stays None."""

    version: int
    version_text: str
    is_fsync: bool
    is_full_page_writes: bool
    is_synchronous: bool
    connections: int
    connections_max: int
    is_clock_overridden: bool
    clock_offset_s: float
    clock_uncertainty_s: float
    sessions: int
    schema_wanted: int
    snapshots: list[Snapshot] = field(default_factory=list)
    # Whether commits wait for a standby; and the `sync_state` of each that is connected, empty if
    # we may not know it.
    waits_for_standby: bool = False
    standby_states: list[str] = field(default_factory=list)
    # What settings say of a pooler, if anybody asked them.
    is_told_pooled: bool = False
    schema_version: int | None = None
    timers_live: int | None = None
    timers_dead: int | None = None
    timers_bytes: int | None = None
    vacuumed_ago_s: float | None = None
    is_autovacuum: bool | None = None
    months_ahead: int | None = None
    slots: int | None = None
    slots_ownerless: int | None = None
    slot_owners: int | None = None
    nodes: int | None = None
    # The names of living nodes by what they do.
    roles: dict[str, list[str]] | None = None
    # Who leads the maintenance; empty: no process does.
    leader: str | None = None
    # How long what schedules and workflows have to do is overdue, and how much of it fails.
    schedule_overdue_s: float | None = None
    workflow_overdue_s: float | None = None
    workflow_timers_failing: int = 0
    # Roles of living nodes that do not do their work: node, role, why.
    failing: list[tuple[str, str, str]] | None = None
    # Carriers of living nodes: node, kind with address, why it takes no tickets.
    carriers: list[tuple[str, str, str | None]] | None = None


class Finding(NamedTuple):
    check: str
    severity: Severity
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Severity.OK, found)


def version(facts: Facts) -> Finding:
    found = f"PostgreSQL {facts.version_text}"
    if facts.version >= VERSION_MIN:
        return ok("version", found)
    return Finding("version", Severity.ERROR, found, "upgrade the server to 14 or later")


def durability(facts: Facts) -> Finding:
    off = [
        name
        for name, is_on in (
            ("fsync", facts.is_fsync),
            ("full_page_writes", facts.is_full_page_writes),
            ("synchronous_commit", facts.is_synchronous),
        )
        if not is_on
    ]
    if not off:
        return ok("durability", "what is committed survives a crash")
    remedy = f"set {' and '.join(off)} to on, and reload the server"
    return Finding("durability", Severity.ERROR, f"{' and '.join(off)} off", remedy)


def standby(facts: Facts) -> Finding:
    """An asynchronous standby loses what was acknowledged, at the worst moment."""
    states = facts.standby_states
    count = f"{len(states)} standby{'s' if len(states) > 1 else ''}"
    is_known = bool(states) and all(states)
    if not facts.waits_for_standby:
        if not states:
            return ok("standby", "none: what is committed is on this server alone")
        remedy = "set synchronous_standby_names: what it has not received is lost at a fail-over"
        return Finding("standby", Severity.WARNING, f"{count}, none of them synchronous", remedy)
    if not states or (is_known and not {"sync", "quorum"}.intersection(states)):
        found = "commits wait for a synchronous standby, and none is connected"
        remedy = "start the standby, or take it out of synchronous_standby_names"
        return Finding("standby", Severity.ERROR, found, remedy)
    return ok("standby", f"{count}, and commits wait for it")


def clock(facts: Facts) -> Finding:
    if facts.is_clock_overridden:
        remedy = "reset duly.test_now for this database and role; only tests may set it"
        return Finding("clock", Severity.ERROR, "the server's clock is overridden", remedy)
    offset = facts.clock_offset_s
    found = f"{offset * 1000:+.0f} ms from this machine's (±{facts.clock_uncertainty_s * 1000:.0f})"
    if abs(offset) - facts.clock_uncertainty_s <= CLOCK_OFFSET_S_MAX:
        return ok("clock", found)
    remedy = "synchronise both machines with NTP; PostgreSQL's clock decides what is due"
    return Finding("clock", Severity.WARNING, found, remedy)


def connections(facts: Facts) -> Finding:
    found = f"{facts.connections} of {facts.connections_max} in use"
    if facts.connections <= facts.connections_max * CONNECTIONS_SHARE_MAX:
        return ok("connections", found)
    remedy = "raise max_connections, lower pool_connections_max, or put a pooler in between"
    return Finding("connections", Severity.WARNING, found, remedy)


def pooler(facts: Facts) -> Finding:
    is_seen = facts.sessions > 1
    if is_seen and not facts.is_told_pooled:
        remedy = "set database_pooler = true: without it prepared statements fail at random"
        return Finding("pooler", Severity.ERROR, "a transaction-mode pooler is in between", remedy)
    if facts.is_told_pooled:
        return ok("pooler", "database_pooler is set: no LISTEN, everything is polled")
    return ok("pooler", "connections lead straight to the server")


def snapshots(facts: Facts) -> Finding:
    old = [
        held for held in facts.snapshots if held.age_s is None or held.age_s > SNAPSHOT_AGE_S_MAX
    ]
    if not old:
        return ok("xmin", "no session keeps dead rows alive")
    names = "; ".join(
        f"{held.kind} {held.who}" + (f" for {held.age_s:.0f} s" if held.age_s is not None else "")
        for held in old
    )
    remedy = "end that session (pg_terminate_backend), transaction or slot; timers bloat meanwhile"
    return Finding("xmin", Severity.WARNING, names, remedy)


def schema(facts: Facts) -> Finding:
    if facts.schema_version is None:
        remedy = "run `duly migrate`"
        return Finding("schema", Severity.ERROR, "there is no duly in this database", remedy)
    found = f"at {facts.schema_version}, this duly knows {facts.schema_wanted}"
    if facts.schema_version < facts.schema_wanted:
        return Finding("schema", Severity.ERROR, found, "run `duly migrate`")
    return ok("schema", found)


def vacuum(facts: Facts) -> Finding | None:
    if facts.timers_dead is None or facts.timers_live is None:
        return None
    found = f"{facts.timers_live} live and {facts.timers_dead} dead timers"
    if not facts.is_autovacuum:
        remedy = "turn autovacuum on; the table of timers cannot do without it"
        return Finding("autovacuum", Severity.ERROR, "autovacuum is off", remedy)
    total = facts.timers_live + facts.timers_dead
    if facts.timers_dead < DEAD_ROWS_MIN or facts.timers_dead <= total * DEAD_SHARE_MAX:
        return ok("autovacuum", found)
    remedy = "look for an old snapshot (above) and give autovacuum more workers or less delay"
    return Finding("autovacuum", Severity.WARNING, found, remedy)


def partitions(facts: Facts) -> Finding | None:
    if facts.months_ahead is None:
        return None
    if facts.months_ahead < 0:
        remedy = "start duly: its maintenance role makes months ahead"
        return Finding("partitions", Severity.ERROR, "this month has none", remedy)
    found = f"{facts.months_ahead} months ahead"
    if facts.months_ahead >= MONTHS_AHEAD_MIN:
        return ok("partitions", found)
    remedy = "is the maintenance role running, and may it create tables? see its log"
    return Finding("partitions", Severity.WARNING, found, remedy)


def slots(facts: Facts) -> Finding | None:
    if facts.slots_ownerless is None:
        return None
    if not facts.nodes:
        remedy = "start `duly up` or `duly serve`"
        return Finding("slots", Severity.WARNING, "no node is running", remedy)
    if not facts.slots_ownerless:
        return ok("slots", f"all {facts.slots} owned by {facts.slot_owners} nodes")
    remedy = "if it lasts longer than a lease (10 s), see the nodes' logs"
    found = f"{facts.slots_ownerless} of {facts.slots} without an owner"
    return Finding("slots", Severity.WARNING, found, remedy)


def roles(facts: Facts) -> Finding | None:
    """With roles in separate processes, all processes may be well while a role has none."""
    if not facts.nodes or facts.roles is None:
        return None
    missing = [role for role in ROLES_NEEDED if not facts.roles.get(role)]
    if missing:
        lacking = "; ".join(
            f"no live node has the role {role}: {ROLES_NEEDED[role]}" for role in missing
        )
        remedy = f"start `duly serve` with the roles {', '.join(missing)}, or with all"
        return Finding("roles", Severity.WARNING, lacking, remedy)
    return ok("roles", "; ".join(f"{role} on {named(facts.roles[role])}" for role in ROLES_NEEDED))


def leader(facts: Facts) -> Finding | None:
    """Its figures are absent elsewhere: alerts on them stay silent."""
    if not facts.nodes or facts.leader is None:
        return None
    if facts.leader:
        return ok("leader", f"{facts.leader} leads the maintenance, and serves its metrics")
    found = (
        "no process leads the maintenance: metrics of backlog, pools and schedules have no source"
    )
    remedy = "if it lasts longer than a lease (10 s), see the log of a process with that role"
    return Finding("leader", Severity.WARNING, found, remedy)


def overdue(facts: Facts) -> Finding | None:
    if facts.schedule_overdue_s is None or facts.workflow_overdue_s is None:
        return None
    found = [
        f"{what} for {late_s:.0f} s"
        for what, late_s in (
            ("an occurrence of a schedule", facts.schedule_overdue_s),
            ("something that a workflow has to do", facts.workflow_overdue_s),
        )
        if late_s > OVERDUE_S_MAX
    ]
    if found:
        remedy = (
            "the scheduler that owns its slot does not get to it: see failing roles, and its log"
        )
        return Finding("overdue", Severity.ERROR, f"overdue: {'; '.join(found)}", remedy)
    if facts.workflow_timers_failing:
        said = f"{facts.workflow_timers_failing} steps of workflows fail again and again"
        remedy = "the log of the scheduler names workflow and cause (`workflow timer failed`)"
        return Finding("overdue", Severity.WARNING, said, remedy)
    return ok("overdue", "schedules and workflows are on time")


def failing(facts: Facts) -> Finding | None:
    """A role that fails at every tick is an outage, although its process lives."""
    if not facts.nodes or facts.failing is None:
        return None
    if not facts.failing:
        return ok("failing", "no role fails")
    found = [f"{role} on {node}: {problem}" for node, role, problem in facts.failing]
    beyond = f"; and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    remedy = "the log of that process names the cause (`tick failed`)"
    return Finding("failing", Severity.ERROR, "; ".join(found[:NAMES_SHOWN]) + beyond, remedy)


def carrier(facts: Facts) -> Finding | None:
    """A carrier that is down only slows dispatch; two different ones lose tickets until they are
    void."""
    if not facts.carriers:
        return None
    down = [f"{name}: {problem}" for name, _, problem in facts.carriers if problem]
    kinds = sorted({kind for _, kind, _ in facts.carriers})
    if len(kinds) > 1:
        remedy = "give every process the same `carrier` setting, and restart the others"
        found = f"nodes have different carriers: {named(kinds)}"
        return Finding("carrier", Severity.WARNING, found, remedy)
    if down:
        remedy = "see the broker's own log; `carrier_fallback` says what happens meanwhile"
        found = f"{kinds[0]} takes no tickets: {named(down)}"
        return Finding("carrier", Severity.WARNING, found, remedy)
    return ok("carrier", f"{kinds[0]} is up")


def named(names: list[str]) -> str:
    beyond = len(names) - NAMES_SHOWN
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{shown} and {beyond} more" if beyond > 0 else shown


CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    version,
    durability,
    standby,
    clock,
    connections,
    pooler,
    snapshots,
    schema,
    vacuum,
    partitions,
    slots,
    roles,
    leader,
    failing,
    overdue,
    carrier,
)


def diagnose(facts: Facts) -> list[Finding]:
    """Every check that could be made, in a fixed order."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]
