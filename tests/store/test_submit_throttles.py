"""Throttles of submits, where processes meet: in one row for each key."""

import asyncio
import itertools
from datetime import timedelta

from duly.store.submit_throttles import ThrottleKey, delete_passed_throttles, take_starts
from tests.store.world import World

TENANT = 1


async def test_starts_taken_at_once_are_apart_from_each_other(world: World) -> None:
    """Two processes that read the same instant start twice the limit."""
    key = ThrottleKey(TENANT, "k", 3.0)
    taken = await asyncio.gather(*(take_starts(world.database, [key, key]) for _ in range(5)))
    starts = sorted(start for pair in taken if pair is not None for start in pair)
    gaps = {b - a for a, b in itertools.pairwise(starts)}
    assert gaps == {timedelta(seconds=3)}


async def test_a_throttle_whose_time_is_over_is_deleted_and_another_is_not(world: World) -> None:
    """Keys are chosen by users; without an end the table grows for ever."""
    await take_starts(world.database, [ThrottleKey(TENANT, "past", 0.0)])
    await take_starts(world.database, [ThrottleKey(TENANT, "coming", 60.0)])
    assert await delete_passed_throttles(world.database, 10) == 1
    (row,) = await world.database.fetch("SELECT key FROM duly.submit_throttles")
    assert row["key"] == "coming"
