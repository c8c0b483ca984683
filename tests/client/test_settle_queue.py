"""Taking and settling against a server that answers as the test says."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from duly.client import settle_queue as settling_module
from duly.client.clock import monotonic
from duly.client.errors import Invalid, Unreachable
from duly.client.handlers import Handler
from duly.client.leased_tasks import Beat, LeasedTask, LeaseRequest, SettledItem, Settlement
from duly.client.leases import LeaseBook, Run
from duly.client.outcomes import DONE, HandlerOutcome, completed
from duly.client.poller import Taking
from duly.client.server_clock import ServerClock
from duly.client.settle_queue import Settling

START = datetime(2026, 1, 1, tzinfo=UTC)
WAIT_S = 5.0


async def nothing(ctx: Any) -> None: ...


def task(number: int, lease_s: float = 15.0) -> LeasedTask:
    return LeasedTask(
        id=f"t{number}",
        fence=1,
        attempt=1,
        max_attempts=5,
        type="a",
        scheduled_for=START,
        started_at=START,
        lease_until=START + timedelta(seconds=lease_s),
        timeout_s=60.0,
        execution_key="k",
    )


def ended(number: int, verdict: HandlerOutcome = DONE, lease_s: float = 15.0) -> Run:
    run = Run(task(number, lease_s), Handler("a", nothing, "async"), monotonic())
    run.verdict = verdict
    run.has_ended = True
    return run


class StubDesk:
    """Every settlement is `settled`, unless `answer` says otherwise."""

    lease_s = 15.0
    worker_id = "w"

    def __init__(self, answer: Callable[[list[str]], Awaitable[None]] | None = None) -> None:
        self.answer = answer
        self.calls: list[list[str]] = []
        self.told: list[Settlement] = []
        self.leases: list[LeasedTask] = []

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettledItem]:
        ids = [each.id for each in settlements]
        self.calls.append(ids)
        if self.answer is not None:
            await self.answer(ids)
        self.told += settlements
        return [SettledItem(each, "settled") for each in ids]

    async def heartbeat(self, beats: Sequence[Beat]) -> None: ...

    async def lease(self, _request: LeaseRequest) -> list[LeasedTask]:
        return self.leases


def settling_for(worker_api: StubDesk) -> Settling:
    return Settling(cast(Any, worker_api), LeaseBook())


async def settle_all(settling: Settling, *runs: Run) -> None:
    for run in runs:
        settling.book.add(run)
        settling.add(run)
    async with asyncio.timeout(WAIT_S):
        while settling.flight is not None:
            await asyncio.wait({settling.flight})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_module, "PAUSE_FIRST_S", 0.0)
    monkeypatch.setattr(settling_module, "PAUSE_MAX_S", 0.0)


async def test_what_ends_while_a_call_is_on_its_way_goes_with_the_next() -> None:
    """A call for each would be slower by far, and a lone end must not wait for company."""
    is_answered = asyncio.Event()

    async def wait(_ids: list[str]) -> None:
        await is_answered.wait()

    worker_api = StubDesk(wait)
    settling = settling_for(worker_api)
    settling.add(ended(1))
    await asyncio.sleep(0)
    assert worker_api.calls == [["t1"]]
    for number in (2, 3, 4):
        settling.add(ended(number))
    await asyncio.sleep(0)
    is_answered.set()
    await settle_all(settling)
    assert worker_api.calls == [["t1"], ["t2", "t3", "t4"]]


@pytest.mark.usefixtures("impatient")
async def test_an_end_is_told_again_until_it_is_heard() -> None:
    """A server that restarts must not cost every attempt that ended meanwhile."""
    failures = iter([True, True, False])

    async def fail_twice(_ids: list[str]) -> None:
        if next(failures):
            raise Unreachable(url="u", problem="gone")

    worker_api = StubDesk(fail_twice)
    settling = settling_for(worker_api)
    settling.pause_s = 0.0
    await settle_all(settling, ended(1), ended(2))
    assert worker_api.calls == [["t1", "t2"]] * 3
    assert not settling.book.held


@pytest.mark.usefixtures("impatient")
async def test_an_end_whose_lease_is_long_over_is_given_up() -> None:
    """Kept for ever, the ends of a lost server would fill the memory."""

    async def fail(_ids: list[str]) -> None:
        raise Unreachable(url="u", problem="gone")

    worker_api = StubDesk(fail)
    settling = settling_for(worker_api)
    settling.lease_s = 0.0
    settling.pause_s = 0.0
    await settle_all(settling, ended(1, lease_s=0.0))
    assert len(worker_api.calls) == 1
    assert not settling.book.held


async def test_one_refused_end_is_found_and_does_not_hold_up_the_others() -> None:
    """Else one strange result keeps the ends of five hundred neighbours from being told."""

    async def refuse_third(ids: list[str]) -> None:
        if (
            "t3" in ids
            and not any(each.id == "t3" for each in worker_api.told)
            and worker_api.is_strict
        ):
            if len(ids) == 1:
                worker_api.is_strict = False
            raise Invalid(422, {"code": "invalid", "detail": "no"}, None)

    class Strict(StubDesk):
        is_strict = True

    worker_api = Strict(refuse_third)
    settling = settling_for(worker_api)
    await settle_all(settling, *(ended(number, completed(number)) for number in range(1, 6)))
    outcomes = {each.id: each.outcome for each in worker_api.told}
    assert outcomes.pop("t3") == "rejected"
    assert set(outcomes.values()) == {"completed"}
    assert len(outcomes) == 4
    assert not settling.book.held


async def test_a_lease_that_is_known_or_just_ended_is_not_accepted_again() -> None:
    """A server that restarted, or a repeated request, names leases that we have or had."""
    worker_api, book = StubDesk(), LeaseBook()
    held, gone = ended(1), ended(2)
    book.add(held)
    book.add(gone)
    book.remove(gone)
    worker_api.leases = [task(1), task(2), task(3)]
    nobody: Any = None
    taking = Taking(
        cast(Any, worker_api), ["default"], ["high"], book, nobody, nobody, ServerClock()
    )
    request = LeaseRequest(
        worker_id="w",
        pools=["default"],
        bands=["high"],
        max=10,
        wait_s=0,
        lease_s=15,
        request_id="r",
    )
    assert [each.id for each in await taking.ask(request)] == ["t3"]
