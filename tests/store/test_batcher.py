"""Natural batching: nobody waits for a batch to fill, and each caller gets its own answer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duly.domain.errors import DatabaseUnavailable, Overloaded, StatementRefused
from duly.store.batcher import CONFLICT_TRIES_MAX, Batcher

DEADLOCK = "40P01"
BAD_ROW = "23514"


class Server:
    """A stand-in for the database: each batch waits until the test lets it land."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)
        self.arrived = asyncio.Condition()
        self.judge: Callable[[list[int]], Exception | None] = lambda _: None

    async def flush(self, batch: list[int]) -> list[str]:
        self.batches.append(batch)
        async with self.arrived:
            self.arrived.notify_all()
        await self.gate.acquire()
        verdict = self.judge(batch)
        if verdict is not None:
            raise verdict
        return [f"answer to {item}" for item in batch]

    def open(self) -> None:
        """From now on every batch lands at once."""
        for _ in range(1000):
            self.gate.release()

    async def has_seen(self, batches: int) -> None:
        async with asyncio.timeout(5), self.arrived:
            await self.arrived.wait_for(lambda: len(self.batches) >= batches)


def refusal(code: str) -> StatementRefused:
    return StatementRefused(problem="no", code=code)


def batcher_on(server: Server, **bounds: Any) -> Batcher[int, str]:
    return Batcher("test", server.flush, **({"batch_size_max": 100, "waiting_max": 100} | bounds))


def callers(batcher: Batcher[int, str], *items: int) -> list["asyncio.Task[str]"]:
    return [asyncio.create_task(batcher.submit(item)) for item in items]


async def test_a_lone_caller_takes_off_at_once() -> None:
    """A batcher that waits for company adds its patience to every quiet submit."""
    server = Server()
    server.open()
    assert await batcher_on(server).submit(7) == "answer to 7"
    assert server.batches == [[7]]


async def test_what_arrives_in_flight_is_the_next_batch() -> None:
    """One statement per caller would cost a commit each."""
    server = Server()
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    rest = callers(batcher, 1, 2, 3)
    server.open()
    answers = await asyncio.gather(*first, *rest)
    assert server.batches == [[0], [1, 2, 3]]
    assert answers == [f"answer to {item}" for item in range(4)]


async def test_nobody_is_answered_before_the_batch_has_landed() -> None:
    """An answer before the commit is a promise that a crash breaks."""
    server = Server()
    (caller,) = callers(batcher_on(server), 0)
    await server.has_seen(1)
    assert not caller.done()
    server.open()
    assert await caller == "answer to 0"


async def test_a_batch_holds_at_most_its_maximum() -> None:
    """A batch without a bound is a statement without a bound."""
    server = Server()
    batcher = batcher_on(server, batch_size_max=3)
    first = callers(batcher, 0)
    await server.has_seen(1)
    rest = callers(batcher, *range(1, 8))
    await asyncio.sleep(0)
    server.open()
    await asyncio.gather(*first, *rest)
    assert server.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]


async def test_as_many_flights_as_allowed_and_no_more() -> None:
    """Too few leave the server idle; too many take every connection."""
    server = Server()
    batcher = batcher_on(server, batches_max=2)
    waiting = []
    for item in range(3):
        waiting += callers(batcher, item)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await server.has_seen(2)
    assert server.batches == [[0], [1]]
    server.open()
    await asyncio.gather(*waiting)
    assert server.batches == [[0], [1], [2]]


async def test_two_items_of_one_key_never_share_a_batch() -> None:
    """Inside one statement neither sees the other, and both would win."""
    server = Server()
    batcher = batcher_on(server, key=lambda item: item % 10)
    first = callers(batcher, 0)
    await server.has_seen(1)
    rest = callers(batcher, 1, 11, 2, 21, 12)
    await asyncio.sleep(0)
    server.open()
    answers = await asyncio.gather(*first, *rest)
    assert server.batches == [[0], [1, 2], [11, 12], [21]]
    assert answers == [f"answer to {item}" for item in (0, 1, 11, 2, 21, 12)]


