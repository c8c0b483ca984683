"""Turns where a lane is full: whose come next, who need not wait, and what asking costs."""

from collections import Counter
from datetime import UTC, datetime
from random import Random
from uuid import UUID

import pytest

from duly.domain.lanes import Lane, queue_of
from duly.domain.task import HIGH, LOW, NORMAL, WEBHOOK_POOL, timer_queue
from duly.scheduler.lane_backpressure import TenantPool
from duly.scheduler.ready_state import ReadyState, ReadyTimer
from duly.store.load import DueTimer, TimerQueue

NOW = 1_800_000_000.0
DUE_AT = datetime.fromtimestamp(NOW, UTC)
ROOM = 200
PRIORITIES = {HIGH: 9, NORMAL: 5, LOW: 1}


class Crowd:
    """A board whose lanes take so many tasks, and then are full until somebody says otherwise."""

    def __init__(self) -> None:
        self.ready_state = ReadyState(NOW)
        self.number = 0
        self.rooms: dict[Lane, int] = {}
        self.picks = 0
        pick = self.ready_state.turns.pick

        def counted() -> TenantPool | None:
            self.picks += 1
            return pick()

        self.ready_state.turns.pick = counted  # type: ignore[method-assign]

    def add(self, tenant_pool: TenantPool, band: int = NORMAL, count: int = 1) -> None:
        tenant, pool = tenant_pool
        for _ in range(count):
            self.number += 1
            lane = timer_queue(pool, PRIORITIES[band])
            due = DueTimer(
                tenant, 0, lane, UUID(int=self.number), 0, DUE_AT, 5, None, "t", None, None, None
            )
            self.ready_state.add([due], TimerQueue(tenant, 0, lane), NOW)

    def dispatch(self) -> list[ReadyTimer]:
        """As the dispatcher does, until nothing more can be done."""
        chosen: list[ReadyTimer] = []
        self.ready_state.readmit()
        while (entry := self.ready_state.next_ready(NOW)) is not None:
            lane = queue_of(Lane(*entry.tenant_pool, entry.band))
            room = self.rooms.setdefault(lane, ROOM)
            if room == 0:
                self.ready_state.put_back(entry)
                self.ready_state.close(lane)
                continue
            self.rooms[lane] = room - 1
            self.ready_state.backpressure.served(entry.tenant_pool)
            chosen.append(entry)
        return chosen

    def empty_lanes(self) -> None:
        self.rooms.clear()
        for lane in [*self.ready_state.full]:
            self.ready_state.open(lane)

    def serve(self, openings: int) -> Counter[int]:
        """How often each tenant was served while the lanes filled and emptied so often."""
        served: Counter[int] = Counter()
        for _ in range(openings):
            served.update(entry.due.tenant for entry in self.dispatch())
            self.empty_lanes()
        return served


def webhooks(tenant: int) -> TenantPool:
    return tenant, WEBHOOK_POOL


def hotspot_of(tenants: int, count: int) -> Crowd:
    """So many tenants, each with so many webhooks."""
    crowd = Crowd()
    for tenant in range(tenants):
        crowd.add(webhooks(tenant), count=count)
    return crowd


def test_in_a_crowd_everybody_has_a_turn_before_anybody_has_two() -> None:
    """Ten times as many tenants as a lane takes at once: whoever comes last must not stay last."""
    crowd, served = hotspot_of(10 * ROOM, 3), Counter[int]()
    for _ in range(20):
        served += crowd.serve(1)
        counts = [served[tenant] for tenant in range(10 * ROOM)]
        assert max(counts) - min(counts) <= 1
    assert set(served.values()) == {2}


def test_a_crowd_costs_what_is_served_not_what_waits() -> None:
    """Asking everybody whenever there is room made ten thousand tenants three times as slow."""
    crowd = hotspot_of(10 * ROOM, 3)
    crowd.dispatch()
    for _ in range(10):
        crowd.empty_lanes()
        crowd.picks = 0
        assert len(crowd.dispatch()) == ROOM
        assert crowd.picks < 5 * ROOM


def test_weights_hold_in_a_crowd() -> None:
    """Who pays for more turns gets them, though the lane is full after each round of some."""
    crowd, heavy = hotspot_of(5 * ROOM, 90), range(0, 5 * ROOM, 10)
    crowd.ready_state.weights = dict.fromkeys(heavy, 3.0)
    served = crowd.serve(120)
    mean_heavy = sum(served[tenant] for tenant in heavy) / len(heavy)
    light = [tenant for tenant in range(5 * ROOM) if tenant not in heavy]
    mean_light = sum(served[tenant] for tenant in light) / len(light)
    assert mean_heavy / mean_light == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("weight", [0.5, 0.25, 0.1])
