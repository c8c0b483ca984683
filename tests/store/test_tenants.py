"""Tenants and gate inputs: complete, current, guarded, and counted where leases are."""

import asyncio

import asyncpg
import pytest

from duly.domain.breaker import RAMP_S, BreakerKind
from duly.domain.errors import StatementRefused
from duly.domain.ids import key_shard
from duly.domain.states import Outcome
from duly.domain.task import Policy
from duly.store import breakers, tenants
from duly.store.breakers import close_breaker, open_breaker, ramp_breaker, reopen_breaker
from duly.store.pools import PoolNumbers
from duly.store.tenants import (
    Breaker,
    Pause,
    PauseAnswer,
    PauseKind,
    TenantLimits,
    clear_pause,
    count_in_flight,
    count_in_flight_by_key,
    create_tenant,
    find_tenant,
    raise_spread,
    read_gate_inputs,
    set_pause,
    update_tenant,
)
from tests.store.world import OTHER_TENANT, START, TENANT, World, wish

LIMITS = TenantLimits(weight=3.0, in_flight_max=256, dispatch_rate=50.0, dispatch_burst=100.0)


async def tenant(world: World, name: str, limits: TenantLimits = LIMITS) -> int:
    made = await create_tenant(world.database, name, limits)
    assert made is not None
    return made.id


async def test_a_tenant_is_made_once_and_found_by_name(world: World) -> None:
    """Two rows of one name would split a tenant's caps in two."""
    made = await asyncio.gather(*(create_tenant(world.database, "acme", LIMITS) for _ in range(5)))
    (acme,) = [one for one in made if one is not None]
    assert await find_tenant(world.database, "acme") == acme
    assert (acme.name, acme[2:6], acme.spread) == ("acme", LIMITS[:4], 1)
    assert await find_tenant(world.database, "nobody") is None


async def test_limits_change_as_a_whole(world: World) -> None:
    """A half-applied change is a rate with another tenant's burst."""
    number = await tenant(world, "acme")
    changed = await update_tenant(world.database, number, TenantLimits(weight=0.5))
    assert changed is not None
    assert changed[2:7] == (0.5, None, None, None, 1)
    assert (await read_gate_inputs(world.database)).tenants[number] == changed
    assert await update_tenant(world.database, number + 1, LIMITS) is None


@pytest.mark.parametrize(
    "limits",
    [TenantLimits(weight=0.0), TenantLimits(in_flight_max=0), TenantLimits(dispatch_rate=0.0)],
)
async def test_limits_that_stop_everything_are_refused(world: World, limits: TenantLimits) -> None:
    """Zero is how a pause looks when nobody can see who paused it."""
    with pytest.raises(StatementRefused):
        await create_tenant(world.database, "acme", limits)


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
async def test_every_tenant_is_read_whatever_the_page(world: World, page: int) -> None:
    """A tenant lost between two pages has no caps at all."""
    numbers = [await tenant(world, f"t{number}") for number in range(4)]
    for number in numbers[1:3]:
        for name in ("a", "b", "c"):
            await set_pause(world.database, number, PauseKind.TYPE, name, "ops", "why")
            await open_breaker(world.database, number, f"{name}.example.com", 60.0, "failing")
    inputs = await read_gate_inputs(world.database, page)
    assert list(inputs.tenants) == numbers
    assert len(set(inputs.pauses)) == len(inputs.pauses) == 6
    assert len(set(inputs.breakers)) == len(inputs.breakers) == 6


async def test_pauses_say_who_why_and_which_pool(world: World) -> None:
    """Dispatch knows pools by number; a pause by name alone would stop nothing."""
    number = await tenant(world, "acme")
    await PoolNumbers(world.database).resolve([(number, "slow"), (number + 1, "later")])
    for kind, name in [
        (PauseKind.TENANT, ""),
        (PauseKind.TYPE, "slow"),
        (PauseKind.POOL, "slow"),
        (PauseKind.POOL, "later"),
    ]:
        answer = await set_pause(world.database, number, kind, name, "ada", "upgrade")
        assert answer is PauseAnswer.PAUSED
    told = ("ada", "upgrade", START)
    assert set((await read_gate_inputs(world.database)).pauses) == {
        Pause(number, PauseKind.TENANT, "", None, *told),
        Pause(number, PauseKind.TYPE, "slow", None, *told),
        Pause(number, PauseKind.POOL, "slow", 1, *told),
        Pause(number, PauseKind.POOL, "later", None, *told),
    }