@pytest.mark.parametrize("bad", [0, 3, 7])
async def test_one_bad_item_fails_alone(bad: int) -> None:
    """A batch is made of strangers: one caller's nonsense must not fail the rest."""
    server = Server()
    server.judge = lambda batch: refusal(BAD_ROW) if bad in batch else None
    batcher = batcher_on(server)
    first = callers(batcher, 100)
    await server.has_seen(1)
    rest = callers(batcher, *range(8))
    await asyncio.sleep(0)
    server.open()
    answers = await asyncio.gather(*first, *rest, return_exceptions=True)
    failed = [number for number, answer in enumerate(answers[1:]) if isinstance(answer, Exception)]
    assert failed == [bad]
    assert isinstance(answers[bad + 1], StatementRefused)
    assert sum([bad] == batch for batch in server.batches) == 1


async def test_a_deadlock_is_tried_again_until_it_passes() -> None:
    """The server rolled it back for somebody else's sake; nothing is wrong with the item."""
    server = Server()
    verdicts = [refusal(DEADLOCK), refusal("40001")]
    server.judge = lambda _: verdicts.pop() if verdicts else None
    server.open()
    assert await batcher_on(server).submit(7) == "answer to 7"
    assert server.batches == [[7]] * 3


async def test_a_deadlock_without_end_is_an_answer() -> None:
    """Every retry has a maximum."""
    server = Server()
    server.judge = lambda _: refusal(DEADLOCK)
    server.open()
    with pytest.raises(StatementRefused):
        await batcher_on(server).submit(7)
    assert len(server.batches) == CONFLICT_TRIES_MAX


async def test_a_batch_that_met_a_deadlock_lands_in_halves() -> None:
    """The bad moment of one batch must not be an error for a hundred callers."""
    server = Server()
    server.judge = lambda batch: refusal(DEADLOCK) if len(batch) > 2 else None
    batcher = batcher_on(server)
    first = callers(batcher, 100)
    await server.has_seen(1)
    rest = callers(batcher, *range(8))
    await asyncio.sleep(0)
    server.open()
    answers = await asyncio.gather(*first, *rest)
    assert answers[1:] == [f"answer to {item}" for item in range(8)]


async def test_a_lost_connection_is_told_to_everybody_and_nothing_is_sent_again() -> None:
    """The outcome is unknown: to send it again could store it twice."""
    server = Server()
    server.judge = lambda _: DatabaseUnavailable(address="x", problem="gone")
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    rest = callers(batcher, 1, 2)
    await asyncio.sleep(0)
    server.open()
    answers = await asyncio.gather(*first, *rest, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DatabaseUnavailable] * 3
    assert server.batches == [[0], [1, 2]]


async def test_a_caller_cancelled_while_waiting_is_left_out() -> None:
    """Its client has gone: what it asked for must not happen."""
    server = Server()
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    gone, stays = callers(batcher, 1, 2)
    await asyncio.sleep(0)
    gone.cancel()
    server.open()
    answers = await asyncio.gather(*first, gone, stays, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2] == "answer to 2"
    assert server.batches == [[0], [2]]


async def test_a_caller_cancelled_in_flight_takes_nobody_with_it() -> None:
    """Cancelling the statement would roll back its neighbours."""
    server = Server()
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    gone, stays = callers(batcher, 1, 2)
    await asyncio.sleep(0)
    server.gate.release()
    await server.has_seen(2)
    gone.cancel()
    await asyncio.wait([gone])
    server.open()
    assert await stays == "answer to 2"
    assert gone.cancelled()
    assert [await task for task in first] == ["answer to 0"]
    assert server.batches == [[0], [1, 2]]


async def test_when_all_who_waited_have_gone_the_next_caller_still_flies() -> None:
    """A batcher stuck on an empty batch answers nobody any more."""
    server = Server()
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    (gone,) = callers(batcher, 1)
    await asyncio.sleep(0)
    gone.cancel()
    server.open()
    await asyncio.gather(*first)
    assert await batcher.submit(2) == "answer to 2"
    assert server.batches == [[0], [2]]


async def test_one_past_the_bound_is_refused_at_once() -> None:
    """A queue without a bound is memory without a bound; at the bound it still serves."""
    server = Server()
    batcher = batcher_on(server, waiting_max=3)
    first = callers(batcher, 0)
    await server.has_seen(1)
    waiting = callers(batcher, 1, 2, 3)
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="test has 3 requests waiting"):
        await batcher.submit(4)
    server.open()
    await asyncio.gather(*first, *waiting)
    assert await batcher.submit(5) == "answer to 5"


