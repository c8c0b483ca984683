"""What an executor learns from its deliveries becomes rows that every scheduler reads."""

import pytest

from duly.domain.breaker import ATTEMPTS_MIN, OPEN_S, WINDOW_S
from duly.domain.errors import DatabaseUnavailable
from duly.environment import Environment
from duly.execution import breakers as module
from duly.execution.breakers import IDLE_S, QUIET_S, RAMP_ATTEMPTS_MIN, Breakers
from duly.store.breakers import list_breakers
from duly.store.database import Database
from duly.store.tenants import create_tenant
from duly.testing.clock import ManualClock

HOST = "example.com"


@pytest.fixture
async def tenant(database: Database) -> int:
    made = await create_tenant(database, "acme")
    assert made is not None
    return made.id


@pytest.fixture
def breakers(database: Database, environment: Environment) -> Breakers:
    return Breakers(database, environment)


async def phases(database: Database, tenant: int) -> list[tuple[str, bool, bool]]:
    """Host, is it open, is it in its ramp."""
    rows, _ = await list_breakers(database, tenant, None, 50)
    return [(row.name, row.now < row.open_until, row.ramp_at is not None) for row in rows]


async def let_time_pass(database: Database) -> None:
    """The minute of being open is over, by the database's clock."""
    await database.fetch("UPDATE duly.breakers SET open_until = duly.now()")


async def pass_the_open_minute(breakers: Breakers, database: Database, clock: ManualClock) -> None:
    """By both clocks; what is told next is the word of a probe."""
    await let_time_pass(database)
    clock.advance(OPEN_S)
    await breakers.tick()


async def unreachable(*_: object) -> bool:
    raise DatabaseUnavailable(address="here", problem="away for a moment")


async def opened(breakers: Breakers, tenant: int) -> None:
    for _ in range(ATTEMPTS_MIN):
        breakers.on_outcome(tenant, HOST, ok=False)
    await breakers.tick()


async def test_a_host_that_fails_is_left_alone(
    breakers: Breakers, database: Database, tenant: int
) -> None:
    """Every further call would only fill its queue and ours."""
    for _ in range(ATTEMPTS_MIN - 1):
        breakers.on_outcome(tenant, HOST, ok=False)
    await breakers.tick()
    assert await phases(database, tenant) == []
    breakers.on_outcome(tenant, HOST, ok=False)
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, True, False)]


async def test_one_failing_tenant_does_not_open_for_another(
    breakers: Breakers, database: Database, tenant: int
) -> None:
    """Its credentials may be wrong; the host is fine."""
    other = await create_tenant(database, "other")
    assert other is not None
    await opened(breakers, tenant)
    assert await phases(database, other.id) == []


async def test_a_probe_that_succeeds_begins_the_ramp(
    breakers: Breakers, database: Database, tenant: int, clock: ManualClock
) -> None:
    """And the failures of before no longer count against the host."""
    await opened(breakers, tenant)
    breakers.on_outcome(tenant, HOST, ok=True)
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, True, False)], "late words change nothing"
    await pass_the_open_minute(breakers, database, clock)
    breakers.on_outcome(tenant, HOST, ok=True)
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, False, True)]


async def test_a_probe_that_fails_keeps_it_open(
    breakers: Breakers, database: Database, tenant: int, clock: ManualClock
) -> None:
    """One is enough: it was sent to find out."""
    await opened(breakers, tenant)
    await pass_the_open_minute(breakers, database, clock)
    breakers.on_outcome(tenant, HOST, ok=False)
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, True, False)]


async def test_failures_during_the_ramp_open_it_again(
    breakers: Breakers, database: Database, tenant: int, clock: ManualClock
) -> None:
    """It answered one probe and fell over under load."""
    await opened(breakers, tenant)
    await pass_the_open_minute(breakers, database, clock)
    breakers.on_outcome(tenant, HOST, ok=True)
    await breakers.tick()
    await breakers.tick()
    for _ in range(5):
        breakers.on_outcome(tenant, HOST, ok=False)
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, True, False)]


