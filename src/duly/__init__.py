"""duly: a durable, multi-tenant, distributed task scheduler on PostgreSQL."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.client import inbox as inbox
    from duly.client import receiver as receiver
    from duly.client import transactional as transactional
    from duly.client.asynchronous import AsyncClient, AsyncTask
    from duly.client.context import Context
    from duly.client.errors import (
        ApiError,
        Conflict,
        Forbidden,
        IdempotencyMismatch,
        Invalid,
        InvalidPayload,
        InvalidResult,
        InvalidWorkflow,
        NotFound,
        RateLimited,
        ServerNotFound,
        TaskCancelled,
        TaskFailed,
        Unauthenticated,
        Unavailable,
        Unreachable,
        WaitTimedOut,
        WorkflowTimedOut,
    )
    from duly.client.inbox import FirstNotAsked, NoTransaction, StaleFence
    from duly.client.inline_mode import NoHandler, NoServer, TooManyRuns
    from duly.client.outcomes import Reject, Retry
    from duly.client.receiver import Delivery, WebhookRefused
    from duly.client.receiver_app import WebhookReceiver
    from duly.client.registry import TaskRegistry
    from duly.client.resources import Resource, inject, resource
    from duly.client.synchronous import Client, Task
    from duly.client.task_handle import TaskHandle
    from duly.client.worker import Worker
    from duly.client.workflow import AsyncWorkflow, Workflow
    from duly.client.workflow_block import workflow
    from duly.client.workflow_builder import WorkflowDefinition
    from duly.client.workflow_nodes import chain, chord, group
    from duly.domain.errors import ConfigurationError, DulyError

__version__ = "0.1.0.dev0"
__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncTask",
    "AsyncWorkflow",
    "Client",
    "ConfigurationError",
    "Conflict",
    "Context",
    "Delivery",
    "DulyError",
    "FirstNotAsked",
    "Forbidden",
    "IdempotencyMismatch",
    "Invalid",
    "InvalidPayload",
    "InvalidResult",
    "InvalidWorkflow",
    "NoHandler",
    "NoServer",
    "NoTransaction",
    "NotFound",
    "RateLimited",
    "Reject",
    "Resource",
    "Retry",
    "ServerNotFound",
    "StaleFence",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHandle",
    "TaskRegistry",
    "TooManyRuns",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "WaitTimedOut",
    "WebhookReceiver",
    "WebhookRefused",
    "Worker",
    "Workflow",
    "WorkflowDefinition",
    "WorkflowTimedOut",
    "__version__",
    "chain",
    "chord",
    "group",
    "inbox",
    "inject",
    "receiver",
    "resource",
    "transactional",
    "workflow",
]

# Imported when they are first used, so that the command line stays instant.
EXPORTS = {
    "ApiError": "duly.client.errors",
    "AsyncClient": "duly.client.asynchronous",
    "AsyncTask": "duly.client.asynchronous",
    "AsyncWorkflow": "duly.client.workflow",
    "Client": "duly.client.synchronous",
    "ConfigurationError": "duly.domain.errors",
    "Conflict": "duly.client.errors",
    "Context": "duly.client.context",
    "Delivery": "duly.client.receiver",
    "DulyError": "duly.domain.errors",
    "FirstNotAsked": "duly.client.inbox",
    "Forbidden": "duly.client.errors",
    "IdempotencyMismatch": "duly.client.errors",
    "Invalid": "duly.client.errors",
    "InvalidPayload": "duly.client.errors",
    "InvalidResult": "duly.client.errors",
    "InvalidWorkflow": "duly.client.errors",
    "NoHandler": "duly.client.inline_mode",
    "NoServer": "duly.client.inline_mode",
    "NoTransaction": "duly.client.inbox",
    "NotFound": "duly.client.errors",
    "RateLimited": "duly.client.errors",
    "Reject": "duly.client.outcomes",
    "Resource": "duly.client.resources",
    "Retry": "duly.client.outcomes",
    "ServerNotFound": "duly.client.errors",
    "StaleFence": "duly.client.inbox",
    "Task": "duly.client.synchronous",
    "TaskCancelled": "duly.client.errors",
    "TaskFailed": "duly.client.errors",
    "TaskHandle": "duly.client.task_handle",
    "TaskRegistry": "duly.client.registry",
    "TooManyRuns": "duly.client.inline_mode",
    "Unauthenticated": "duly.client.errors",
    "Unavailable": "duly.client.errors",
    "Unreachable": "duly.client.errors",
    "WaitTimedOut": "duly.client.errors",
    "WebhookReceiver": "duly.client.receiver_app",
    "WebhookRefused": "duly.client.receiver",
    "Worker": "duly.client.worker",
    "Workflow": "duly.client.workflow",
    "WorkflowDefinition": "duly.client.workflow_builder",
    "WorkflowTimedOut": "duly.client.errors",
    "chain": "duly.client.workflow_nodes",
    "chord": "duly.client.workflow_nodes",
    "group": "duly.client.workflow_nodes",
    "inject": "duly.client.resources",
    "resource": "duly.client.resources",
    "workflow": "duly.client.workflow_block",
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
        import difflib

        close = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise AttributeError(f"module 'duly' has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(EXPORTS[name]), name)
