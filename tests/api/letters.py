"""Tasks that have failed for good, made by the store's own calls, for the tests of their routes."""

from typing import Any
from uuid import UUID

from duly.domain.lanes import Ticket
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy, Submission
from duly.store.finish import Settlement
from duly.store.lease import lease_tasks
from duly.store.settle import Settler
from duly.store.submit import Stored, Submitter
from tests.api.conftest import Front

HOLDER = UUID(int=7)
ONCE = Policy(retry=RetryPolicy(max_attempts=1))


async def fail_many(
    front: Front, count: int, error: str = "boom", tenant: int | None = None, **fields: Any
) -> list[UUID]:
    """In the order of their ids."""
    usual: dict[str, Any] = {"type": "mail.send", "policy": ONCE, "tenant": front.tenant.id}
    if tenant is not None:
        usual["tenant"] = tenant
    wishes = [Submission(**(usual | fields)) for _ in range(count)]
    answers = await Submitter(front.database, front.environment).submit(wishes)
    ids = [answer.id for answer in answers if isinstance(answer, Stored)]
    assert len(ids) == count
    tickets = [Ticket(task_id, 0) for task_id in ids]
    leases = await lease_tasks(front.database, front.environment, HOLDER, tickets, 60.0)
    assert len(leases) == count
    settled = await Settler(front.database, front.environment).settle(
        [Settlement(each.id, each.fence, HOLDER, Outcome.FAILED, error=error) for each in leases]
    )
    assert len(settled) == count
    return sorted(ids)


async def fail(front: Front, error: str = "boom", **fields: Any) -> UUID:
    (task_id,) = await fail_many(front, 1, error, **fields)
    return task_id