async def test_another_process_finishes_what_this_one_began(
    breakers: Breakers, database: Database, environment: Environment, tenant: int
) -> None:
    """The state survives a restart: it is in the rows."""
    await opened(breakers, tenant)
    await let_time_pass(database)
    successor = Breakers(database, environment)
    successor.on_outcome(tenant, HOST, ok=True)
    await successor.tick()
    assert await phases(database, tenant) == [(HOST, False, True)]


async def test_a_restarted_process_hears_that_its_probe_failed(
    breakers: Breakers, database: Database, environment: Environment, tenant: int
) -> None:
    """One probe a minute is all there is: one that does not count leaves the host to the next."""
    await opened(breakers, tenant)
    await let_time_pass(database)
    successor = Breakers(database, environment)
    successor.on_outcome(tenant, HOST, ok=False)
    successor.on_outcome(tenant, "other.example.com", ok=False)
    await successor.tick()
    assert await phases(database, tenant) == [(HOST, True, False)]


async def test_a_probe_after_a_quiet_time_counts(
    breakers: Breakers, database: Database, tenant: int, clock: ManualClock
) -> None:
    """A host that gets nothing but probes is quiet by nature, and would stay closed for ever."""
    await opened(breakers, tenant)
    await let_time_pass(database)
    clock.advance(QUIET_S + 1)
    assert await breakers.tick() == IDLE_S
    breakers.on_outcome(tenant, HOST, ok=True)
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, False, True)]


async def test_a_result_is_kept_while_the_database_is_away(
    breakers: Breakers, database: Database, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe was made; that its success could not be written down must not waste it."""
    await opened(breakers, tenant)
    await let_time_pass(database)
    breakers.watch_at = 0.0
    await breakers.tick()
    breakers.on_outcome(tenant, HOST, ok=True)
    with monkeypatch.context() as patched:
        patched.setattr(module, "ramp_breaker", unreachable)
        with pytest.raises(DatabaseUnavailable):
            await breakers.tick()
    await breakers.tick()
    assert await phases(database, tenant) == [(HOST, False, True)]


async def test_failures_of_before_the_ramp_do_not_end_it(
    breakers: Breakers,
    database: Database,
    environment: Environment,
    tenant: int,
    clock: ManualClock,
) -> None:
    """Another process began the ramp; a single failure here must not undo it."""
    other = Breakers(database, environment)
    for _ in range(ATTEMPTS_MIN - 1):
        other.on_outcome(tenant, HOST, ok=False)
    await other.tick()
    await opened(breakers, tenant)
    await let_time_pass(database)
    clock.advance(OPEN_S)
    breakers.on_outcome(tenant, HOST, ok=True)
    await breakers.tick()
    other.on_outcome(tenant, HOST, ok=False)
    await other.tick()
    other.on_outcome(tenant, HOST, ok=False)
    await other.tick()
    assert await phases(database, tenant) == [(HOST, False, True)]
    for _ in range(RAMP_ATTEMPTS_MIN):
        other.on_outcome(tenant, HOST, ok=False)
    await other.tick()
    assert await phases(database, tenant) == [(HOST, True, False)]


async def test_without_deliveries_nothing_is_asked(
    breakers: Breakers, tenant: int, clock: ManualClock
) -> None:
    """An idle duly must be idle."""
    assert await breakers.tick() == IDLE_S
    breakers.on_outcome(tenant, HOST, ok=True)
    assert await breakers.tick() < IDLE_S
    clock.advance(QUIET_S + 1)
    assert await breakers.tick() == IDLE_S


async def test_retries_beyond_their_share_are_put_off(
    breakers: Breakers, tenant: int, clock: ManualClock
) -> None:
    """A budget, so that a host that limps is not kept limping by us."""
    for attempt in (1, 2, 3) * 20:
        breakers.on_outcome(tenant, HOST, ok=True, attempt=attempt)
    assert breakers.stretch_s(tenant, HOST) is not None
    assert breakers.stretch_s(tenant, "other.example.com") is None
    clock.advance(WINDOW_S)
    assert breakers.stretch_s(tenant, HOST) is None
