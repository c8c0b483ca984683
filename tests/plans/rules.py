"""What a plan of a hot statement may look like, whatever the tables hold. Runs nothing."""

from dataclasses import dataclass

from tests.plans.explain import Node, Plan

# Each of these reads a whole table, or as much of it as the statistics of the day suggest.
FORBIDDEN = {"Seq Scan", "Hash Join", "Merge Join", "Hash", "Bitmap Heap Scan", "Materialize"}
SORTS = {"Sort", "Incremental Sort"}
PARTITIONED = ("tasks_", "attempts_")
KEY, DUE = "timers_pkey", "timers_due"


@dataclass(frozen=True)
class Rule:
    """The index by which `timers` is read, and what must be found by that index alone."""

    timers: str | None
    by_index: tuple[str, ...] = ()
    may_sort: bool = False
    # A list may look into every month; whatever is looked up by key must not.
    months_max: int = 1
    # Another way that is as good, for other rows of the same statement.
    also: "Rule | None" = None


LOOKUP = Rule(KEY, ("shard", "id"))
# Ordered and bounded by the index itself: a filter on due_at would read what is not due.
LOAD = Rule(DUE, ("tenant", "shard", "queue", "due_at"))
RULES = {
    "insert_tasks": Rule(None),
    "insert_keyed": Rule(None),
    "load_due": LOAD,
    # An expiry batch has the ids of its batch in order.
    "lease_tasks": Rule(KEY, ("shard", "id"), may_sort=True),
    "extend_leases": LOOKUP,
    "finish_completed": LOOKUP,
    "finish_terminal": LOOKUP,
    "retry_tasks": LOOKUP,
    "classify_settlements": LOOKUP,
    "read_policies": LOOKUP,
    # Lane 0 in its order, and by key what the expiry batches name.
    "find_expired": Rule(DUE, ("tenant", "shard", "queue", "due_at"), also=LOOKUP),
    "rearm_leases": LOOKUP,
    "forget_expiry_batches": Rule(None),
    # Locks its rows in the order of their addresses, so it sorts what it was given.
    "finish_cancelled": Rule(KEY, ("shard", "id"), may_sort=True),
    "reschedule_tasks": LOOKUP,
    "classify_tasks": LOOKUP,
    "read_tasks": LOOKUP,
    # A page from each place, merged: sorted, but never more than the pages.
    "list_live": Rule(DUE, ("tenant", "shard", "queue", "due_at"), may_sort=True),
    "list_running": Rule(
        DUE, ("tenant", "shard", "queue", "due_at"), may_sort=True, also=Rule(KEY, ("shard", "id"))
    ),
    "list_created": Rule(None, months_max=1000, may_sort=True),
}


def complaints(plan: Plan) -> list[str]:
    rule = RULES[plan.statement]
    found = [f"has a {node.kind}" for node in plan.nodes if node.kind in FORBIDDEN]
    if not rule.may_sort:
        found += [f"has a {node.kind}" for node in plan.nodes if node.kind in SORTS]
    for node in plan.nodes:
        if node.table == "timers" and "Index Name" in node.facts:
            found += timers_complaints(node, rule)
        if node.table.startswith(PARTITIONED) and rule.months_max == 1:
            found += partition_complaints(node)
    for parent in PARTITIONED:
        months = {node.table for node in plan.nodes if is_scan(node, parent) and node.was_run}
        if len(months) > rule.months_max:
            found.append(f"reads {len(months)} partitions")
    if rule.timers and not any(node.said("Index Name") == rule.timers for node in plan.nodes):
        found.append(f"does not use {rule.timers}")
    heading = f"{plan.statement} ({plan.mode})"
    return [f"{heading} {each}:\n{plan.text}" for each in found]


def timers_complaints(node: Node, rule: Rule) -> list[str]:
    index, condition = node.said("Index Name"), node.said("Index Cond")
    if rule.also is not None and index == rule.also.timers:
        return timers_complaints(node, rule.also)
    if index != rule.timers:
        return [f"reads timers by {index}"]
    return [f"does not find {each} by the index" for each in rule.by_index if each not in condition]


def partition_complaints(node: Node) -> list[str]:
    """By its key, or by (tenant, id), which finds one row as well."""
    is_found = "Index Name" not in node.facts or ".id = " in node.said("Index Cond")
    return [] if is_found else [f"reads {node.table} not by id"]


def is_scan(node: Node, parent: str) -> bool:
    return node.table.startswith(parent) and "Scan" in node.kind