def test_a_small_weight_is_served_less_often_and_not_never(weight: float) -> None:
    """It saves over several turns, and in a crowd each of them ends at a full lane."""
    crowd = hotspot_of(5 * ROOM, 90)
    crowd.ready_state.weights = {7: weight}
    served = crowd.serve(300)
    assert 0 < served[7] <= served[8]


def test_urgent_work_does_not_wait_for_the_lane_of_another_band() -> None:
    """A flood of what can wait fills its lane; what cannot has a lane of its own."""
    crowd = Crowd()
    crowd.add(webhooks(1), NORMAL, 2 * ROOM)
    assert len(crowd.dispatch()) == ROOM
    crowd.add(webhooks(1), HIGH)
    (urgent,) = crowd.dispatch()
    assert urgent.band == HIGH
    crowd.empty_lanes()
    assert [entry.band for entry in crowd.dispatch()] == [NORMAL] * ROOM


def test_who_goes_on_with_urgent_work_keeps_its_place_for_the_rest() -> None:
    """Else a tenant with a little urgent work each second would never come to its other work."""
    crowd = hotspot_of(3 * ROOM, 2)
    crowd.dispatch()
    next_one = ROOM
    for _ in range(5):
        crowd.add(webhooks(next_one), HIGH)
        assert [entry.due.tenant for entry in crowd.dispatch()] == [next_one]
    crowd.empty_lanes()
    assert next_one in {entry.due.tenant for entry in crowd.dispatch()}


def test_new_work_does_not_jump_the_queue() -> None:
    """In the moment in which a lane has room again, whoever gets one more task would go first; a
    tenant that submits all the time would have many turns for each of the others."""
    crowd = hotspot_of(4 * ROOM, 9)
    served: Counter[int] = Counter()
    last = 4 * ROOM - 1
    for _ in range(12):
        crowd.empty_lanes()
        crowd.add(webhooks(last), NORMAL)
        served.update(entry.due.tenant for entry in crowd.dispatch())
    assert set(served.values()) == {3}


def test_a_turn_in_which_nothing_was_started_is_no_turn() -> None:
    """A member that finds the lane full, or has only blocked work in front, comes first the next
    time."""
    crowd = hotspot_of(3 * ROOM, 9)
    crowd.dispatch()
    crowd.empty_lanes()
    crowd.ready_state.readmit()
    came = crowd.ready_state.next_ready(NOW)
    assert came is not None
    crowd.ready_state.park(("paused", came.due.tenant, "t"), came)
    crowd.dispatch()
    crowd.empty_lanes()
    assert came.due.tenant in {entry.due.tenant for entry in crowd.dispatch()}


def test_a_full_lane_of_one_pool_stops_nobody_else() -> None:
    """Workers that are gone are their own tenant's trouble."""
    crowd = Crowd()
    crowd.add((1, 7), count=2 * ROOM)
    crowd.add((1, 8), count=5)
    crowd.add((2, 7), count=5)
    crowd.add(webhooks(1), count=5)
    served = Counter(entry.tenant_pool for entry in crowd.dispatch())
    assert served == {(1, 7): ROOM, (1, 8): 5, (2, 7): 5, webhooks(1): 5}


def test_whoever_waits_for_a_lane_comes_back_beside_endless_other_work() -> None:
    """Only asked when nobody else has work, it would wait for ever."""
    crowd = Crowd()
    crowd.add(webhooks(1), count=ROOM + 1)
    crowd.dispatch()
    crowd.add((2, 7), count=ROOM)
    crowd.empty_lanes()
    crowd.ready_state.readmit()
    first = [crowd.ready_state.next_ready(NOW) for _ in range(4)]
    assert webhooks(1) in {entry.tenant_pool for entry in first if entry is not None}


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_or_repeated_however_lanes_close_and_open(seed: int) -> None:
    """A member that is neither in turn nor held is never asked again."""
    random, crowd = Random(seed), Crowd()
    tenant_pools: list[TenantPool] = [*(webhooks(n) for n in range(30)), (1, 7), (2, 7), (3, 8)]
    seen: list[UUID] = []
    for _ in range(60):
        for _ in range(random.randrange(40)):
            crowd.add(random.choice(tenant_pools), random.choice((HIGH, NORMAL, LOW)))
        crowd.rooms = {lane: random.randrange(20) for lane in crowd.rooms}
        for lane in [*crowd.ready_state.full]:
            if random.random() < 0.5:
                crowd.ready_state.open(lane)
        tenant_pool = random.choice(tenant_pools)
        if random.random() < 0.3:
            crowd.ready_state.unblock([tenant_pool])
        seen += [entry.due.id for entry in crowd.dispatch()]
    while crowd.ready_state.closed or crowd.ready_state.may_readmit():
        crowd.empty_lanes()
        seen += [entry.due.id for entry in crowd.dispatch()]
    assert len(seen) == len(set(seen)) == crowd.number
    assert not crowd.ready_state.backpressure.queues
