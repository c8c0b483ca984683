"""Submits that share a call: who is told what when the server refuses the batch."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from duly.client.errors import ApiError, Conflict, Invalid, error_of
from duly.client.request import check_key, encode_task
from duly.client.submits import PendingSubmit, SubmitQueue

WAIT_S = 5.0


class StubConnection:
    """Refuses every call that carries `bad` with this problem, and stores all others."""

    def __init__(self, status: int, code: str, bad: int, *, points: bool = False) -> None:
        self.status = status
        self.code = code
        self.bad = bad
        self.points = points
        self.sent: list[list[int]] = []

    async def request(self, _method: str, _path: str, body: bytes, **_: Any) -> bytes:
        asked = msgspec.json.decode(body)
        numbers: list[int] = asked["tasks"] if isinstance(asked, dict) else [asked]
        self.sent.append(numbers)
        if self.bad in numbers:
            pointer = f"/tasks/{numbers.index(self.bad)}/idempotency_key"
            errors = [{"pointer": pointer, "detail": "no"}] if self.points else []
            problem = {"code": self.code, "detail": "no", "errors": errors}
            raise error_of(self.status, problem, None)
        return msgspec.json.encode({"items": numbers} if isinstance(asked, dict) else numbers[0])


async def run_batch(connection: StubConnection, size: int) -> list[bytes | BaseException]:
    queue = SubmitQueue(cast(Any, connection))
    loop = asyncio.get_running_loop()
    batch = [
        PendingSubmit(str(number).encode(), "k", loop.create_future()) for number in range(size)
    ]
    async with asyncio.timeout(WAIT_S):
        await queue.run_batch(batch)
        return await asyncio.gather(*(entry.answer for entry in batch), return_exceptions=True)


async def test_a_conflict_that_may_come_after_the_commit_sends_no_task_again() -> None:
    """Each part of the batch is sent under a new key: what was stored already is stored twice."""
    connection = StubConnection(409, "conflict", bad=2)
    answers = await run_batch(connection, 4)
    assert connection.sent == [[0, 1, 2, 3]]
    assert [type(answer) for answer in answers] == [Conflict] * 4


@pytest.mark.parametrize(
    ("status", "code", "points"),
    [
        (409, "idempotency_mismatch", False),
        (409, "idempotency_mismatch", True),
        (409, "conflict", True),
        (422, "invalid", False),
        (422, "invalid", True),
    ],
)
async def test_a_refusal_that_stored_nothing_reaches_only_the_task_it_is_about(
    status: int, code: str, points: bool
) -> None:
    """One caller's mistake must not fail the submits of those who happened to share its call."""
    connection = StubConnection(status, code, bad=2, points=points)
    answers = await run_batch(connection, 4)
    assert answers[:2] + answers[3:] == [b"0", b"1", b"3"]
    assert isinstance(answers[2], ApiError)
    assert isinstance(answers[2], Invalid) == (status == 422)


def test_a_key_that_a_header_cannot_carry_is_refused_before_it_is_sent() -> None:
    """Encoded in two ways, one key makes two tasks."""
    for key in ("schüssel", "a b", "", "k" * 256):
        with pytest.raises(Invalid, match="idempotency_key"):
            encode_task("a.b", None, {"idempotency_key": key})
        with pytest.raises(Invalid, match="idempotency_key"):
            check_key(key)
    assert b"order:1/2" in encode_task("a.b", None, {"idempotency_key": "order:1/2"})


async def test_what_is_put_in_a_row_goes_in_one_call() -> None:
    """The first of many alone, and the rest behind it, would be two calls instead of one."""
    connection = StubConnection(500, "none", bad=-1)
    queue = SubmitQueue(cast(Any, connection))
    async with asyncio.timeout(WAIT_S):
        answers = [await queue.put(str(number).encode(), None) for number in range(5)]
        assert await asyncio.gather(*answers) == [b"0", b"1", b"2", b"3", b"4"]
    assert connection.sent == [[0, 1, 2, 3, 4]]


async def test_what_was_put_just_before_the_end_is_sent() -> None:
    """Its caller may be gone already; what it asked for is not."""
    connection = StubConnection(500, "none", bad=-1)
    queue = SubmitQueue(cast(Any, connection))
    async with asyncio.timeout(WAIT_S):
        answer = await queue.put(b"7", None)
        await queue.close()
    assert answer.result() == b"7"


async def test_what_is_put_while_the_last_call_lands_is_sent_before_the_end() -> None:
    """Sent after the end it would open the connection once more; and who waits for it in another
    thread would wait for ever, because nothing runs there any longer."""
    queue = SubmitQueue(cast(Any, StubConnection(500, "none", bad=-1)))
    loop = asyncio.get_running_loop()
    second: asyncio.Future[bytes] = loop.create_future()

    async def put_another() -> None:
        (await queue.put(b"2", None)).add_done_callback(
            lambda done: second.set_result(done.result())
        )

    async with asyncio.timeout(WAIT_S):
        await queue.put(b"1", None)
        queue.start_batches()
        (flight,) = queue.flights
        flight.add_done_callback(lambda _: putting.append(loop.create_task(put_another())))
        putting: list[asyncio.Task[None]] = []
        await queue.close()
        assert not queue.waiting
        assert await second == b"2"
