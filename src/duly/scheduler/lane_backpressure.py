"""Lane backpressure: pools of tenants that wait for a full lane, per lane. All webhooks of an
installation share three queues, and asking each of ten thousand tenants whenever two hundred tasks
find room took most of the time: so they come back a few at a time, in the order in which they
left."""

from collections import deque

from duly.domain.lanes import Lane

# One pool of one tenant.
TenantPool = tuple[int, int]


class LaneWaiters:
    """Pools that wait for one lane. Those that were readmitted and found it full again go first."""

    def __init__(self) -> None:
        self.first: deque[TenantPool] = deque()
        self.others: deque[TenantPool] = deque()
        self.tenant_pools: set[TenantPool] = set()


class LaneBackpressure:
    def __init__(self) -> None:
        self.queues: dict[Lane, LaneWaiters] = {}
        # For which lane each waits. A pool that went on with another lane keeps its place in the
        # queue.
        self.waits_for: dict[TenantPool, Lane] = {}
        # How often each pool was readmitted since one of its tasks was dispatched.
        self.unserved: dict[TenantPool, int] = {}

    def __contains__(self, tenant_pool: TenantPool) -> bool:
        return tenant_pool in self.waits_for

    def hold(self, tenant_pool: TenantPool, lane: Lane) -> None:
        self.waits_for[tenant_pool] = lane
        queue = self.queues.setdefault(lane, LaneWaiters())
        if tenant_pool not in queue.tenant_pools:
            queue.tenant_pools.add(tenant_pool)
            (queue.first if tenant_pool in self.unserved else queue.others).append(tenant_pool)

    def release(self, tenant_pool: TenantPool) -> None:
        """The pool waits no longer: it has work for another lane."""
        del self.waits_for[tenant_pool]

    def served(self, tenant_pool: TenantPool) -> None:
        self.unserved.pop(tenant_pool, None)

    def readmit(self, lane: Lane, most: int) -> list[TenantPool]:
        """The next pools that wait for this lane, at most `most`."""
        tenant_pools: list[TenantPool] = []
        queue = self.queues[lane]
        while len(tenant_pools) < most and (waiting := queue.first or queue.others):
            tenant_pool = waiting.popleft()
            queue.tenant_pools.discard(tenant_pool)
            if self.waits_for.get(tenant_pool) == lane:
                del self.waits_for[tenant_pool]
                tenant_pools.append(tenant_pool)
                self.unserved[tenant_pool] = self.unserved.get(tenant_pool, 0) + 1
        if not queue.tenant_pools:
            del self.queues[lane]
        return tenant_pools