async def test_close_lands_everything_that_was_asked() -> None:
    """A polite shutdown answers whoever was let in."""
    server = Server()
    batcher = batcher_on(server, batch_size_max=2)
    waiting = callers(batcher, *range(7))
    await server.has_seen(1)
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    assert not closing.done()
    server.open()
    await closing
    assert all(task.done() for task in waiting) or await asyncio.gather(*waiting)
    assert sorted(item for batch in server.batches for item in batch) == list(range(7))


async def test_the_items_of_one_caller_share_a_batch_with_others() -> None:
    """A statement for each call of a worker would cost a commit each."""
    server = Server()
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    groups = [asyncio.create_task(batcher.submit_all(items)) for items in ([1, 2], [3], [4, 5])]
    await asyncio.sleep(0)
    server.open()
    answers = await asyncio.gather(*groups)
    assert [await task for task in first] == ["answer to 0"]
    assert server.batches == [[0], [1, 2, 3, 4, 5]]
    assert answers == [[f"answer to {item}" for item in items] for items in ([1, 2], [3], [4, 5])]


async def test_a_group_that_does_not_fit_waits_for_the_next_batch() -> None:
    """Cut in two, half of a caller's items could fail after the other half was committed."""
    server = Server()
    batcher = batcher_on(server, batch_size_max=3)
    first = callers(batcher, 0)
    await server.has_seen(1)
    groups = [asyncio.create_task(batcher.submit_all(items)) for items in ([1, 2], [3, 4], [5])]
    await asyncio.sleep(0)
    server.open()
    await asyncio.gather(*first, *groups)
    assert server.batches == [[0], [1, 2], [3, 4, 5]]


async def test_more_than_a_batch_of_one_caller_goes_in_several() -> None:
    """Refused or sent as one, a long call breaks its caller or the bound of a statement."""
    server = Server()
    server.open()
    batcher = batcher_on(server, batch_size_max=3)
    assert await batcher.submit_all(range(7)) == [f"answer to {item}" for item in range(7)]
    assert sorted(map(len, server.batches)) == [1, 3, 3]
    assert await batcher.submit_all([]) == []


async def test_a_group_with_a_bad_item_fails_alone() -> None:
    """One caller's nonsense must not fail the calls beside it."""
    server = Server()
    server.judge = lambda batch: refusal(BAD_ROW) if 3 in batch else None
    batcher = batcher_on(server)
    first = callers(batcher, 0)
    await server.has_seen(1)
    groups = [asyncio.create_task(batcher.submit_all(items)) for items in ([1, 2], [3, 4], [5])]
    await asyncio.sleep(0)
    server.open()
    answers = await asyncio.gather(*first, *groups, return_exceptions=True)
    assert [type(answer) for answer in answers] == [str, list, StatementRefused, list]


async def test_groups_that_share_a_key_never_share_a_batch() -> None:
    """Inside one statement neither sees the other, and both would win."""
    server = Server()
    batcher = batcher_on(server, key=lambda item: item % 10)
    first = callers(batcher, 0)
    await server.has_seen(1)
    groups = [asyncio.create_task(batcher.submit_all(items)) for items in ([1, 2], [12, 3], [4])]
    await asyncio.sleep(0)
    server.open()
    await asyncio.gather(*first, *groups)
    assert server.batches == [[0], [1, 2, 4], [12, 3]]


async def test_the_bound_counts_items_and_not_callers() -> None:
    """A few callers with long calls would fill the memory."""
    server = Server()
    batcher = batcher_on(server, waiting_max=4)
    first = callers(batcher, 0)
    await server.has_seen(1)
    waiting = asyncio.create_task(batcher.submit_all([1, 2, 3]))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await batcher.submit_all([4, 5])
    last = callers(batcher, 4)
    await asyncio.sleep(0)
    server.open()
    await asyncio.gather(*first, waiting, *last)
    assert batcher.waiting_count == 0
    assert batcher.is_idle


async def test_a_flush_that_miscounts_leaves_nobody_waiting() -> None:
    """Our own mistake must be seen as one, not as a caller that never returns."""

    async def miscount(batch: list[int]) -> list[str]:
        return ["one too many"] * (len(batch) + 1)

    batcher: Batcher[int, str] = Batcher("test", miscount, batch_size_max=9, waiting_max=9)
    async with asyncio.timeout(5):
        with pytest.raises(AssertionError):
            await batcher.submit(1)
