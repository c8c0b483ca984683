"""The steps of one attempt: what each makes of a stop, a failure, a cancellation at its await."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from duly.domain.errors import DatabaseUnavailable, DulyError, StatementRefused
from duly.domain.states import Outcome
from duly.domain.task import Policy
from duly.environment import Environment
from duly.execution import attempt as module
from duly.execution.attempt import (
    DONE,
    Attempt,
    AttemptRecorder,
    AttemptResult,
    AttemptRunner,
    finish_although_cancelled,
)
from duly.execution.held_leases import LEASE_S, HeldLease, StopReason
from duly.store.finish import SettleAnswer, Settlement, SettleStatus
from duly.store.lease import Lease
from duly.store.policies import encode_policy
from duly.store.stats import StatsBook
from duly.telemetry import Metrics
from tests.broker.stage import until

PATIENCE_S = 30.0
TASK, HOLDER = UUID(int=5), UUID(int=9)
INSTANT = datetime(2026, 1, 1, tzinfo=UTC)
AWAY = DatabaseUnavailable(address="here", problem="away")


def lease(timeout_s: float = 60.0) -> Lease:
    return Lease(
        id=TASK,
        tenant=1,
        fence=3,
        attempt=1,
        started_at=INSTANT,
        lease_until=INSTANT + timedelta(seconds=LEASE_S),
        progress=None,
        run_at=INSTANT,
        type="t",
        payload=None,
        policy_text=encode_policy(Policy(timeout_s=timeout_s)),
        url=None,
        given_execution_key=None,
    )


class Database:
    """Where both a settlement and a hand-over wait until the test lets them go, or fail first."""

    def __init__(self, *errors: DulyError) -> None:
        self.errors = list(errors)
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.asked = 0
        self.settled: list[Settlement] = []
        self.handed_over = 0

    async def ask(self) -> None:
        self.asked += 1
        self.is_asked.set()
        if self.errors:
            raise self.errors.pop(0)
        await self.may_answer.wait()

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        await self.ask()
        self.settled += settlements
        return [SettleAnswer(SettleStatus.SETTLED) for _ in settlements]

    async def fetch(self, *_arguments: object) -> list[dict[str, Any]]:
        await self.ask()
        self.handed_over += 1
        return [{"id": TASK}]


class Stage:
    """One attempt on its way."""

    def __init__(
        self, database: Database, handler: Callable[[], Awaitable[AttemptResult]], given: Lease
    ) -> None:
        environment = Environment()
        self.metrics = Metrics()
        self.recorder = AttemptRecorder(
            cast(Any, database), self.metrics, StatsBook(environment), HOLDER
        )
        self.runner = AttemptRunner(cast(Any, database), environment, self.recorder)
        deadline = asyncio.get_running_loop().time() + LEASE_S
        self.held = HeldLease(
            given, deadline, lambda held: self.runner.run(Attempt(held, handler()))
        )

    @property
    def counted(self) -> int:
        return sum(self.metrics.run_time.counts)


def begin(
    database: Database,
    handler: Callable[[], Awaitable[AttemptResult]],
    timeout_s: float = 60.0,
) -> Stage:
    return Stage(database, handler, lease(timeout_s))


async def completes() -> AttemptResult:
    return DONE


async def is_taken_over() -> AttemptResult:
    return AttemptResult(is_accepted_async=True)


async def hangs() -> AttemptResult:
    await asyncio.Event().wait()
    return DONE


async def raises() -> AttemptResult:
    raise ValueError("no such invoice")


async def ends(stage: Stage) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([stage.held.task])


@pytest.mark.parametrize(
    ("handler", "timeout_s", "outcome", "error_kind"),
    [
        (completes, 60.0, Outcome.COMPLETED, ""),
        (raises, 60.0, Outcome.FAILED, "ValueError"),
        (hangs, 0.01, Outcome.FAILED, "timeout"),
    ],
)
async def test_what_a_handler_does_is_settled(
    handler: Callable[[], Awaitable[AttemptResult]],
    timeout_s: float,
    outcome: Outcome,
    error_kind: str,
) -> None:
    """An end that is not settled is an attempt lost, and charged."""
    database = Database()
    database.may_answer.set()
    stage = begin(database, handler, timeout_s)
    await ends(stage)
    (settlement,) = database.settled
    assert (settlement.outcome, settlement.error_kind) == (outcome, error_kind)
    assert (settlement.id, settlement.fence, settlement.holder) == (TASK, 3, HOLDER)
    assert stage.counted == 1


@pytest.mark.parametrize("has_begun", [True, False])
@pytest.mark.parametrize(
    ("reason", "outcomes"),
    [
        (StopReason.LOST, []),
        (StopReason.CANCELLED, [Outcome.CANCELLED]),
        (StopReason.SHUTDOWN, [Outcome.RELEASED]),
    ],
)
async def test_why_a_handler_was_stopped_decides_its_end(
    reason: StopReason, outcomes: list[Outcome], has_begun: bool
) -> None:
    """A shutdown that is charged, a cancel that is tried again, a lost lease that is settled."""
    database = Database()
    database.may_answer.set()
    stage = begin(database, hangs)
    if has_begun:
        await until(lambda: stage.held.has_begun)
    stage.held.stop(reason)
    await ends(stage)
    assert [settlement.outcome for settlement in database.settled] == outcomes


async def test_a_lost_lease_stays_lost_whatever_is_said_later() -> None:
    """Settled as cancelled after it was lost, it would speak for another holder's attempt."""
    database = Database()
    stage = begin(database, hangs)
    await until(lambda: stage.held.has_begun)
    stage.held.stop(StopReason.LOST)
    stage.held.stop(StopReason.SHUTDOWN)
    await ends(stage)
    assert database.asked == 0


