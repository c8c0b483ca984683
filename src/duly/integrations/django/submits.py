"""Submits that go with Django's transactions.

| the program dies | `submit_on_commit` | `submit_in_transaction` |
|---|---|---|
| before the commit | no task | no task |
| between commit and submit | the task is lost | there is no between |
| after | the task is stored | the task is stored |
"""

from typing import Any, Unpack
from uuid import UUID

from django.db import connections, transaction

from duly.client import transactional
from duly.client.request import SubmitOptions, TaskCall, encode_task, task_call
from duly.domain.errors import ConfigurationError
from duly.integrations.django.clients import get_client
from duly.integrations.django.options import read_options

POSTGRESQL = "postgresql"


def submit_on_commit(
    task: str | TaskCall[Any],
    payload: object = None,
    *,
    using: str | None = None,
    **options: Unpack[SubmitOptions],
) -> None:
    """Submit over HTTP once the transaction of the database `using` has committed, and never if it
    is rolled back; at once where there is none. `task`: a type, or a handle's call."""
    call = task_call(task, payload, options)
    # What cannot be encoded is refused here, where a rollback is still possible.
    encode_task(call.type, call.payload, call.options)
    transaction.on_commit(lambda: get_client().submit(call), using=using)


def submit_in_transaction(
    task: str | TaskCall[Any],
    payload: object = None,
    *,
    using: str = "default",
    tenant: str | None = None,
    **options: Unpack[SubmitOptions],
) -> UUID:
    """Store the task in the transaction itself: for the database `using` that duly lives in, too.
    The id of the task that the commit will make. `tenant`: else DULY["TENANT"]."""
    connection = connections[using]
    if connection.vendor != POSTGRESQL:
        problem = f"duly does not live in the database {using!r}, which is {connection.vendor}"
        raise ConfigurationError(problem=f"{problem}: use submit_on_commit, or an outbox")
    if not connection.in_atomic_block:
        problem = "submit_in_transaction needs a transaction: call it inside of atomic()"
        raise ConfigurationError(problem=problem)
    call = task_call(task, payload, options)
    named = tenant or read_options().tenant
    return transactional.submit(connection, named, call.type, call.payload, **call.options)