async def test_the_newest_word_on_a_pause_stands_until_it_is_cleared(world: World) -> None:
    """The person who is asked about a pause should be the one who last wanted it."""
    number = await tenant(world, "acme")
    await set_pause(world.database, number, PauseKind.TENANT, "", "ada", "upgrade")
    world.advance(60)
    await set_pause(world.database, number, PauseKind.TENANT, "", "bob", "incident")
    (pause,) = (await read_gate_inputs(world.database)).pauses
    assert (pause.actor, pause.reason, pause.paused_at) == ("bob", "incident", world.now())
    assert await clear_pause(world.database, number, PauseKind.TENANT, "")
    assert not await clear_pause(world.database, number, PauseKind.TENANT, "")
    assert (await read_gate_inputs(world.database)).pauses == []


async def test_a_pause_of_nobody_or_past_the_bound_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause that is stored and then not read lets everything through."""
    monkeypatch.setattr(tenants, "PAUSES_PER_TENANT_MAX", 2)
    number = await tenant(world, "acme")

    async def pause(of: int, name: str) -> PauseAnswer:
        return await set_pause(world.database, of, PauseKind.TYPE, name, "ops", "why")

    assert await pause(number + 1, "a") is PauseAnswer.NO_TENANT
    assert [await pause(number, name) for name in "abca"] == [
        PauseAnswer.PAUSED,
        PauseAnswer.PAUSED,
        PauseAnswer.TOO_MANY,
        PauseAnswer.PAUSED,
    ]
    assert len((await read_gate_inputs(world.database)).pauses) == 2


async def test_a_breaker_is_read_until_its_ramp_is_over_and_never_shortened(world: World) -> None:
    """A node that saw fewer failures must not send everybody back to a dead host."""
    number = await tenant(world, "acme")
    host = "example.com"
    until = await open_breaker(world.database, number, host, 60.0, "5 of 5 failed")
    assert await open_breaker(world.database, number, host, 10.0, "1 failed") == until
    assert until is not None
    (breaker,) = (await read_gate_inputs(world.database)).breakers
    assert breaker == Breaker(number, host, "1 failed", until)
    assert not await ramp_breaker(world.database, number, host)
    assert not await reopen_breaker(world.database, number, host, 60.0)
    world.advance(60.0)
    assert len((await read_gate_inputs(world.database)).breakers) == 1
    assert await ramp_breaker(world.database, number, host)
    assert not await ramp_breaker(world.database, number, host)
    world.advance(RAMP_S - 0.001)
    assert len((await read_gate_inputs(world.database)).breakers) == 1
    world.advance(0.001)
    assert (await read_gate_inputs(world.database)).breakers == []


async def test_a_probe_that_fails_opens_for_another_while(world: World) -> None:
    """Without it the second probe would follow the first at once."""
    number, host = await tenant(world, "acme"), "example.com"
    await open_breaker(world.database, number, host, 60.0, "x")
    world.advance(60.0)
    assert await reopen_breaker(world.database, number, host, 60.0)
    assert not await ramp_breaker(world.database, number, host)
    assert await close_breaker(world.database, number, BreakerKind.HOST, host)
    assert not await close_breaker(world.database, number, BreakerKind.HOST, host)
    assert (await read_gate_inputs(world.database)).breakers == []


async def test_breakers_of_nobody_and_past_the_bound_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts are named by whoever submits: without a bound they fill a table and every read."""
    monkeypatch.setattr(breakers, "BREAKERS_PER_TENANT_MAX", 2)
    number = await tenant(world, "acme")
    assert await open_breaker(world.database, number + 1, "a", 60.0, "x") is None
    opened = [await open_breaker(world.database, number, host, 60.0, "x") for host in "abca"]
    assert [until is None for until in opened] == [False, False, True, False]
    world.advance(60)
    assert await open_breaker(world.database, number, "c", 60.0, "x") is not None


