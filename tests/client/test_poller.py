"""Leases of unknown age: how old a worker takes them to be, and for how long it asks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from duly.client.clock import monotonic
from duly.client.errors import Unreachable
from duly.client.handlers import Handler
from duly.client.leased_tasks import Beat, BeatItem, LeasedTask, LeaseRequest, WorkerOrigin
from duly.client.leases import LeaseBook, Run
from duly.client.poller import Taking, confirmed_for_s
from duly.client.server_clock import ServerClock
from duly.client.worker import Worker
from duly.domain.errors import ConfigurationError
from duly.domain.limits import LEASE_S_MIN, TIMEOUT_S_MIN

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_S = 15.0


async def nothing(ctx: Any) -> None: ...


def lease(name: str, timeout_s: float = 60.0, again: bool = False) -> LeasedTask:
    return LeasedTask(
        id=name,
        fence=1,
        attempt=1,
        max_attempts=5,
        type="a",
        scheduled_for=START,
        started_at=START,
        lease_until=START + timedelta(seconds=min(LEASE_S, timeout_s)),
        timeout_s=timeout_s,
        execution_key="k",
        again=again,
    )


class StubDesk:
    """Hands out these leases, all granted `age_s` ago by the database's clock."""

    worker_id = "w"
    lease_s = LEASE_S

    def __init__(self, tasks: Sequence[LeasedTask], age_s: float = 0.0, deaf_to: str = "") -> None:
        self.tasks = {task.id: task for task in tasks}
        self.age_s = age_s
        self.deaf_to = deaf_to
        self.beats: dict[str, float] = {}

    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        self.asked = request
        return list(self.tasks.values())

    async def heartbeat(self, beats: Sequence[Beat], lease_s: float) -> list[BeatItem]:
        if any(beat.id == self.deaf_to for beat in beats):
            raise Unreachable(url="u", problem="gone")
        self.beats.update({beat.id: lease_s for beat in beats})
        return [
            BeatItem(
                beat.id,
                "held",
                START + timedelta(seconds=min(self.age_s + lease_s, self.tasks[beat.id].timeout_s)),
            )
            for beat in beats
        ]


class StubRunner:
    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def accept(self, task: LeasedTask, granted_at: float) -> Run:
        run = self.runs[task.id] = Run(task, Handler("a", nothing, "async"), granted_at)
        return run


class StubHeart:
    def notice(self, _run: Run) -> None: ...

    def beat_now(self) -> None: ...


def taking_from(worker_api: StubDesk) -> tuple[Taking, dict[str, Run]]:
    runner = StubRunner()
    taking = Taking(
        cast(Any, worker_api),
        ["default"],
        ["high"],
        LeaseBook(),
        cast(Any, runner),
        cast(Any, StubHeart()),
        ServerClock(),
        WorkerOrigin("duly-python/1", "2026.11", 4),
    )
    return taking, runner.runs


async def test_a_lease_that_is_handed_out_again_is_as_old_as_the_database_says() -> None:
    """A server that never saw us hands out old leases to a new request: begun as if they were
    fresh, they run on when the task has long been given to another."""
    worker_api = StubDesk([lease("t", again=True)], age_s=14.0)
    taking, runs = taking_from(worker_api)
    asked_at = monotonic()
    await taking.take(1)
    assert runs["t"].granted_at <= monotonic() - 14.0
    assert runs["t"].deadline >= asked_at + LEASE_S


async def test_an_old_lease_teaches_nothing_about_the_clock() -> None:
    """It was granted before we asked; taken for later, it makes the next ones seem younger."""
    taking, _ = taking_from(StubDesk([lease("t", again=True)], age_s=14.0))
    before = monotonic()
    await taking.take(1)
    assert taking.clock.known is not None
    assert taking.clock.known[0] <= monotonic() - (START.timestamp() + 14.0)
    assert taking.clock.known[0] >= before - (START.timestamp() + 14.0)


async def test_a_fresh_lease_starts_without_another_call() -> None:
    """A heartbeat before each start would cost every task a round trip."""
    worker_api = StubDesk([lease("t")])
    taking, runs = taking_from(worker_api)
    await taking.take(1)
    assert list(runs) == ["t"]
    assert not worker_api.beats


async def test_a_short_task_does_not_shorten_the_leases_of_its_neighbours() -> None:
    """Confirmed for its fraction of a second, they would be stopped as soon as they begin."""
    worker_api = StubDesk([lease("short", timeout_s=0.8), lease("long")])
    taking, runs = taking_from(worker_api)
    await taking.accept_confirmed(list(worker_api.tasks.values()))
    now = monotonic()
    assert worker_api.beats["short"] <= 0.4
    assert worker_api.beats["long"] == LEASE_S
    assert {name: run.reason_to_stop(now) for name, run in runs.items()} == {
        "short": None,
        "long": None,
    }


async def test_a_heartbeat_that_fails_costs_only_the_leases_in_it() -> None:
    """The others are ours as well, and nobody else can run them before they run out."""
    worker_api = StubDesk([lease("short", timeout_s=0.8), lease("long")], deaf_to="short")
    taking, runs = taking_from(worker_api)
    await taking.accept_confirmed(list(worker_api.tasks.values()))
    assert list(runs) == ["long"]


@pytest.mark.parametrize("timeout_s", [TIMEOUT_S_MIN, 0.15, 0.8, 1.0, 29.9, 30.0, 3600.0])
def test_leases_are_confirmed_for_half_of_their_time_at_most_in_few_calls(timeout_s: float) -> None:
    """A limit that cuts the answer short hides the age; one call for each is five hundred."""
    lease_s = confirmed_for_s(LEASE_S, timeout_s)
    assert LEASE_S_MIN <= lease_s <= timeout_s / 2
    assert lease_s in {LEASE_S_MIN, *(LEASE_S / 2**halvings for halvings in range(9))}


async def test_a_worker_says_which_version_asks() -> None:
    """After a bad deployment, the history tells which workers were of it."""
    worker_api = StubDesk([])
    taking, _ = taking_from(worker_api)
    await taking.take(1)
    asked = worker_api.asked
    assert (asked.sdk, asked.version, asked.slots) == ("duly-python/1", "2026.11", 4)


def test_the_version_of_a_program_is_a_word() -> None:
    """It is shown in tables; and what the server would refuse is refused at the start."""
    worker = Worker(version="2026.11-rc1")
    worker.task("a")(nothing)
    assert worker.plan().origin.version == "2026.11-rc1"
    assert worker.plan().origin.sdk.startswith("duly-python/")
    worker.version = "two words"
    with pytest.raises(ConfigurationError, match="cannot be a version"):
        worker.plan()
