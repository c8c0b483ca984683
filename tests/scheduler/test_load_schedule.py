"""When places are looked at: the same as if all of them were gone through every time."""

import math
from dataclasses import dataclass, field
from random import Random

import pytest

from duly.scheduler.load_schedule import LoadSchedule
from duly.store.load import TimerQueue

PLACES = [TimerQueue(tenant, 0, 1) for tenant in range(12)]


@dataclass
class Model:
    """Goes through all of them."""

    times: dict[TimerQueue, float] = field(default_factory=dict)
    full: set[TimerQueue] = field(default_factory=set)

    def has_room(self, queue: TimerQueue) -> bool:
        return queue not in self.full

    def due(self, now: float, most: int) -> list[TimerQueue]:
        found = [(at, queue) for queue, at in self.times.items() if at <= now]
        return [queue for _, queue in sorted(found) if self.has_room(queue)][:most]

    def next_at(self) -> float:
        return min(
            (at for queue, at in self.times.items() if self.has_room(queue)),
            default=math.inf,
        )


@pytest.mark.parametrize("seed", range(200))
def test_an_agenda_forgets_nobody_and_repeats_nobody(seed: int) -> None:
    """A place that is dropped is never loaded again: its tasks wait for a restart."""
    random, agenda, model = Random(seed), LoadSchedule(), Model()
    now = 0.0
    for _ in range(200):
        now += random.choice((0.0, 0.0, 0.5))
        queue = random.choice(PLACES)
        match random.randrange(4):
            case 0 | 1:
                # Few instants, so that a place comes back to one it had.
                at = random.choice((0.0, now, math.ceil(now) + 1.0))
                agenda.put(queue, at)
                model.times[queue] = at
            case 2:
                model.full ^= {queue}
            case _:
                most = random.choice((1, 3, 100))
                assert agenda.due(now, model.has_room, most) == model.due(now, most)
                # No later than the first that has room: or its tasks would start late.
                assert agenda.next_at() <= model.next_at()
    model.full.clear()
    assert agenda.due(math.inf, model.has_room, 100) == model.due(math.inf, 100)
    assert len(model.times) > 1


def test_whoever_has_no_room_keeps_nobody_awake() -> None:
    """A full place that is due for ever would have the loader tick without a pause."""
    agenda = LoadSchedule()
    agenda.put(PLACES[0], 1.0)
    agenda.put(PLACES[1], 9.0)
    assert agenda.due(2.0, lambda _place: False, 10) == []
    assert agenda.next_at() == 9.0
    assert agenda.due(2.0, lambda _place: True, 10) == [PLACES[0]]


def test_an_empty_agenda_waits_for_ever() -> None:
    """Nothing to do is no reason to wake up."""
    assert LoadSchedule().next_at() == math.inf
    assert LoadSchedule().due(1.0, lambda _place: True, 10) == []
