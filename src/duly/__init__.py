"""duly: a durable, multi-tenant, distributed task scheduler on PostgreSQL."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.client import inbox as inbox
    from duly.client import receiver as receiver
    from duly.client import transactional as transactional
    from duly.client.asynchronous import AsyncClient, AsyncTask
    from duly.client.context import Context
    from duly.client.outcomes import Reject, Retry
    from duly.client.receiver import Delivery
    from duly.client.receiver_app import WebhookReceiver
    from duly.client.registry import TaskRegistry
    from duly.client.synchronous import Client, Task
    from duly.client.task_handle import TaskHandle
    from duly.client.worker import Worker

__version__ = "0.1.0.dev0"
__all__ = [
    "AsyncClient",
    "AsyncTask",
    "Client",
    "Context",
    "Delivery",
    "Reject",
    "Retry",
    "Task",
    "TaskHandle",
    "TaskRegistry",
    "WebhookReceiver",
    "Worker",
    "__version__",
    "inbox",
    "receiver",
    "transactional",
]

# Imported when they are first used, so that the command line stays instant.
EXPORTS = {
    "AsyncClient": "duly.client.asynchronous",
    "AsyncTask": "duly.client.asynchronous",
    "Client": "duly.client.synchronous",
    "Context": "duly.client.context",
    "Delivery": "duly.client.receiver",
    "Reject": "duly.client.outcomes",
    "Retry": "duly.client.outcomes",
    "Task": "duly.client.synchronous",
    "TaskHandle": "duly.client.task_handle",
    "TaskRegistry": "duly.client.registry",
    "WebhookReceiver": "duly.client.receiver_app",
    "Worker": "duly.client.worker",
}
MODULES = {
    "inbox": "duly.client.inbox",
    "receiver": "duly.client.receiver",
    "transactional": "duly.client.transactional",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name not in EXPORTS:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    return getattr(importlib.import_module(EXPORTS[name]), name)
