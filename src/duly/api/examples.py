"""One example for each kind of body, by method and path; a test decodes every one of them."""

from typing import Any

TASK: dict[str, Any] = {
    "type": "invoice.charge",
    "payload": {"invoice_id": "inv_8829031"},
    "delay_s": 90,
    "target": {"pool": "billing"},
    "priority": 5,
    "retry": {"max_attempts": 5, "backoff": "exponential", "initial_s": 2, "factor": 2},
    "timeout_s": 30,
    "idempotency_key": "billing_invoice_9082348",
    "tags": {"env": "prod"},
}
SCHEDULE: dict[str, Any] = {
    "name": "nightly report",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "task": {"type": "report.write", "payload": {"kind": "daily"}, "target": {"pool": "reports"}},
    "misfire": "coalesce",
    "overlap": "skip",
    "dst_gap": "shift",
    "dst_repeat": "first",
    "jitter_s": 120,
    "exclude_dates": ["2026-12-25"],
}
WORKFLOW: dict[str, Any] = {
    "name": "order.fulfil",
    "idempotency_key": "order-4711",
    "deadline_s": 86400,
    "on_failure": "finish_branches",
    "defaults": {"target": {"pool": "orders"}, "timeout_s": 30},
    "nodes": {
        "charge": {"type": "payment.charge", "payload": {"order": 4711}},
        "reserve": {"type": "stock.reserve", "payload": {"order": 4711}},
        "ship": {"type": "parcel.ship", "after": ["charge", "reserve"]},
        "notify": {"type": "email.send", "after": ["ship"], "when": "all_done", "delay_s": 60},
        "refund": {"type": "payment.refund", "after": ["reserve"], "when": "any_failed"},
        "review": {
            "after": ["ship"],
            "if": {"node": "ship", "path": "/parcels", "gt": 10},
            "wait": {
                "signal": "approved",
                "role": "operator",
                "timeout_s": 86400,
                "on_timeout": "skip",
            },
        },
    },
}
TASK_ID = "01923f5d-7c1a-7e3f-8a55-0c1d2e3f4a5b"
FILTER = {"type": "invoice.charge", "tag": "env:prod"}