async def test_a_spread_rises_only_from_what_was_believed(world: World) -> None:
    """Two nodes that measure one burst would raise it twice."""
    number = await tenant(world, "acme", TenantLimits())
    raised = await asyncio.gather(*(raise_spread(world.database, number, 1, 4) for _ in range(5)))
    assert sorted(raised) == [False, False, False, False, True]
    assert not await raise_spread(world.database, number, 1, 8)
    assert not await raise_spread(world.database, number, 4, 4)
    assert not await raise_spread(world.database, number, 4, 2)
    assert (await read_gate_inputs(world.database)).tenants[number].spread == 4


@pytest.mark.parametrize("limits", [TenantLimits(in_flight_max=9), TenantLimits(dispatch_rate=9)])
async def test_a_tenant_that_one_node_dispatches_is_not_spread(
    world: World, limits: TenantLimits
) -> None:
    """Its tasks would lie on shards whose owners do not dispatch them."""
    number = await tenant(world, "acme", limits)
    assert not await raise_spread(world.database, number, 1, 2)


async def test_leases_are_counted_wherever_the_tenant_was_placed(world: World) -> None:
    """A shard that is forgotten when the spread changes is a cap exceeded (I10)."""
    first = await world.submit()
    for key in (None, None, "a", "b", "c", "d"):
        await world.submit(policy=Policy(concurrency_key=key))
    await world.submit(delay_s=60.0)
    theirs = await world.submit(tenant=OTHER_TENANT)
    assert await count_in_flight(world.database, [TENANT, OTHER_TENANT]) == {
        TENANT: 0,
        OTHER_TENANT: 0,
    }
    leases = await world.lease_all()
    assert len(leases) == 8
    counts = await count_in_flight(world.database, [OTHER_TENANT, TENANT, TENANT, 77])
    assert counts == {TENANT: 7, OTHER_TENANT: 1, 77: 0}
    (own,) = [lease for lease in leases if lease.id == first.id]
    await world.settle(own, Outcome.COMPLETED)
    assert (await count_in_flight(world.database, [TENANT])) == {TENANT: 6}
    (other,) = [lease for lease in leases if lease.id == theirs.id]
    await world.settle(other, Outcome.COMPLETED)
    assert (await count_in_flight(world.database, [OTHER_TENANT])) == {OTHER_TENANT: 0}


async def test_leases_are_counted_by_key_and_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same word is another key for another tenant (I9), and a batch boundary is no place."""
    monkeypatch.setattr(tenants, "COUNT_BATCH_MAX", 2)
    for owner, key, times in [(TENANT, "a", 3), (TENANT, "b", 1), (OTHER_TENANT, "a", 2)]:
        for _ in range(times):
            await world.submit(tenant=owner, policy=Policy(concurrency_key=key))
    await world.submit()
    asked = [
        (TENANT, key_shard(TENANT, "a"), "a"),
        (TENANT, key_shard(TENANT, "b"), "b"),
        (TENANT, key_shard(TENANT, "c"), "c"),
        (OTHER_TENANT, key_shard(OTHER_TENANT, "a"), "a"),
    ]
    counts = await count_in_flight_by_key(world.database, asked)
    assert list(counts.values()) == [0, 0, 0, 0]
    await world.lease_all()
    counts = await count_in_flight_by_key(world.database, asked)
    assert [counts[place] for place in asked] == [3, 1, 0, 2]


async def test_counting_reads_leased_rows_only(world: World, owner: asyncpg.Connection) -> None:
    """A million waiting rows of a capped tenant must not be read to count three leases."""
    for _ in range(4):
        await world.submitter.submit([wish() for _ in range(500)])
    # So few that any index would do are no test; nor is a moment when nobody has counted them.
    await owner.execute("ANALYZE duly.timers")
    plan = await world.database.fetch(
        "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) " + tenants.SQL.count_in_flight,
        [TENANT],
        1000,
        100,
    )
    text = "\n".join(row[0] for row in plan)
    assert "Seq Scan" not in text
    assert text.count("timers_due") == 1, text
    (line,) = [line for line in text.splitlines() if "timers_due" in line]
    assert "rows=0" in line, text