@pytest.mark.parametrize("reason", list(StopReason))
@pytest.mark.parametrize("handler", [completes, is_taken_over])
async def test_no_stop_interrupts_the_recording_of_an_end(
    handler: Callable[[], Awaitable[AttemptResult]], reason: StopReason
) -> None:
    """The effect has happened: unrecorded, it happens once more."""
    database = Database()
    stage = begin(database, handler)
    await database.is_asked.wait()
    stage.held.stop(reason)
    database.may_answer.set()
    await ends(stage)
    assert stage.held.task.exception() is None
    assert len(database.settled) + database.handed_over == 1


@pytest.mark.parametrize("handler", [completes, is_taken_over])
@pytest.mark.parametrize("times", [1, 2])
async def test_an_attempt_cancelled_while_it_records_its_end_finishes_first(
    handler: Callable[[], Awaitable[AttemptResult]], times: int
) -> None:
    """The loop ends every task when the process goes: an end must not be lost with it."""
    database = Database()
    stage = begin(database, handler)
    await database.is_asked.wait()
    for _ in range(times):
        stage.held.task.cancel()
        await asyncio.sleep(0)
    assert not stage.held.task.done()
    database.may_answer.set()
    await ends(stage)
    assert stage.held.task.cancelled()
    assert len(database.settled) + database.handed_over == 1
    assert stage.counted == len(database.settled)


async def test_an_attempt_cancelled_between_two_tries_finishes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause before the next try is an await like any other."""
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.05)
    database = Database(AWAY)
    database.may_answer.set()
    stage = begin(database, completes)
    await database.is_asked.wait()
    stage.held.task.cancel()
    await ends(stage)
    assert [settlement.outcome for settlement in database.settled] == [Outcome.COMPLETED]


async def test_a_handler_cancelled_from_outside_is_released() -> None:
    """A cancellation from outside is no failure of the task."""
    database = Database()
    database.may_answer.set()
    stage = begin(database, hangs)
    await until(lambda: stage.held.has_begun)
    stage.held.task.cancel()
    await ends(stage)
    assert [settlement.outcome for settlement in database.settled] == [Outcome.RELEASED]


async def test_settling_is_tried_again_while_the_database_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tried once, a moment without a database charges an attempt that completed."""
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.001)
    database = Database(AWAY, AWAY, AWAY)
    database.may_answer.set()
    stage = begin(database, completes)
    await ends(stage)
    assert len(database.settled) == 1
    assert database.asked == 4


async def test_settling_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """For ever, it would keep its slot: the lease ran out, and another attempt may be under way."""
    monkeypatch.setattr(module, "RETRY_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "SETTLE_FOR_S", 0.05)
    database = Database(*[AWAY] * 100_000)
    stage = begin(database, completes)
    await ends(stage)
    assert stage.held.task.exception() is None
    assert database.settled == []


async def test_a_refused_settlement_is_not_sent_again() -> None:
    """What the database refuses once it refuses for ever."""
    database = Database(StatementRefused(problem="no", code="22P05"))
    stage = begin(database, completes)
    await ends(stage)
    assert database.asked == 1
    assert stage.held.task.exception() is None


async def test_a_stopping_process_settles_once_and_waits_for_no_database() -> None:
    """A database that is away at a stop would hold up the stop for its whole limit."""
    database = Database(AWAY, AWAY)
    stage = begin(database, completes)
    await database.is_asked.wait()
    stage.recorder.stopping.set()
    await ends(stage)
    assert database.asked == 2


async def test_work_that_fails_while_it_is_finished_says_so() -> None:
    """A cancellation must not hide a mistake of ours."""

    async def fails() -> None:
        await asyncio.sleep(0)
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        await finish_although_cancelled(fails())
