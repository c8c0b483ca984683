"""Nodes come, go and die; at every moment a slot has at most one owner, and soon exactly one."""

from datetime import timedelta

import pytest

from duly.coordinator.ownership import TRUSTED_PART
from duly.coordinator.policy import EXPIRY_SLACK_S
from duly.domain.errors import DatabaseUnavailable
from duly.domain.ids import SLOTS
from duly.store.ownership import MAINTENANCE, list_ownership
from tests.coordinator.nodes import LEASE_S, TICK_S, TICKET_S, Cluster, TestNode

ALL = set(range(SLOTS))


async def test_a_lone_node_claims_everything_at_its_first_tick(cluster: Cluster) -> None:
    """A laptop that dispatches only after some ticks looks broken."""
    node = cluster.join()
    assert node.slots == set()
    assert await node.tick() == pytest.approx(TICK_S)
    assert node.slots == ALL
    assert node.told == [(frozenset(ALL), frozenset())]
    assert node.coordinator.leads(MAINTENANCE) is not None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
async def test_nodes_that_join_share_evenly_and_then_rest(cluster: Cluster, count: int) -> None:
    """One node with nearly everything is a cluster in name; slots that keep moving stand still."""
    for _ in range(count):
        cluster.join()
        await cluster.settle(*cluster.nodes)
    held = sorted(len(node.slots) for node in cluster.nodes)
    assert sum(held) == SLOTS
    assert held[-1] - held[0] <= 1
    for node in cluster.nodes:
        node.told.clear()
    for _ in range(6):
        cluster.advance(TICK_S)
        for node in cluster.nodes:
            await node.tick()
    assert [node.told for node in cluster.nodes] == [[]] * count


async def test_nodes_that_start_together_end_up_even(cluster: Cluster) -> None:
    """All see an empty cluster at first, and each takes it for its own."""
    nodes = [cluster.join() for _ in range(4)]
    await cluster.settle(*nodes)
    assert [len(node.slots) for node in nodes] == [16] * 4


