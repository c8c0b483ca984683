"""The statements of ownership: each says what it believes, and changes nothing if it is wrong."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from duly.domain.ids import SLOTS
from duly.store.database import Database
from duly.store.ownership import (
    FAR_LEASES,
    MAINTENANCE,
    NODES_MAX,
    SLOT,
    SQL,
    Assignment,
    Node,
    OwnershipClaim,
    View,
    claim_assignments,
    delete_dead_nodes,
    keep_assignments,
    list_ownership,
    release_assignments,
)
from tests.store.world import HOLDER, OTHER_HOLDER, START, World

LEASE_S = 10.0
TICKET_S = 10.0
WAIT_MAX_S = 10.0
ME = Node(HOLDER, "me", "1", ("scheduler", "maintenance"))
OTHER = Node(OTHER_HOLDER, "other", "1", ("scheduler",))


async def keep(
    world: World, node: Node, assignments: dict[Assignment, OwnershipClaim] | None = None
) -> View:
    return await keep_assignments(world.database, node, assignments or {}, LEASE_S, TICKET_S)


async def claim(
    world: World, node: Node, most: int = SLOTS, strays: dict[Assignment, int] | None = None
) -> dict[Assignment, OwnershipClaim]:
    return await claim_assignments(
        world.database, node.id, SLOT, most, strays or {}, LEASE_S, TICKET_S
    )


async def release(
    world: World, node: Node, assignments: dict[Assignment, OwnershipClaim], **words: bool
) -> int:
    return await release_assignments(world.database, node.id, assignments, TICKET_S, **words)


async def holders(world: World) -> set[UUID | None]:
    return {row.holder for row in await list_ownership(world.database) if row.kind == SLOT}


async def test_the_migration_made_every_seat(world: World) -> None:
    """The engine may not insert seats; one that is missing is served by nobody."""
    rows = await list_ownership(world.database)
    slots = [Assignment(SLOT, number) for number in range(SLOTS)]
    assert [Assignment(row.kind, row.number) for row in rows] == [
        Assignment(MAINTENANCE, 0),
        *slots,
    ]
    assert not any(row.is_owned for row in rows)


async def test_a_claim_takes_free_seats_only_and_no_more_than_asked(world: World) -> None:
    """What somebody holds is not to be had before its lease ends."""
    mine = await claim(world, ME, most=40)
    theirs = await claim(world, OTHER)
    assert (len(mine), len(theirs)) == (40, SLOTS - 40)
    assert not mine.keys() & theirs.keys()
    world.advance(LEASE_S - 0.001)
    assert await claim(world, OTHER) == {}
    assert (await keep(world, OTHER, theirs)).renewed == theirs
    world.advance(0.001)
    assert len(await claim(world, OTHER)) == 40


async def test_a_claim_leaves_our_own_seats_alone(world: World) -> None:
    """Claimed again under a new epoch, all that we dispatched would look like somebody else's."""
    await claim(world, ME)
    assert await claim(world, ME) == {}


async def test_a_stray_is_claimed_once_by_its_epoch(world: World) -> None:
    """The same claim, delayed on its way, would raise the epoch under a node that owns by now."""
    assert (await keep(world, ME)).strays == {}
    lost = await claim(world, ME, most=3)
    strays = (await keep(world, ME)).strays
    assert strays == {assignment: owned.epoch for assignment, owned in lost.items()}
    again = await claim(world, ME, most=3, strays=dict(strays))
    assert again.keys() == lost.keys()
    assert all(again[assignment].epoch == lost[assignment].epoch + 1 for assignment in lost)
    late = await claim(world, ME, strays=dict(strays))
    assert not late.keys() & again.keys()
    assert (await keep(world, ME, again | late)).strays == {}


async def test_a_renewal_must_name_holder_and_epoch(world: World) -> None:
    """A renewal that names neither keeps somebody else's lease alive for ever."""
    mine = await claim(world, ME)
    assert (await keep(world, OTHER, mine)).renewed == {}
    wrong = {
        assignment: OwnershipClaim(owned.epoch + 1, owned.void_at)
        for assignment, owned in mine.items()
    }
    assert (await keep(world, ME, wrong)).renewed == {}
    world.advance(5)
    assert (await keep(world, ME, mine)).renewed == mine
    expires = {row.expires_at for row in await list_ownership(world.database) if row.kind == SLOT}
    assert expires == {START + timedelta(seconds=5 + LEASE_S)}


