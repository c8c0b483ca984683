"""What a task can be asked for with, as typed keyword arguments, and its JSON."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Required, TypedDict

import msgspec


class SubmitOptions(TypedDict, total=False):
    """Everything but type and payload; docs/reference/client.md says what each means."""

    run_at: datetime
    delay_s: float
    target: Mapping[str, Any]
    pool: str
    url: str
    priority: int
    retry: Mapping[str, Any]
    timeout_s: float
    start_by: datetime
    jitter_s: float
    concurrency_key: str
    concurrency_limit: int
    idempotency_key: str
    tags: Mapping[str, str]


class TaskSpec(SubmitOptions, total=False):
    type: Required[str]
    payload: Any


def encode_task(task_type: str, payload: object, options: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"type": task_type, "payload": payload, **task_fields(options)})


def task_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """As the API names them: `pool` and `url` are short for a target."""
    fields = dict(options)
    target = {name: fields.pop(name) for name in ("pool", "url") if name in fields}
    if target:
        fields["target"] = {**fields.get("target", {}), **target}
    return fields
