"""Slots of an executor between tenants: one tenant's slow webhooks leave room for the others'."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from duly.domain.task import Submission
from duly.environment import Environment
from duly.execution.attempt import DONE, AttemptResult
from duly.store.database import Database
from duly.store.lease import Lease
from duly.store.submit import Stored
from duly.store.tenants import TenantLimits, create_tenant
from duly.testing.engine import Engine
from tests.broker.stage import until

pytestmark = pytest.mark.slow

URL = "http://receiver.example/hook"
SLOTS = 40
SLOW, QUICK = "slow", "quick"


class Receivers:
    """Slow tasks run until they are let go, quick ones end at once."""

    def __init__(self) -> None:
        self.running: Counter[int] = Counter()
        self.quick: Counter[int] = Counter()
        self.ends = asyncio.Semaphore(0)

    async def __call__(self, lease: Lease) -> AttemptResult:
        if lease.type == QUICK:
            self.quick[lease.tenant] += 1
            await asyncio.sleep(0)
            return DONE
        self.running[lease.tenant] += 1
        try:
            await self.ends.acquire()
        finally:
            self.running[lease.tenant] -= 1
        return DONE

    def let_go(self, count: int) -> None:
        for _ in range(count):
            self.ends.release()


class Stand:
    """One executor with few slots, and tenants of given weights."""

    def __init__(self, database: Database, is_alone: bool) -> None:
        self.database = database
        self.receivers = Receivers()
        self.engine = Engine(
            database, Environment(), self.receivers, is_alone=is_alone, running_max=SLOTS
        )

    async def tenant(self, name: str, weight: float = 1.0) -> int:
        created = await create_tenant(self.database, name, TenantLimits(weight=weight))
        assert created is not None
        return created.id

    async def submit(self, tenant: int, task_type: str, count: int = 1) -> list[Stored]:
        tasks = [Submission(tenant=tenant, type=task_type, url=URL) for _ in range(count)]
        answers = await asyncio.gather(*map(self.engine.group_commit.submit, tasks))
        assert all(isinstance(answer, Stored) for answer in answers)
        return answers  # type: ignore[return-value]

    async def running(self, tenant: int, count: int) -> None:
        await until(lambda: self.receivers.running[tenant] == count)


@pytest.fixture(params=[True, False], ids=["memory", "postgres"])
async def stand(engine_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    database = await Database.open(engine_url, 12)
    stand = Stand(database, request.param)
    async with stand.engine:
        yield stand
        stand.receivers.let_go(10_000)
    await database.close()


async def test_slow_webhooks_of_one_tenant_leave_slots_for_the_others(stand: Stand) -> None:
    """A thousand slow webhooks of one tenant held every slot, and others waited for their end."""
    slow, quick = await stand.tenant("slow"), await stand.tenant("quick")
    await stand.submit(slow, SLOW, 3 * SLOTS)
    await stand.running(slow, SLOTS * 9 // 10)
    for number in range(20):
        await stand.submit(quick, QUICK)
        await until(lambda: stand.receivers.quick[quick] == number + 1)  # noqa: B023
    assert stand.receivers.running[slow] == SLOTS * 9 // 10


async def test_several_slow_tenants_leave_slots_for_another(stand: Stand) -> None:
    """Each would be within some bound of its own; together they hold all slots and fill the
    queue."""
    slow = [await stand.tenant(f"slow-{number}") for number in range(3)]
    quick = await stand.tenant("quick")
    for tenant in slow:
        await stand.submit(tenant, SLOW, 3 * SLOTS)
    await until(lambda: sum(stand.receivers.running.values()) >= SLOTS * 9 // 10)
    await stand.submit(quick, QUICK)
    await until(lambda: stand.receivers.quick[quick] == 1)


async def test_tickets_that_find_no_slot_keep_no_others_from_being_published(
    stand: Stand,
) -> None:
    """A queue full of one tenant's tickets would stop the dispatch of everybody's."""
    slow, quick = await stand.tenant("slow"), await stand.tenant("quick")
    await stand.submit(slow, SLOW, 600)
    await stand.running(slow, SLOTS * 9 // 10)
    dispatcher = stand.engine.scheduler.dispatcher
    await until(lambda: bool(dispatcher.ready_state.full))
    await stand.submit(quick, QUICK, 100)
    await until(lambda: stand.receivers.quick[quick] == 100)


async def test_a_slot_that_becomes_free_is_used_at_once(stand: Stand) -> None:
    """A share that is kept while nobody else has work is throughput lost."""
    slow = await stand.tenant("slow")
    await stand.submit(slow, SLOW, 3 * SLOTS)
    await stand.running(slow, SLOTS * 9 // 10)
    began: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    before = loop.time()
    for _ in range(5):
        stand.receivers.let_go(4)
        await until(lambda: not stand.receivers.ends._value)
        await stand.running(slow, SLOTS * 9 // 10)
        began["rounds"] += 1
    # With a poll of a second for each it would be five; the bound is generous for slow machines.
    assert loop.time() - before < 30.0
    assert began["rounds"] == 5


async def test_slots_are_shared_by_weight(stand: Stand) -> None:
    """In the order of submission, the first tenant keeps what it has until its work is done."""
    light, heavy = await stand.tenant("light"), await stand.tenant("heavy", weight=3.0)
    await stand.engine.scheduler.bounds.tick()
    await stand.submit(light, SLOW, 200)
    await stand.running(light, SLOTS * 9 // 10)
    await stand.submit(heavy, SLOW, 200)
    await until(lambda: stand.receivers.running[heavy] > 0)

    async def is_shared() -> bool:
        stand.receivers.let_go(1)
        await asyncio.sleep(0.01)
        return stand.receivers.running[heavy] >= SLOTS * 9 // 10 * 0.7

    async with asyncio.timeout(30.0):
        while not await is_shared():
            continue
    assert stand.receivers.running[light] >= 5


async def test_a_tenant_beyond_its_share_gets_no_direct_lease(stand: Stand) -> None:
    """Stored together with its lease, a task passes no queue: the share must hold there, too."""
    slow, quick = await stand.tenant("slow"), await stand.tenant("quick")
    for tenant in (slow, quick):
        await stand.submit(tenant, QUICK)
    await until(lambda: stand.receivers.quick.total() == 2)
    leased = Counter[bool]()
    for _ in range(2 * SLOTS):
        await at_rest(stand.engine)
        (stored,) = await stand.submit(slow, SLOW)
        leased[stored.is_leased] += 1
    assert leased[True] > 0
    await stand.running(slow, SLOTS * 9 // 10)
    await at_rest(stand.engine)
    (stored,) = await stand.submit(quick, QUICK)
    assert stored.is_leased
    await until(lambda: stand.receivers.quick[quick] == 2)


async def at_rest(engine: Engine) -> None:
    scheduler = engine.scheduler
    await until(
        lambda: (
            scheduler.dispatcher.is_idle()
            and all(map(scheduler.loader.is_loaded, scheduler.loader.timer_queues))
            and engine.parts.lease_queue.waiting() > 1
        )
    )