EXAMPLES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/tasks"): TASK,
    ("POST", "/v1/tasks/batch"): {
        "tasks": [
            {"type": "email.send", "payload": {"to": "a@example.com"}},
            {"type": "email.send", "payload": {"to": "b@example.com"}, "delay_s": 60},
        ]
    },
    ("POST", "/v1/tasks/cancel"): {"filter": FILTER, "dry_run": True},
    ("PATCH", "/v1/tasks/{id}"): {"delay_s": 600, "priority": 8},
    ("POST", "/v1/schedules"): SCHEDULE,
    ("PUT", "/v1/schedules/{id}"): SCHEDULE,
    ("PATCH", "/v1/schedules/{id}"): {"cron": "30 2 * * *", "jitter_s": 0},
    ("POST", "/v1/schedules/preview"): {
        "cron": "30 2 * * *",
        "timezone": "America/New_York",
        "count": 5,
    },
    ("POST", "/v1/schedules/{id}/pause"): {"reason": "the report is being rewritten"},
    ("POST", "/v1/schedules/pause"): {
        "filter": {"name_prefix": "nightly"},
        "reason": "moving house",
        "dry_run": True,
    },
    ("POST", "/v1/workflows"): WORKFLOW,
    ("POST", "/v1/workflows/{id}/signals"): {
        "name": "approved",
        "payload": {"note": "checked by phone"},
        "idempotency_key": "review-4711",
    },
    ("PUT", "/v1/workflow-types/{name}"): {
        "deadline_s": 86400,
        "nodes": {
            "list": {"type": "invoice.list"},
            "report": {"type": "invoice.report", "after": ["list"], "payload": {"kind": "month"}},
        },
    },
    ("POST", "/v1/keys"): {"name": "billing service", "role": "producer"},
    ("PATCH", "/v1/keys/{id}"): {"request_rate": 50},
    ("POST", "/v1/keys/{id}/rotate"): {"grace_s": 3600},
    ("POST", "/v1/workflows/{id}/nodes"): {
        "nodes": {"archive": {"type": "order.archive", "after": ["ship"]}}
    },
    ("POST", "/v1/workflows/{id}/resume"): {"from": "failed", "dry_run": True},
    ("POST", "/v1/workflows/{id}/nodes/{node}/items"): {
        "task": TASK_ID,
        "fence": 1,
        "first": 0,
        "items": ["inv_8829031", "inv_8829032"],
    },
    ("POST", "/v1/schedules/{id}/resume"): {"reason": "the report is there again"},
    ("POST", "/v1/schedules/resume"): {"filter": {"name_prefix": "nightly"}, "dry_run": True},
    ("POST", "/v1/schedules/{id}/backfill"): {
        "from": "2026-11-01T00:00:00Z",
        "to": "2026-11-07T00:00:00Z",
        "dry_run": True,
    },
    ("POST", "/compat/v1/tasks"): {
        "type": "invoice.charge",
        "payload": {"invoice_id": "inv_8829031"},
        "delay_sec": 90,
    },
    ("POST", "/compat/v1/tasks/recurring"): {
        "name": "nightly report",
        "cron": "0 2 * * *",
        "payload_template": {"kind": "daily"},
        "task_defaults": {"type": "report.write"},
    },
    ("POST", "/v1/worker/lease"): {"worker_id": "host-1-4711", "pools": ["billing"], "max": 10},
    ("POST", "/v1/worker/heartbeat"): {
        "worker_id": "host-1-4711",
        "leases": [{"id": TASK_ID, "fence": 1}],
    },
    ("POST", "/v1/worker/settle"): {
        "worker_id": "host-1-4711",
        "settlements": [{"id": TASK_ID, "fence": 1, "outcome": "completed", "result": {"sent": 1}}],
    },
    ("POST", "/v1/worker/deregister"): {"worker_id": "host-1-4711"},
    ("POST", "/v1/tasks/{id}/settle"): {"fence": 1, "outcome": "completed"},
    ("POST", "/v1/worker/logs"): {
        "worker_id": "host-1-4711",
        "chunks": [
            {
                "id": TASK_ID,
                "fence": 1,
                "seq": 0,
                "lines": [{"at": "2026-11-01T02:00:00Z", "level": "info", "text": "1,200 rows"}],
            }
        ],
    },
    ("POST", "/v1/tenants"): {"name": "acme", "weight": 2, "in_flight_max": 100},
    ("PATCH", "/v1/tenants/{name}"): {"dispatch_rate": 50},
    ("PUT", "/v1/task-types/{name}"): {
        "schema": {"type": "object", "required": ["invoice_id"]},
        "defaults": {"timeout_s": 30},
    },
    ("POST", "/v1/pauses"): {"kind": "type", "name": "invoice.charge", "reason": "bank is down"},
    ("POST", "/v1/pauses/resume"): {"kind": "type", "name": "invoice.charge"},
    ("POST", "/v1/breakers/close"): {"host": "hooks.example.com"},
    ("POST", "/v1/dead-letters/replay"): {"filter": {"type": "invoice.charge"}, "dry_run": True},
    ("POST", "/v1/dead-letters/purge"): {"filter": {"type": "invoice.charge"}, "dry_run": True},
    ("POST", "/v1/bulk"): {"action": "cancel", "filter": FILTER, "dry_run": True},
    ("POST", "/v1/erasures"): {"task": TASK_ID, "dry_run": True},
    ("POST", "/v1/webhook-secrets"): {"grace_s": 86400},
    ("PUT", "/v1/notifications/{name}"): {
        "to": {"mail": ["on-call@example.com"]},
        "dead_letters": True,
        "lag_s": 60,
    },
    ("POST", "/v1/session"): {"credential": "duly_..."},
}