async def test_a_renewal_of_an_old_epoch_does_not_touch_our_own_new_claim(world: World) -> None:
    """We lost it, got it back without noticing, and would dispatch under the old epoch."""
    old = await claim(world, ME)
    world.advance(LEASE_S)
    between = await claim(world, OTHER)
    await release(world, OTHER, between)
    await claim(world, ME)
    assert (await keep(world, ME, old)).renewed == {}


async def test_a_release_must_name_holder_and_epoch(world: World) -> None:
    """A zombie on its way out would take the new owner's slots away."""
    old = await claim(world, ME)
    world.advance(LEASE_S)
    new = await claim(world, OTHER)
    assert await release(world, ME, old) == 0
    assert await release(world, ME, new) == 0
    assert await holders(world) == {OTHER_HOLDER}
    assert await release(world, OTHER, new) == SLOTS
    assert await holders(world) == {None}


async def test_a_tick_says_who_lives_and_how_much_they_hold(world: World) -> None:
    """Counted wrongly, shares are too small and slots stay free, or too large and nodes fight."""
    await keep(world, ME)
    await keep(world, OTHER)
    await keep(world, Node(UUID(int=7), "api", "1", ("api",)))
    await claim(world, OTHER, most=20)
    view = await keep(world, ME)
    assert view.slots_of_others == {OTHER_HOLDER: 20}
    assert view.free == {SLOT: SLOTS - 20, MAINTENANCE: 1}
    assert view.next_expiry_s == pytest.approx(LEASE_S)
    world.advance(LEASE_S)
    view = await keep(world, ME)
    assert view.slots_of_others == {}
    assert view.free == {SLOT: SLOTS, MAINTENANCE: 1}
    assert view.next_expiry_s is None


async def test_our_own_renewed_seats_are_not_free(world: World) -> None:
    """The statement sees the rows as they were before it renewed them: expired."""
    mine = await claim(world, ME, most=10)
    world.advance(2 * LEASE_S)
    view = await keep(world, ME, mine)
    assert view.renewed.keys() == mine.keys()
    assert view.free[SLOT] == SLOTS - 10


async def test_a_node_that_leaves_is_not_counted_any_more(world: World) -> None:
    """Counted for another lease, it would keep its share of slots from everybody."""
    await keep(world, ME)
    await keep(world, OTHER)
    await release(world, OTHER, {}, is_leaving=False)
    assert (await keep(world, ME)).slots_of_others == {OTHER_HOLDER: 0}
    await release(world, OTHER, {}, is_leaving=True)
    assert (await keep(world, ME)).slots_of_others == {}


@pytest.mark.parametrize(("ahead_s", "is_free"), [(0.0, False), (0.001, True)])
async def test_an_expiry_far_ahead_counts_as_expired(
    world: World, ahead_s: float, is_free: bool
) -> None:
    """A clock that stepped back would leave a dead node's slots alone for as long as it stepped."""
    await claim(world, OTHER)
    world.clock.elapsed_s -= LEASE_S * (FAR_LEASES - 1) + ahead_s
    assert len(await claim(world, ME)) == (SLOTS if is_free else 0)


async def test_a_wait_for_old_tickets_is_bounded_also_for_seats_that_are_kept(
    world: World,
) -> None:
    """A clock that stepped back by an hour must not hold capped work for an hour."""
    await release(world, OTHER, await claim(world, OTHER))
    mine = await claim(world, ME)
    assert {owned.void_at for owned in mine.values()} == {START + timedelta(seconds=TICKET_S)}
    world.clock.elapsed_s -= 3600
    renewed = (await keep(world, ME, mine)).renewed
    latest = world.now() + timedelta(seconds=LEASE_S + TICKET_S)
    assert {owned.void_at for owned in renewed.values()} == {latest}


async def test_operators_see_who_holds_what(world: World) -> None:
    """A slot that nobody serves must be visible to somebody."""
    await keep(world, ME)
    await claim(world, ME, most=1)
    await claim(world, OTHER, most=1)
    rows = [row for row in await list_ownership(world.database) if row.kind == SLOT]
    assert [(row.holder, row.node, row.is_owned) for row in rows[:3]] == [
        (HOLDER, "me", True),
        (OTHER_HOLDER, None, True),
        (None, None, False),
    ]
    world.advance(LEASE_S)
    assert not any(row.is_owned for row in await list_ownership(world.database))


