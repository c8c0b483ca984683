"""A submit rate is the tenant's for the installation, however many processes serve the API."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from duly.api.problems import ApiProblem
from duly.api.rate_limit import TOKEN_LEASE_S, Throttle
from duly.environment import Environment
from duly.store.ownership import Node, keep_assignments
from duly.store.tenants import TenantLimits, create_tenant, update_tenant
from duly.testing.clock import ManualClock
from tests.pressure.counting import CountingDatabase

BURST = 10
# So slow that nothing comes back while a test runs.
SLOW = 0.001


class Processes:
    """Two that serve the API on one database."""

    def __init__(self, database: CountingDatabase, tenant: int) -> None:
        self.database = database
        self.tenant = tenant
        self.clock = ManualClock()
        environment = Environment(clock=self.clock)
        self.throttles = [Throttle(database, environment) for _ in range(2)]

    async def limit(self, **limits: float) -> None:
        await update_tenant(self.database, self.tenant, TenantLimits(**limits))  # type: ignore[arg-type]
        for throttle in self.throttles:
            throttle.tenants.forget(self.tenant)

    async def admitted(self, calls: list[int]) -> int:
        """How many of these calls at once, each to the process it names, were let in."""
        answers = await asyncio.gather(
            *(self.throttles[process].admit(self.tenant, 1) for process in calls),
            return_exceptions=True,
        )
        assert all(isinstance(answer, dict | ApiProblem) for answer in answers), answers
        return sum(isinstance(answer, dict) for answer in answers)

    async def statements(self, calls: list[int]) -> int:
        before = self.database.asked.total()
        await self.admitted(calls)
        return self.database.asked.total() - before


@pytest.fixture
async def processes(engine_url: str) -> AsyncIterator[Processes]:
    database = await CountingDatabase.open(engine_url, 4)
    tenant = await create_tenant(database, "acme")
    assert tenant is not None
    for number in (1, 2):
        await keep_assignments(database, Node(UUID(int=number), "n", "0", ("api",)), {}, 60.0, 10.0)
    assert isinstance(database, CountingDatabase)
    yield Processes(database, tenant.id)
    await database.close()


async def test_calls_to_one_process_of_two_get_the_whole_rate(processes: Processes) -> None:
    """Each process had half of it: a caller behind one balancer never got what it was promised."""
    await processes.limit(submit_rate=SLOW, submit_burst=BURST)
    assert await processes.admitted([0] * (2 * BURST)) == BURST


async def test_calls_to_both_processes_get_no_more_than_the_rate(processes: Processes) -> None:
    """A rate for each process is no rate."""
    await processes.limit(submit_rate=SLOW, submit_burst=BURST)
    assert await processes.admitted([0, 1] * (2 * BURST)) == BURST


async def test_a_lone_caller_pays_no_statement_for_each_call(processes: Processes) -> None:
    """Beside the commit of a task, another round trip would be a third of its time."""
    await processes.limit(submit_rate=1000.0)
    asked = 0
    for _ in range(90):
        asked += await processes.statements([0])
    # What the tenant's limits are, and one slice.
    assert asked <= 3


async def test_a_flood_past_the_rate_costs_no_statements(processes: Processes) -> None:
    """A refused submit must not load the database."""
    await processes.limit(submit_rate=SLOW, submit_burst=BURST)
    await processes.admitted([0] * (2 * BURST))
    assert await processes.statements([0] * 500) == 0


async def test_many_calls_at_once_are_one_lease(processes: Processes) -> None:
    """One by one they would wait for each other's round trips."""
    await processes.limit(submit_rate=SLOW, submit_burst=1000.0)
    await processes.admitted([0])
    assert await processes.statements([0] * 200) <= 2


async def test_what_is_leased_and_not_used_is_not_saved_up(processes: Processes) -> None:
    """Else a process could use, much later, what others were refused for."""
    await processes.limit(submit_rate=1000.0)
    await processes.admitted([0])
    tokens = processes.throttles[0].submits.tokens[processes.tenant]
    assert tokens.held(processes.clock.monotonic()) == pytest.approx(99.0, abs=0.1)
    processes.clock.advance(TOKEN_LEASE_S)
    assert tokens.held(processes.clock.monotonic()) == 0.0


async def test_a_refusal_says_when_to_come_again(processes: Processes) -> None:
    """Within a second a caller that waits as it was told is let in."""
    await processes.limit(submit_rate=0.5, submit_burst=1.0)
    await processes.admitted([0])
    with pytest.raises(ApiProblem, match=r"0\.5 tasks a second") as refused:
        await processes.throttles[0].admit(processes.tenant, 1)
    headers = refused.value.headers
    assert (headers["retry-after"], headers["ratelimit-limit"]) == ("2", "1")
    assert headers["ratelimit-remaining"] == "0"


async def test_a_rate_that_is_changed_keeps_what_is_left(processes: Processes) -> None:
    """Each edit of a tenant would be a burst for it; one that is removed lets all in at once."""
    await processes.limit(submit_rate=SLOW, submit_burst=BURST)
    assert await processes.admitted([0] * BURST) == BURST
    await processes.limit(submit_rate=SLOW * 2, submit_burst=BURST * 2)
    assert await processes.admitted([1] * BURST) == 0
    await processes.limit()
    assert await processes.admitted([0, 1] * BURST) == 2 * BURST
