"""The reaper: ends expired leases and late starts, and corrects in-flight counts."""

from itertools import islice

from duly.domain.ids import shard_of
from duly.domain.states import Outcome
from duly.environment import Environment
from duly.events import TaskEvents, TasksFinished
from duly.role import Wakeup
from duly.scheduler.dispatcher import Dispatcher
from duly.scheduler.in_flight import Charge
from duly.scheduler.loader import Loader
from duly.store.database import Database
from duly.store.finish import expired_answer, finish_unstarted, unleased_end
from duly.store.load import find_outstanding, list_capped_leases
from duly.store.reap import EXPIRY_BATCHES_MAX, reap_leases
from duly.telemetry import Metrics

REAP_S = 1.0
REAP_SHARDS_MAX = 5000
REAP_LEASES_MAX = 500
EXPIRE_MAX = 500
CAPPED_LEASES_MAX = 10_000
TICKETS_MAX = 2000


class Reaper:
    """A role: each tick looks at the leases of the shards we own."""

    name = "reaper"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        loader: Loader,
        dispatcher: Dispatcher,
        metrics: Metrics,
        events: TaskEvents,
        wakeup: Wakeup,
    ) -> None:
        self.database = database
        self.environment = environment
        self.loader = loader
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.events = events
        self.next_shard = 0
        self.wakeup = wakeup

    async def tick(self) -> float:
        await self.expire()
        more = await self.reap()
        await self.correct()
        await self.correct_tickets()
        return 0.0 if more else REAP_S

    async def close(self) -> None:
        """Nothing is held."""

    async def reap(self) -> bool:
        shards = self.owned_shards()
        if not shards:
            return False
        reaped = await reap_leases(
            self.database, self.environment, shards, REAP_LEASES_MAX, events=self.events
        )
        self.metrics.leases_lost.add(len(reaped.lost))
        is_full = len(reaped.lost) + reaped.rearmed >= REAP_LEASES_MAX
        return is_full or reaped.expiry_batches >= EXPIRY_BATCHES_MAX

    def owned_shards(self) -> list[tuple[int, int]]:
        """The (tenant, shard) pairs we own, a bounded number at a time, round and round."""
        pairs = sorted({(queue.tenant, queue.shard) for queue in self.loader.timer_queues})
        if len(pairs) <= REAP_SHARDS_MAX:
            return pairs
        start = self.next_shard % len(pairs)
        self.next_shard = start + REAP_SHARDS_MAX
        return (pairs + pairs)[start : start + REAP_SHARDS_MAX]

    async def expire(self) -> None:
        late, self.dispatcher.expired = self.dispatcher.expired, []
        for start in range(0, len(late), EXPIRE_MAX):
            tenants = {ticket.id: tenant for tenant, ticket in late[start : start + EXPIRE_MAX]}
            tickets = [ticket for _, ticket in late[start : start + EXPIRE_MAX]]
            ended = await finish_unstarted(self.database, tickets)
            if ended:
                answers = [expired_answer(tenants[task_id]) for task_id in ended]
                settlements = [unleased_end(task_id, Outcome.EXPIRED) for task_id in ended]
                self.events.publish(TasksFinished(settlements, answers))

    async def correct(self) -> None:
        """Ask the database how much is in flight, where a cap makes the answer matter."""
        counts, bounds = self.dispatcher.counts, self.dispatcher.gatekeeper.bounds
        asked = self.dispatcher.capped_shards(self.loader.timer_queues)
        if not asked or not self.dispatcher.time.is_known:
            return
        shards = set(asked)
        before = {
            task_id: charge
            for task_id, charge in counts.leases.items()
            if (charge.tenant, shard_of(task_id)) in shards
        }
        asked_at = self.dispatcher.time.now()
        leases = await list_capped_leases(
            self.database,
            [(tenant, shard, tenant in bounds.capped) for tenant, shard in asked],
            CAPPED_LEASES_MAX,
        )
        # What was lost meanwhile is another node's to count.
        includes = self.dispatcher.scope.includes
        seen = {
            lease.id: Charge(
                lease.fence - 1,
                lease.tenant,
                None if lease.concurrency_key is None else (lease.tenant, lease.concurrency_key),
            )
            for lease in leases
            if includes(lease.tenant, shard_of(lease.id))
        }
        self.dispatcher.free_capacity(counts.correct(before, seen))
        self.dispatcher.counted([shard for shard in asked if includes(*shard)], asked_at)

    async def correct_tickets(self) -> None:
        """A ticket taken and settled in another process would count until its deadline."""
        counts = self.dispatcher.counts
        tickets = list(islice(counts.tickets.items(), TICKETS_MAX))
        if not tickets:
            return
        standing = await find_outstanding(self.database, [(i, c.fence) for i, c in tickets])
        over = [(i, c) for i, c in tickets if i not in standing and counts.tickets.get(i) is c]
        freed = [counts.settled(task_id, charge.fence + 1) for task_id, charge in over]
        if freed:
            self.dispatcher.free_capacity([charge for charge in freed if charge is not None])
            self.dispatcher.wakeup.wake()
