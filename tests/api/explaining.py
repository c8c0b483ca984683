"""Verbs for tests of `explain`: make a task wait for something, and ask why it waits."""

from datetime import datetime
from typing import Any
from uuid import UUID

from duly.domain.gates import Gate
from duly.domain.lanes import Ticket
from duly.domain.states import Outcome
from duly.store.finish import Settlement
from duly.store.lease import Lease, lease_tasks
from duly.store.settle import Settler
from duly.store.tenants import TenantLimits, update_tenant
from tests.api.conftest import Front

HOLDER = UUID("00000000-0000-4000-8000-00000000000a")
URL = {"target": {"url": "https://api.example.com/charge"}}
KEY = {"concurrency_key": "customer:1"}
OWN_SLOTS = """
UPDATE duly.ownership
   SET holder = $1, expires_at = duly.now() + interval '1 hour',
       void_at = duly.now() + make_interval(secs => $2)
 WHERE kind = 'slot'
"""
ADD_WORKER = """
INSERT INTO duly.workers (tenant, id, holder, pools, started_at, seen_at, expires_at)
VALUES ($1, $2, $3, $4, duly.now(), duly.now(), duly.now() + make_interval(secs => $5))
"""
ADD_NODE = """
INSERT INTO duly.nodes (id, name, version, roles, started_at, seen_at, expires_at)
VALUES ($1, 'n-1', '1', $2, duly.now(), duly.now(), duly.now() + interval '1 hour')
    ON CONFLICT (id) DO UPDATE SET roles = EXCLUDED.roles
"""
POOL_NUMBER = "SELECT number FROM duly.pools WHERE tenant = $1 AND name = 'default'"


async def own_slots(front: Front, void_in_s: float = -1.0) -> None:
    """A scheduler that never ticks; the tickets of the one before it are void then."""
    await front.database.fetch(OWN_SLOTS, HOLDER, void_in_s)


async def make_live(front: Front) -> Front:
    """Every slot has an owner, an executor calls webhooks, and a worker takes from the default
    pool."""
    await own_slots(front)
    await add_node(front, "scheduler", "executor")
    await add_worker(front)
    return front


async def add_node(front: Front, *roles: str) -> None:
    """One that never ticks. Again, with other roles: the same."""
    await front.database.fetch(ADD_NODE, HOLDER, list(roles))


async def add_worker(front: Front, *pools: str, lives_s: float = 60.0) -> None:
    named = list(pools) or ["default"]
    await front.database.fetch(ADD_WORKER, front.tenant.id, "w-1", HOLDER, named, lives_s)


async def submit(front: Front, **fields: Any) -> str:
    asked = {"type": "mail.send"} | fields
    reply = await front.call("POST", "/v1/tasks", asked, key=front.producer)
    assert reply.status == 201, reply.body
    task_id: str = reply.json["id"]
    return task_id


async def explained(front: Front, task_id: str) -> dict[str, Any]:
    reply = await front.call("GET", f"/v1/tasks/{task_id}/explain", key=front.producer)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.json
    assert list(answer) == ["state", "summary", "gates", "binding", "estimate_at"]
    return answer


def bound(answer: dict[str, Any]) -> dict[str, Any]:
    """The entry that binds; every entry before it is open."""
    names = [entry["gate"] for entry in answer["gates"]]
    assert names[: len(Gate)] == [gate.value for gate in Gate]
    entry: dict[str, Any] = answer["gates"][names.index(answer["binding"])]
    assert not entry["open"]
    assert entry["reason"] in answer["summary"]
    return entry


async def lease(front: Front, task_id: str, fence: int = 0, lease_s: float = 60.0) -> Lease:
    tickets = [Ticket(UUID(task_id), fence)]
    (held,) = await lease_tasks(front.database, front.environment, HOLDER, tickets, lease_s)
    return held


async def settle(front: Front, held: Lease, outcome: Outcome, **words: Any) -> None:
    settler = Settler(front.database, front.environment)
    await settler.settle([Settlement(held.id, held.fence, HOLDER, outcome, **words)])


async def limit(front: Front, **limits: Any) -> None:
    assert await update_tenant(front.database, front.tenant.id, TenantLimits(**limits))


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def pool_number(front: Front) -> int:
    (row,) = await front.database.fetch(POOL_NUMBER, front.tenant.id)
    number: int = row["number"]
    return number
