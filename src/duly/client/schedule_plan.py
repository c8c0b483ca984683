"""What a schedule that is wanted would change of the one that stands, field by field."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]

# What a definition that does not say it has.
DEFAULTS: Json = {
    "cron": None,
    "every_s": None,
    "timezone": "UTC",
    "misfire": "coalesce",
    "misfire_window_s": 3600,
    "overlap": "allow",
    "max_running": None,
    "dst_gap": "shift",
    "dst_repeat": "first",
    "jitter_s": 0,
    "start_at": None,
    "end_at": None,
    "max_fires": None,
    "exclude_dates": [],
}
# One of them: what each occurrence makes.
MADE = ("task", "workflow")
FIELDS = ("name", *DEFAULTS, *MADE)
# A retry policy is stored whole; what a definition does not say of it is this.
RETRY_DEFAULTS: Json = {
    "max_attempts": 5,
    "backoff": "exponential",
    "initial_s": 2,
    "factor": 2,
    "max_s": 3600,
    "jitter": True,
    "non_retryable": [],
    "retry_4xx": False,
}
NOTHING = object()


class FieldChange(NamedTuple):
    """`field` is a path such as `task.payload.kind`."""

    field: str
    old: Any
    new: Any


class ScheduleStep(NamedTuple):
    """`action`: "create", "change" or "unchanged"; `id` of the schedule that stands."""

    action: str
    name: str
    changes: list[FieldChange]
    wanted: Json
    id: str | None = None


def plan_step(known: Mapping[str, Any] | None, wanted: Json) -> ScheduleStep:
    """`known` as the API answers it, or None."""
    if known is None:
        return ScheduleStep("create", wanted["name"], [], wanted)
    changes = differences({name: known[name] for name in FIELDS if name in known}, wanted)
    action = "change" if changes else "unchanged"
    return ScheduleStep(action, wanted["name"], changes, wanted, known["id"])


def differences(known: Json, wanted: Json) -> list[FieldChange]:
    old, new = flat(comparable(known)), flat(comparable(wanted))
    return [
        FieldChange(name, old.get(name), new.get(name))
        for name in [*old, *(name for name in new if name not in old)]
        if old.get(name, NOTHING) != new.get(name, NOTHING)
    ]


def comparable(definition: Json) -> Json:
    """With what is not said filled in, and instants and dates in one form."""
    whole = {**DEFAULTS, **definition}
    for name in MADE:
        if whole.get(name) is None:
            whole.pop(name, None)
    for name in ("start_at", "end_at"):
        whole[name] = same_instant(whole[name])
    if isinstance(whole["exclude_dates"], list):
        whole["exclude_dates"] = sorted({str(each) for each in whole["exclude_dates"]})
    if isinstance(whole.get("workflow"), dict):
        whole["workflow"] = said_of(whole["workflow"])
    if isinstance(whole.get("task"), dict):
        task = {**whole["task"]}
        if isinstance(task.get("retry"), dict):
            task["retry"] = {**RETRY_DEFAULTS, **task["retry"]}
        if isinstance(task.get("target"), dict) and not task["target"].get("headers"):
            task["target"] = {
                name: each for name, each in task["target"].items() if name != "headers"
            }
        whole["task"] = task
    return whole


def said_of(workflow: Json) -> Json:
    """Without what says nothing, in the workflow and in its nodes."""
    said = {name: each for name, each in workflow.items() if each not in (None, [], {}, False)}
    if isinstance(said.get("nodes"), dict):
        nodes = {name: each for name, each in said["nodes"].items() if isinstance(each, dict)}
        said["nodes"] = {**said["nodes"], **{name: said_of(node) for name, node in nodes.items()}}
    return said


def same_instant(value: Any) -> Any:
    """What is no instant stays as it is, for the server to refuse."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value
    return value if found.tzinfo is None else found.astimezone(UTC).isoformat()


def flat(value: Json, before: str = "") -> Json:
    """Nested fields by their path: `task.payload.kind`."""
    found: Json = {}
    for name, each in value.items():
        if isinstance(each, dict) and each:
            found |= flat(each, f"{before}{name}.")
        else:
            found[before + name] = each
    return found