async def test_a_steady_node_sends_one_statement_per_tick(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle installation has a budget of statements, and every node is charged to it."""
    node, other = cluster.join(), cluster.join()
    await cluster.settle(node, other)
    sent: list[str] = []
    fetch = cluster.world.database.fetch

    async def counting(statement: str, *arguments: object) -> object:
        sent.append(statement)
        return await fetch(statement, *arguments)

    monkeypatch.setattr(cluster.world.database, "fetch", counting)
    for _ in range(5):
        cluster.advance(TICK_S)
        assert await node.tick() == pytest.approx(TICK_S)
        assert await other.tick() == pytest.approx(TICK_S)
    assert len(sent) == 10


async def test_a_node_that_leaves_hands_everything_over_at_once(cluster: Cluster) -> None:
    """A deployment restarts every node in turn; each restart must not cost a lease."""
    leaver, stayer = cluster.join(), cluster.join()
    await cluster.settle(leaver, stayer)
    await leaver.coordinator.close()
    assert leaver.slots == set()
    await stayer.tick()
    assert stayer.slots == ALL
    assert stayer.coordinator.leads(MAINTENANCE) is not None


async def test_a_dead_nodes_slots_are_taken_over_when_its_lease_ends(cluster: Cluster) -> None:
    """Sooner would be two owners; later is work that nobody looks at."""
    dead, survivor = cluster.join(), cluster.join()
    await cluster.settle(dead, survivor)
    own = survivor.slots
    died_at = cluster.world.now()
    await dead.tick()
    while survivor.slots != ALL:
        pause_s = await survivor.tick()
        cluster.assert_nobody_shares()
        if survivor.slots == own:
            assert cluster.world.now() - died_at < timedelta(seconds=LEASE_S)
            cluster.advance(pause_s)
    waited_s = (cluster.world.now() - died_at).total_seconds()
    assert LEASE_S <= waited_s <= LEASE_S + 2 * EXPIRY_SLACK_S
    assert dead.slots == set()


async def test_a_zombie_that_renews_after_the_take_over_changes_nothing(cluster: Cluster) -> None:
    """A process stopped beyond its lease wakes up in the middle of what it was doing."""
    zombie, heir = cluster.join(), cluster.join()
    await zombie.tick()
    cluster.advance(LEASE_S)
    await heir.tick()
    assert (zombie.slots, heir.slots) == (set(), ALL)
    before = await list_ownership(cluster.world.database)
    await zombie.tick()
    assert await list_ownership(cluster.world.database) == before
    assert zombie.slots == set()
    assert zombie.told[-1] == (frozenset(), frozenset(ALL))
    assert zombie.coordinator.owned == {}


async def test_a_lease_renewed_late_is_kept_if_nobody_took_it(cluster: Cluster) -> None:
    """A database that was away for a minute must not make every owner load again."""
    node = cluster.join()
    await node.tick()
    epochs = await cluster.epochs()
    cluster.advance(6 * LEASE_S)
    assert node.slots == set()
    await node.tick()
    assert node.slots == ALL
    assert await cluster.epochs() == epochs
    assert len(node.told) == 1


async def test_a_node_that_cannot_renew_stops_before_its_lease_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off from the database, only its own clock can tell it that others may have taken over."""
    node = cluster.join()
    await node.tick()

    async def cut_off(*_: object) -> None:
        raise DatabaseUnavailable(address="here", problem="no route")

    monkeypatch.setattr(cluster.world.database, "fetch", cut_off)
    cluster.advance(LEASE_S * TRUSTED_PART - 0.001)
    with pytest.raises(DatabaseUnavailable):
        await node.tick()
    assert node.slots == ALL
    cluster.advance(0.001)
    assert node.slots == set()
    assert node.coordinator.leads(MAINTENANCE) is None


async def test_the_lease_counts_from_before_the_renewal_was_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the answer, a slow answer makes us trust a lease that has ended."""
    node = cluster.join()
    await node.tick()
    fetch = cluster.world.database.fetch

    async def slow_answer(statement: str, *arguments: object) -> object:
        rows = await fetch(statement, *arguments)
        cluster.advance(LEASE_S)
        return rows

    monkeypatch.setattr(cluster.world.database, "fetch", slow_answer)
    await node.tick()
    assert node.slots == set()


async def test_epochs_rise_with_every_change_of_owner(cluster: Cluster) -> None:
    """An epoch used twice makes an old owner's tickets look like the new one's."""
    one, two = cluster.join(), cluster.join()
    seen: dict[tuple[str, int], set[int]] = {}
    for node in (one, two, one, two):
        await node.tick()
        for number, owned in node.coordinator.owned.items():
            epochs = seen.setdefault(("slot", number), set())
            assert all(owned.epoch > earlier for earlier in epochs)
            epochs.add(owned.epoch)
        cluster.advance(LEASE_S)
    assert seen.keys() == {("slot", number) for number in ALL}
    assert {len(epochs) for epochs in seen.values()} == {4}


async def test_after_a_death_capped_work_waits_for_the_dead_owners_tickets(
    cluster: Cluster,
) -> None:
    """Tickets in a lane outlive their writer; a cap counted without them would be exceeded."""
    dead, heir = cluster.join(), cluster.join()
    await dead.tick()
    expires_at = cluster.world.now() + timedelta(seconds=LEASE_S)
    cluster.advance(LEASE_S + 2)
    await heir.tick()
    void_at = {owned.void_at for owned in heir.coordinator.owned.values()}
    assert void_at == {expires_at + timedelta(seconds=TICKET_S)}


async def test_after_a_release_capped_work_waits_for_one_ticket_lifetime(cluster: Cluster) -> None:
    """The one who left wrote its last ticket a moment ago."""
    leaver, heir = cluster.join(), cluster.join()
    await leaver.tick()
    cluster.advance(1)
    await leaver.coordinator.close()
    released_at = cluster.world.now()
    await heir.tick()
    void_at = {owned.void_at for owned in heir.coordinator.owned.values()}
    assert void_at == {released_at + timedelta(seconds=TICKET_S)}


async def test_a_first_owner_waits_for_nobody(cluster: Cluster) -> None:
    """A fresh installation has no tickets of anybody."""
    node = cluster.join()
    await node.tick()
    assert all(owned.void_at <= cluster.world.now() for owned in node.coordinator.owned.values())


async def test_a_claim_of_unknown_outcome_is_claimed_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit happened, the answer was lost: slots in our name that we do not serve."""
    node = cluster.join()
    fetch = cluster.world.database.fetch

    async def lose_answer(statement: str, *arguments: object) -> object:
        rows = await fetch(statement, *arguments)
        if "SKIP LOCKED" in statement:
            raise DatabaseUnavailable(address="here", problem="connection reset")
        return rows

    monkeypatch.setattr(cluster.world.database, "fetch", lose_answer)
    with pytest.raises(DatabaseUnavailable):
        await node.tick()
    assert node.slots == set()
    lost = await cluster.epochs()
    monkeypatch.setattr(cluster.world.database, "fetch", fetch)
    await node.tick()
    assert node.slots == ALL
    assert all(owned.epoch == lost["slot", n] + 1 for n, owned in node.coordinator.owned.items())


async def test_a_release_of_unknown_outcome_is_sent_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forgotten here and held there, the slots would stand still until the lease ends."""
    giver, taker = cluster.join(), cluster.join()
    await giver.tick()
    await taker.tick()
    fetch = cluster.world.database.fetch

    async def refuse_release(statement: str, *arguments: object) -> object:
        if "released" in statement:
            raise DatabaseUnavailable(address="here", problem="connection reset")
        return await fetch(statement, *arguments)

    monkeypatch.setattr(cluster.world.database, "fetch", refuse_release)
    with pytest.raises(DatabaseUnavailable):
        await giver.tick()
    assert len(giver.slots) == SLOTS / 2
    monkeypatch.setattr(cluster.world.database, "fetch", fetch)
    await giver.tick()
    await taker.tick()
    assert len(taker.slots) == SLOTS / 2
    cluster.assert_nobody_shares()


async def test_a_slot_is_told_lost_before_it_is_released(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other order has a moment with two owners."""
    giver, taker = cluster.join(), cluster.join()
    await giver.tick()
    await taker.tick()
    fetch = cluster.world.database.fetch
    held_at_release: list[int] = []

    async def watch(statement: str, *arguments: object) -> object:
        if "released" in statement:
            held_at_release.append(len(giver.slots))
            assert giver.told[-1] == (frozenset(), frozenset(range(SLOTS // 2, SLOTS)))
        return await fetch(statement, *arguments)

    monkeypatch.setattr(cluster.world.database, "fetch", watch)
    await giver.tick()
    assert held_at_release == [SLOTS // 2]


async def test_a_node_without_the_scheduler_role_takes_no_slots(cluster: Cluster) -> None:
    """It would own them and never look; nor may it make the others' shares smaller."""
    caretaker, scheduler = cluster.join(["api", "maintenance"]), cluster.join(["scheduler"])
    await cluster.settle(caretaker, scheduler)
    assert (caretaker.slots, scheduler.slots) == (set(), ALL)
    assert caretaker.coordinator.leads(MAINTENANCE) is not None
    assert scheduler.coordinator.leads(MAINTENANCE) is None


async def test_a_singleton_role_has_one_leader_and_moves_when_it_leaves(cluster: Cluster) -> None:
    """Two maintainers drop a partition twice; none lets the disk fill."""
    nodes = [cluster.join() for _ in range(3)]
    await cluster.settle(*nodes)
    (leader,) = [node for node in nodes if node.coordinator.leads(MAINTENANCE)]
    others = [node for node in nodes if node is not leader]
    await leader.coordinator.close()
    await cluster.settle(*others)
    assert len([node for node in others if node.coordinator.leads(MAINTENANCE)]) == 1


def stepped_back(cluster: Cluster, seconds: float) -> None:
    """The database's clock, and nobody else's."""
    cluster.world.clock.elapsed_s -= seconds


async def test_a_clock_that_steps_back_leaves_no_slot_to_the_dead(cluster: Cluster) -> None:
    """The dead one's lease would last an hour longer, and its tickets' end with it."""
    dead, survivor = cluster.join(), cluster.join()
    await cluster.settle(dead, survivor)
    stepped_back(cluster, 3600)
    await survivor.tick()
    assert survivor.slots == ALL
    latest = cluster.world.now() + timedelta(seconds=LEASE_S + TICKET_S)
    assert max(owned.void_at for owned in survivor.coordinator.owned.values()) <= latest


async def test_a_clock_that_steps_back_costs_a_lone_node_nothing(cluster: Cluster) -> None:
    """It renews, and the row has the new clock's expiry."""
    node = cluster.join()
    await node.tick()
    epochs = await cluster.epochs()
    stepped_back(cluster, 3600)
    await node.tick()
    assert (node.slots, await cluster.epochs()) == (ALL, epochs)


async def test_a_clock_that_jumps_ahead_moves_slots_under_new_epochs(cluster: Cluster) -> None:
    """Everything looks expired; whoever loses its slots must learn it at its next tick."""
    one, two = cluster.join(), cluster.join()
    await cluster.settle(one, two)
    before = await cluster.epochs()
    cluster.world.clock.advance(3600)
    own = one.slots
    await two.tick()
    assert two.slots == ALL
    after = await cluster.epochs()
    assert all(after["slot", slot] == before["slot", slot] + 1 for slot in own)
    await one.tick()
    assert not one.slots & own
    await cluster.settle(one, two)
    assert len(one.slots) == len(two.slots) == SLOTS / 2


async def test_only_the_rings_of_others_wake_a_coordinator(cluster: Cluster) -> None:
    """Woken by its own release, every move would cost one more statement."""
    node: TestNode = cluster.join()
    woken = node.coordinator.wakeup.event
    node.coordinator.on_notify([str(node.id)])
    assert not woken.is_set()
    node.coordinator.on_notify([str(node.id), "another node"])
    assert woken.is_set()
