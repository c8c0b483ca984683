"""Rings between processes: many at once, over any failure, and never more than a hint."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from duly.domain.errors import DatabaseUnavailable
from duly.environment import Environment
from duly.store import notify as channel_module
from duly.store.database import Database
from duly.store.notify import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    DOORBELL,
    FREED,
    OWNERSHIP,
    PACE_S,
    PACED_MAX,
    PAYLOAD_BYTES_MAX,
    PAYLOADS_MAX,
    PROBE_EVERY_S,
    Channel,
    Notifier,
    PacedHints,
    payloads,
)
from tests.store.notification_swallower import swallow_notifications

WAIT_MAX_S = 10.0
TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND query LIKE 'LISTEN%'
"""


class Ear:
    """Collects rings, and lets a test wait for them."""

    def __init__(self) -> None:
        self.hints: list[str] = []
        self.event = asyncio.Event()

    def __call__(self, hints: list[str]) -> None:
        self.hints += hints
        self.event.set()

    async def until(self, is_enough: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(WAIT_MAX_S):
            while not is_enough(self.hints):
                self.event.clear()
                await self.event.wait()


class Room:
    def __init__(self, database: Database, environment: Environment) -> None:
        self.ownership, self.doorbell = Ear(), Ear()
        self.times_listening = 0
        listeners = {OWNERSHIP: self.ownership, DOORBELL: self.doorbell}
        self.channel = Channel(database, environment, listeners, self.note_listening)
        self.notifier = Notifier(database)

    def note_listening(self) -> None:
        self.times_listening += 1


@pytest.fixture
async def room(database: Database, environment: Environment) -> AsyncIterator[Room]:
    room = Room(database, environment)
    yield room
    await room.notifier.close()
    await room.channel.close()


async def test_a_ring_reaches_the_listener_of_its_channel(room: Room) -> None:
    """A doorbell heard by the wrong part wakes everybody for nothing."""
    assert await room.channel.tick() == PROBE_EVERY_S
    assert room.channel.is_working
    room.notifier.send(DOORBELL, ["a", "b"])
    room.notifier.send(OWNERSHIP, ["c"])
    await room.doorbell.until(lambda hints: hints == ["a", "b"])
    await room.ownership.until(lambda hints: hints == ["c"])


async def test_who_begins_to_listen_is_told_to_look_for_what_was_rung_before(room: Room) -> None:
    """Two nodes that start at once: the one that frees slots rings before the other listens,
    and nobody would take them until its next look, seconds later."""
    await room.channel.tick()
    assert room.times_listening == 1
    await room.channel.tick()
    assert room.times_listening == 1, "nothing was missed since"
    await room.channel.close()
    await room.channel.tick()
    assert room.times_listening == 2


async def test_rings_of_any_number_arrive_whole_and_in_order(room: Room) -> None:
    """PostgreSQL refuses a payload of 8,000 bytes: everything in it would be lost."""
    await room.channel.tick()
    hints = [f"{number:05d} é" for number in range(5000)]
    room.notifier.send(DOORBELL, hints)
    await room.doorbell.until(lambda heard: len(heard) >= len(hints))
    assert room.doorbell.hints == hints
    assert room.notifier.hints_lost == 0


async def test_the_longest_ring_fits_and_one_byte_more_is_our_own_mistake(room: Room) -> None:
    """The bound is PostgreSQL's; past it the statement fails with all that travels along."""
    await room.channel.tick()
    longest = "x" * PAYLOAD_BYTES_MAX
    other = "y" * PAYLOAD_BYTES_MAX
    room.notifier.send(DOORBELL, [longest, other])
    await room.doorbell.until(lambda heard: heard == [longest, other])
    for wrong in (longest + "x", "two\nlines", ""):
        with pytest.raises(AssertionError):
            room.notifier.send(DOORBELL, [wrong])


def test_payloads_are_filled_to_the_bound() -> None:
    """One ring for each payload would fill the server's queue with air."""
    hints = ["x" * 799] * 25
    assert [len(group) for group in payloads(hints)] == [10, 10, 5]
    assert len("\n".join(hints[:10])) == PAYLOAD_BYTES_MAX
    assert list(payloads([])) == []


async def test_what_arrives_during_a_flight_forms_the_next(
    room: Room, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement for each submit would cost as much as the submit."""
    sent: list[list[str]] = []
    took_off, may_land = asyncio.Event(), asyncio.Event()

    async def slow(_statement: str, _channels: list[str], texts: list[str]) -> list[Any]:
        sent.append(texts)
        took_off.set()
        await may_land.wait()
        return []

    monkeypatch.setattr(database, "fetch", slow)
    room.notifier.send(DOORBELL, ["first"])
    await asyncio.wait_for(took_off.wait(), WAIT_MAX_S)
    for number in range(100):
        room.notifier.send(DOORBELL, [str(number)])
    may_land.set()
    await room.notifier.close()
    assert sent == [["first"], ["\n".join(map(str, range(100)))]]


async def test_a_statement_carries_a_bounded_number_of_payloads(
    room: Room, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One huge statement holds the lock of all notifications for as long as it takes."""
    sent: list[int] = []

    async def count(_statement: str, _channels: list[str], texts: list[str]) -> list[Any]:
        sent.append(len(texts))
        return []

    monkeypatch.setattr(database, "fetch", count)
    room.notifier.send(DOORBELL, ["x" * PAYLOAD_BYTES_MAX] * (PAYLOADS_MAX + 1))
    await room.notifier.close()
    assert sent == [PAYLOADS_MAX, 1]
    assert room.notifier.waiting == {}


async def test_rings_that_cannot_be_sent_are_lost_and_counted(
    room: Room, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept for a database that is away, hints would fill the memory; the sweep finds the work."""

    async def away(*_: object) -> list[Any]:
        raise DatabaseUnavailable(address="here", problem="no route")

    with monkeypatch.context() as patch:
        patch.setattr(database, "fetch", away)
        room.notifier.send(DOORBELL, ["a", "b", "c"])
        await room.notifier.close()
    assert room.notifier.hints_lost == 3
    await room.channel.tick()
    room.notifier.send(DOORBELL, ["d"])
    await room.doorbell.until(lambda hints: hints == ["d"])


async def test_more_rings_than_may_wait_are_lost_and_counted(database: Database) -> None:
    """A flood of submits while NOTIFY is slow must not fill the memory."""
    notifier = Notifier(database, waiting_max=3)
    notifier.send(DOORBELL, [str(number) for number in range(5)])
    assert (notifier.waiting_count, notifier.hints_lost) == (3, 2)
    await notifier.close()
    assert notifier.waiting_count == 0


async def test_a_lost_connection_is_noticed_and_replaced(
    room: Room, owner: asyncpg.Connection
) -> None:
    """A listener on a dead connection waits for ever and says nothing."""
    await room.channel.tick()
    woken = room.channel.wakeup.event
    await owner.execute(TERMINATE)
    await asyncio.wait_for(woken.wait(), WAIT_MAX_S)
    seen = [room.channel.is_working]
    await room.channel.tick()
    assert [*seen, room.channel.is_working] == [False, True]
    room.notifier.send(DOORBELL, ["again"])
    await room.doorbell.until(lambda hints: hints == ["again"])


async def test_a_pooler_that_swallows_notifications_is_found_out(
    engine_url: str, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LISTEN succeeds there, and nothing ever arrives: better to know and to poll."""
    monkeypatch.setattr(channel_module, "PROBE_TIMEOUT_S", 0.5)
    async with swallow_notifications(engine_url) as pooler:
        database = await Database.open(pooler.url, 2)
        room = Room(database, environment)
        assert await room.channel.tick() <= BACKOFF_FIRST_S
        assert not room.channel.is_working
        assert pooler.swallowed == 1
        await room.channel.close()
        await database.close()


async def test_a_database_that_is_away_is_tried_again_later_and_later(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet that reconnects in step takes a restarting server down again."""

    async def away(_url: str) -> None:
        raise DatabaseUnavailable(address="here", problem="no route")

    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "connect", away)
        waits = [await room.channel.tick() for _ in range(20)]
    for failures, wait_s in enumerate(waits):
        whole_s = min(BACKOFF_FIRST_S * 2**failures, BACKOFF_MAX_S)
        assert whole_s / 2 <= wait_s <= whole_s
    assert len(set(waits)) == len(waits)
    assert await room.channel.tick() == PROBE_EVERY_S
    assert room.channel.failures_in_a_row == 0


async def test_a_listener_that_raises_does_not_silence_the_others(room: Room) -> None:
    """One bad payload must not end the doorbell for the rest of the day."""

    def deaf(_rings: list[str]) -> None:
        raise ValueError("what was that?")

    room.channel.listeners = {OWNERSHIP: deaf, DOORBELL: room.doorbell}
    await room.channel.tick()
    room.notifier.send(OWNERSHIP, ["a"])
    room.notifier.send(DOORBELL, ["b"])
    await room.doorbell.until(lambda hints: hints == ["b"])
    assert await room.channel.tick() == PROBE_EVERY_S


async def test_a_closed_channel_keeps_no_connection(room: Room, owner: asyncpg.Connection) -> None:
    """Each restart of a role would leak one of the server's connections."""
    await room.channel.tick()
    await room.channel.close()
    question = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = $1"
    name = await owner.fetchval("SELECT current_database()")
    async with asyncio.timeout(WAIT_MAX_S):
        while await owner.fetchval(question, name):  # noqa: ASYNC110 (the server's own list)
            await asyncio.sleep(0.01)
    assert not room.channel.is_working


async def test_a_paced_channel_rings_at_once_and_then_together() -> None:
    """As many rings as tasks, each a commit that waits for all others, or a hint that came late."""
    sent: list[list[str]] = []
    paced = PacedHints(lambda channel, hints: sent.append([channel, *hints]), FREED)
    paced.add([])
    assert sent == []
    paced.add(["a"])
    assert sent == [[FREED, "a"]]
    for hint in ("b", "c", "b"):
        paced.add([hint])
    assert sent == [[FREED, "a"]]
    await until_rested(paced)
    assert sent == [[FREED, "a"], [FREED, "b", "c"]]
    paced.add(["d"])
    assert sent[2:] == [[FREED, "d"]]


async def test_a_paced_channel_keeps_a_bounded_number_of_rings() -> None:
    """A burst of settlements within one rest must not become a burst of notifications."""
    sent: list[list[str]] = []
    paced = PacedHints(lambda _channel, hints: sent.append(hints), FREED)
    paced.add(["first"])
    paced.add(str(number) for number in range(PACED_MAX + 1))
    await until_rested(paced)
    assert [len(hints) for hints in sent] == [1, PACED_MAX]


async def until_rested(paced: PacedHints) -> None:
    async with asyncio.timeout(WAIT_MAX_S):
        while paced.rest is not None:  # noqa: ASYNC110 (a timer of the loop has no signal)
            await asyncio.sleep(PACE_S / 10)
