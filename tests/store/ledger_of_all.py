"""One task of every kind, made by the store's own statements on the real clock, for `verify`."""

from dataclasses import dataclass
from random import Random
from uuid import UUID

from duly.domain.lanes import Ticket
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.store.control import TimerChange, cancel_tasks, reschedule_tasks, run_now
from duly.store.database import Database
from duly.store.dead_letters import replay_dead_letters
from duly.store.finish import Settlement
from duly.store.lease import lease_tasks
from duly.store.purge import purge_tasks
from duly.store.settle import Settler
from duly.store.submit import Stored, Submitter

HOLDER = UUID(int=7)
LEASE_S = 60.0
AGAIN = Policy(retry=RetryPolicy(initial_s=0.0, backoff="fixed"))
# A lane of its own, so that a test can take away its place alone.
URGENT = 9
HOUR_S = 3600.0


@dataclass
class Kinds:
    """By what became of them."""

    done: UUID
    neighbours: UUID
    retried: UUID
    dead: UUID
    replay: UUID
    lettered: UUID
    waiting: UUID
    moved: UUID
    held: UUID
    cancelled: UUID
    purged: UUID


class Maker:
    def __init__(self, database: Database, tenant: int) -> None:
        self.database = database
        self.tenant = tenant
        self.environment = Environment(random=Random(tenant))
        self.submitter = Submitter(database, self.environment)
        self.settler = Settler(database, self.environment)

    async def submit(self, neighbour: int = 0, **facts: object) -> UUID:
        tenant = self.tenant + neighbour
        wish = Submission(tenant=tenant, type="t", **facts)  # type: ignore[arg-type]
        (answer,) = await self.submitter.submit([wish])
        assert isinstance(answer, Stored)
        return answer.id

    async def lease(self, task: UUID, fence: int) -> UUID:
        leases = await lease_tasks(
            self.database, self.environment, HOLDER, [Ticket(task, fence)], LEASE_S
        )
        assert [lease.fence for lease in leases] == [fence + 1]
        return task

    async def run(self, task: UUID, outcome: Outcome, fence: int = 0) -> UUID:
        await self.lease(task, fence)
        await self.settler.settle([Settlement(task, fence + 1, HOLDER, outcome)])
        return task


async def make_all(database: Database, tenant: int = 1) -> Kinds:
    """For a tenant, and one task for the next one."""
    maker = Maker(database, tenant)
    dead = await maker.run(await maker.submit(), Outcome.REJECTED)
    replays = await replay_dead_letters(database, maker.environment, tenant, [dead])
    retried = await maker.run(await maker.submit(policy=AGAIN), Outcome.FAILED)
    moved = await maker.submit(delay_s=HOUR_S)
    await reschedule_tasks(database, tenant, [TimerChange(moved, delay_s=2 * HOUR_S)])
    await reschedule_tasks(database, tenant, [run_now(moved)])
    cancelled = await maker.submit(delay_s=HOUR_S)
    await cancel_tasks(database, tenant, [cancelled])
    purged = await maker.run(await maker.submit(), Outcome.REJECTED)
    await purge_tasks(database, tenant, [purged], "somebody")
    return Kinds(
        done=await maker.run(await maker.submit(idempotency_key="k"), Outcome.COMPLETED),
        neighbours=await maker.run(await maker.submit(neighbour=1), Outcome.COMPLETED),
        retried=await maker.run(retried, Outcome.COMPLETED, fence=2),
        dead=dead,
        replay=replays[dead],
        lettered=await maker.run(await maker.submit(), Outcome.REJECTED),
        waiting=await maker.submit(delay_s=HOUR_S, priority=URGENT),
        moved=await maker.run(moved, Outcome.COMPLETED, fence=2),
        held=await maker.lease(await maker.submit(), 0),
        cancelled=cancelled,
        purged=purged,
    )
