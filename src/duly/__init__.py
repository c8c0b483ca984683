"""duly: a durable, multi-tenant, distributed task scheduler on PostgreSQL."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.client import transactional as transactional
    from duly.client.asynchronous import AsyncClient, AsyncTask
    from duly.client.context import Context
    from duly.client.synchronous import Client, Task
    from duly.client.verdicts import Reject, Retry
    from duly.client.worker import Worker

__version__ = "0.1.0.dev0"
__all__ = [
    "AsyncClient",
    "AsyncTask",
    "Client",
    "Context",
    "Reject",
    "Retry",
    "Task",
    "Worker",
    "__version__",
    "transactional",
]

# Imported when they are first used, so that the command line stays instant.
EXPORTS = {
    "AsyncClient": "duly.client.asynchronous",
    "AsyncTask": "duly.client.asynchronous",
    "Client": "duly.client.synchronous",
    "Context": "duly.client.context",
    "Reject": "duly.client.verdicts",
    "Retry": "duly.client.verdicts",
    "Task": "duly.client.synchronous",
    "Worker": "duly.client.worker",
}
MODULES = {"transactional": "duly.client.transactional"}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    if name not in EXPORTS:
        raise AttributeError(f"module 'duly' has no attribute {name!r}")
    return getattr(importlib.import_module(EXPORTS[name]), name)