async def test_only_nodes_long_dead_are_deleted(world: World) -> None:
    """The one that died a minute ago is what an operator looks for."""
    await keep(world, ME)
    world.advance(60)
    await keep(world, OTHER)
    world.advance(LEASE_S + 3600)
    assert await delete_dead_nodes(world.database, 1000, 3660) == 0
    world.advance(0.001)
    assert await delete_dead_nodes(world.database, 1000, 3660) == 1
    assert await world.count("nodes") == 1


@pytest.fixture
async def rival(engine_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A second session whose transaction the test holds open."""
    connection = await asyncpg.connect(engine_url)
    yield connection
    await connection.close()


def claim_arguments(node: Node, most: int) -> tuple[object, ...]:
    return (node.id, SLOT, [], most, LEASE_S, TICKET_S, LEASE_S * FAR_LEASES, [])


async def test_two_claimers_never_both_own(database: Database, rival: asyncpg.Connection) -> None:
    """The first has not committed yet: the second must neither wait nor take the same."""
    transaction = rival.transaction()
    await transaction.start()
    first = {
        row["number"] for row in await rival.fetch(SQL.claim_assignments, *claim_arguments(ME, 20))
    }
    async with asyncio.timeout(WAIT_MAX_S):
        second = await claim_assignments(database, OTHER.id, SLOT, SLOTS, {}, LEASE_S, TICKET_S)
    await transaction.commit()
    assert len(first) == 20
    assert {assignment.number for assignment in second} == set(range(SLOTS)) - first
    rows = await list_ownership(database)
    assert {row.epoch for row in rows if row.kind == SLOT} == {1}


async def test_claimers_at_the_same_time_share_without_overlap(database: Database) -> None:
    """Every node looks at the instant when a dead one's lease ends."""
    nodes = [UUID(int=number) for number in range(1, 6)]
    taken = await asyncio.gather(
        *(claim_assignments(database, node, SLOT, 20, {}, LEASE_S, TICKET_S) for node in nodes)
    )
    numbers = [assignment.number for assignments in taken for assignment in assignments]
    assert len(numbers) == len(set(numbers))
    by_row = {row.number: row.holder for row in await list_ownership(database) if row.kind == SLOT}
    for node, assignments in zip(nodes, taken, strict=True):
        assert {number for number, holder in by_row.items() if holder == node} == {
            assignment.number for assignment in assignments
        }


async def test_a_renewal_that_waited_for_a_take_over_changes_nothing(
    database: Database, owner: asyncpg.Connection, rival: asyncpg.Connection
) -> None:
    """It waits for the claimer's commit; what it believed was true when it was sent."""
    mine = await claim_assignments(database, ME.id, SLOT, SLOTS, {}, LEASE_S, TICKET_S)
    await owner.execute("UPDATE duly.ownership SET expires_at = 'epoch' WHERE kind = 'slot'")
    transaction = rival.transaction()
    await transaction.start()
    await rival.fetch(SQL.claim_assignments, *claim_arguments(OTHER, SLOTS))
    renewal = asyncio.create_task(keep_assignments(database, ME, mine, LEASE_S, TICKET_S))
    await until_somebody_waits(owner)
    await transaction.commit()
    view = await asyncio.wait_for(renewal, WAIT_MAX_S)
    assert view.renewed == {}
    rows = [row for row in await list_ownership(database) if row.kind == SLOT]
    assert {(row.holder, row.epoch) for row in rows} == {(OTHER.id, 2)}


async def until_somebody_waits(owner: asyncpg.Connection) -> None:
    """Until a session of this database stands behind another's lock."""
    question = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(WAIT_MAX_S):
        while not await owner.fetchval(question):  # noqa: ASYNC110 (another session's lock)
            await asyncio.sleep(0.01)


async def test_the_statement_of_a_tick_stays_cheap(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Every node sends it all day; a thousand dead nodes must not make it slow."""
    await owner.execute(
        "INSERT INTO duly.nodes SELECT gen_random_uuid(), 'n', '1', ARRAY['scheduler'], now(), "
        "now(), now() + interval '5 seconds' FROM generate_series(1, $1::integer)",
        NODES_MAX + 1,
    )
    async with asyncio.timeout(1.0):
        view = await keep_assignments(database, ME, {}, LEASE_S, TICKET_S)
    assert len(view.slots_of_others) == NODES_MAX
