"""The gates of dispatch, as `explain` tells of them over HTTP: each closed by real rows."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from duly.domain.explain import RateLevel
from duly.domain.ids import shard_of
from duly.domain.lanes import LANE_DEPTH_MAX, Lane, Ticket
from duly.store.breakers import open_breaker
from duly.store.explain import HOLDERS_MAX, read_situation, tell_rate_levels
from duly.store.ready_tickets import publish_tickets
from duly.store.tenants import PauseKind, set_pause, suspend_tenant
from tests.api.conftest import Front
from tests.api.explaining import (
    KEY,
    URL,
    bound,
    explained,
    instant,
    lease,
    limit,
    make_live,
    own_slots,
    pool_number,
    submit,
)

PASS_START_BY = "UPDATE duly.timers SET start_by = duly.now() - interval '1 second' WHERE id = $1"


@pytest.fixture
async def live(front: Front) -> Front:
    return await make_live(front)


async def test_a_ready_task_that_nothing_binds_is_on_its_way(live: Front) -> None:
    """Naming a culprit where there is none costs an afternoon."""
    answer = await explained(live, await submit(live))
    assert (answer["state"], answer["binding"]) == ("READY", None)
    assert all(entry["open"] for entry in answer["gates"])
    assert "nothing holds it back" in answer["summary"]
    assert answer["estimate_at"] is not None


async def test_a_suspended_tenant_is_said_before_any_pause(live: Front) -> None:
    """Resuming the pause, as one would be told, changes nothing."""
    task_id = await submit(live)
    await set_pause(live.database, live.tenant.id, PauseKind.TENANT, "", "ann", "the release")
    await suspend_tenant(live.database, live.tenant.id, True)
    answer = await explained(live, task_id)
    entry = bound(answer)
    assert answer["binding"] == "paused"
    assert entry["reason"].startswith("the tenant default was suspended at 20")
    assert entry["unblock"] == "duly tenants resume default"
    await suspend_tenant(live.database, live.tenant.id, False)
    assert "paused by ann" in bound(await explained(live, task_id))["reason"]


@pytest.mark.parametrize(
    ("kind", "name", "subject", "command"),
    [
        ("tenant", "", "the tenant default", "duly pauses resume tenant"),
        ("type", "mail.send", "the type mail.send", "duly pauses resume type mail.send"),
        ("pool", "default", "the pool default", "duly pauses resume pool default"),
    ],
)
async def test_a_pause_says_who_when_why_and_how_to_resume(
    live: Front, kind: str, name: str, subject: str, command: str
) -> None:
    """A pause of Friday is forgotten on Monday."""
    task_id = await submit(live)
    tenant = live.tenant.id
    await set_pause(live.database, tenant, PauseKind(kind), name, "ann", "the release")
    await set_pause(live.database, tenant, PauseKind.TYPE, "other.type", "bob", "not this one")
    answer = await explained(live, task_id)
    entry = bound(answer)
    assert answer["binding"] == "paused"
    assert entry["reason"].startswith(f"{subject} was paused by ann at 20")
    assert entry["reason"].endswith(": the release")
    assert (entry["unblock"], entry["until"], answer["estimate_at"]) == (command, None, None)


async def test_of_several_pauses_the_widest_is_told(live: Front) -> None:
    """Resuming the type changes nothing while the tenant is paused."""
    task_id, tenant = await submit(live), live.tenant.id
    for kind, name in ((PauseKind.POOL, "default"), (PauseKind.TYPE, "mail.send")):
        await set_pause(live.database, tenant, kind, name, "ann", kind.value)
    assert bound(await explained(live, task_id))["reason"].endswith(": type")
    await set_pause(live.database, tenant, PauseKind.TENANT, "", "ann", "everything")
    assert bound(await explained(live, task_id))["reason"].endswith(": everything")


async def test_an_expired_task_is_about_to_fail(live: Front) -> None:
    """It will never run, whatever anybody unblocks."""
    task_id = await submit(live, start_by="2099-01-01T00:00:00Z")
    await live.database.fetch(PASS_START_BY, UUID(task_id))
    answer = await explained(live, task_id)
    assert bound(answer)["reason"].startswith("it had to start by")
    assert answer["binding"] == "expired"
    assert answer["estimate_at"] is None


async def test_an_open_breaker_says_when_the_next_probe_is(live: Front) -> None:
    """The receiver is down, and duly is not."""
    task_id, tenant = await submit(live, **URL), live.tenant.id
    until = await open_breaker(live.database, tenant, "api.example.com", 30.0, "ten failures")
    await open_breaker(live.database, tenant, "elsewhere.example.com", 90.0, "not this one")
    answer = await explained(live, task_id)
    entry = bound(answer)
    assert answer["binding"] == "breaker"
    assert "api.example.com" in entry["reason"]
    assert instant(entry["until"]) == instant(answer["estimate_at"]) == until


async def test_breakers_of_types_and_pools_are_explained_listed_and_closed(live: Front) -> None:
    """An operator who asks why nothing runs must find the breaker by its usual name."""
    task_id, tenant = await submit(live), live.tenant.id
    number = await pool_number(live)
    task = (await live.call("GET", f"/v1/tasks/{task_id}")).json
    await open_breaker(live.database, tenant, f"type/{task['type']}", 30.0, "x")
    until = await open_breaker(live.database, tenant, f"pool/{number}", 60.0, "x")
    await open_breaker(live.database, tenant, "type/other", 90.0, "not this one")
    answer = await explained(live, task_id)
    assert answer["binding"] == "breaker"
    entry = bound(answer)
    assert "pool default" in entry["reason"]
    assert instant(entry["until"]) == until
    assert entry["unblock"] == "duly breakers close pool default"
    listed = (await live.call("GET", "/v1/breakers")).json["items"]
    named = [(item["kind"], item["name"], item["host"]) for item in listed]
    assert named == [
        ("pool", "default", None),
        ("type", task["type"], None),
        ("type", "other", None),
    ]
    for body in ({"pool": "default"}, {"type": task["type"]}):
        assert (await live.call("POST", "/v1/breakers/close", body)).status == 200
        assert (await live.call("POST", "/v1/breakers/close", body)).code == "not_found"
    assert (await explained(live, task_id))["binding"] is None
    for wrong in ({}, {"pool": "default", "type": "a"}):
        assert (await live.call("POST", "/v1/breakers/close", wrong)).code == "invalid"


async def test_capped_work_waits_for_a_hand_over(live: Front) -> None:
    """After a take-over everything capped stands still for a while, and only that."""
    plain, keyed = await submit(live), await submit(live, **KEY)
    await own_slots(live, void_in_s=20.0)
    answer = await explained(live, keyed)
    assert answer["binding"] == "ownership_transfer"
    assert instant(bound(answer)["until"]) == instant(answer["estimate_at"]) > datetime.now(UTC)
    assert (await explained(live, plain))["binding"] is None


async def test_a_used_up_rate_says_when_it_refills(live: Front) -> None:
    """The next token goes to the first in line; the estimate counts those ahead."""
    await limit(live, dispatch_rate=0.01)
    ids = [await submit(live) for _ in range(3)]
    level = RateLevel(0.0, 0.01, 1.0, datetime.now(UTC))
    await tell_rate_levels(live.database, {live.tenant.id: level})
    told = [await explained(live, task_id) for task_id in ids]
    assert {answer["binding"] for answer in told} == {"tenant_rate"}
    entry = bound(told[2])
    assert entry["unblock"] == "duly tenants set default --dispatch-rate ..."
    until = instant(entry["until"])
    assert timedelta(0) < until - datetime.now(UTC) <= timedelta(seconds=100)
    assert instant(told[2]["estimate_at"]) == until + timedelta(seconds=2 / 0.01)
    assert "2 tasks of its lane are ahead of it" in told[2]["summary"]


async def test_a_level_from_before_the_limits_changed_counts_for_nothing(live: Front) -> None:
    """An operator raised the rate, and is told that the old one is used up."""
    await limit(live, dispatch_rate=0.5)
    task_id = await submit(live)
    level = RateLevel(0.0, 0.5, 1.0, datetime.now(UTC))
    await tell_rate_levels(live.database, {live.tenant.id: level})
    assert (await explained(live, task_id))["binding"] == "tenant_rate"
    await limit(live, dispatch_rate=50.0)
    assert (await explained(live, task_id))["binding"] is None


async def test_a_full_in_flight_cap_is_counted_over_all_shards(live: Front) -> None:
    """The leases that fill a cap may sit in any shard."""
    await limit(live, in_flight_max=2)
    held = [await submit(live, concurrency_key=key) for key in ("a", "b")]
    task_id = await submit(live)
    assert len({shard_of(UUID(each)) for each in (*held, task_id)}) > 1
    await lease(live, held[0])
    assert (await explained(live, task_id))["binding"] is None
    await lease(live, held[1])
    entry = bound(await explained(live, task_id))
    assert entry["gate"] == "tenant_in_flight"
    assert entry["reason"] == "2 of the tenant's tasks are in flight, and 2 may be"
    assert entry["unblock"] == "duly tenants set default --in-flight-max ..."


async def test_a_concurrency_key_names_who_holds_it(live: Front) -> None:
    """One stuck task blocks a customer: which one, and at which worker?"""
    holder = await submit(live, **KEY)
    task_id = await submit(live, **KEY)
    other = await submit(live, concurrency_key="customer:2")
    held = await lease(live, holder)
    answer = await explained(live, task_id)
    entry = bound(answer)
    assert answer["binding"] == "concurrency_key"
    assert f"({holder} at w-1)" in entry["reason"]
    assert entry["unblock"] == f"duly tasks cancel {holder}"
    assert instant(answer["estimate_at"]) == held.lease_until
    assert (await explained(live, other))["binding"] is None


async def test_a_wide_key_names_only_a_few_of_its_holders(live: Front) -> None:
    """A hundred ids are no answer; the count is."""
    wide = KEY | {"concurrency_limit": HOLDERS_MAX + 2}
    for _ in range(HOLDERS_MAX + 2):
        await lease(live, await submit(live, **wide))
    entry = bound(await explained(live, await submit(live, **wide)))
    assert entry["reason"].startswith(f"{HOLDERS_MAX + 2} tasks with the key")
    assert entry["reason"].count(" at w-1") == HOLDERS_MAX


async def test_a_full_lane_is_seen_in_the_table_of_tickets(live: Front) -> None:
    """Workers live and are too slow: more of them would help."""
    task_id = await submit(live)
    pool = await pool_number(live)
    lane, ticket = Lane(live.tenant.id, pool, 1), Ticket(UUID(int=1), 0)
    await publish_tickets(live.database, [(lane, ticket)] * (LANE_DEPTH_MAX - 1))
    assert (await explained(live, task_id))["binding"] is None
    await publish_tickets(live.database, [(lane, ticket)])
    entry = bound(await explained(live, task_id))
    assert entry["gate"] == "lane_full"
    assert entry["unblock"] == "start more workers for the pool default"


async def test_nobody_sees_another_tenants_tickets(live: Front) -> None:
    """Tenant walls: a neighbour's full lane closes nothing here (I9)."""
    task_id = await submit(live)
    pool = await pool_number(live)
    lane, ticket = Lane(live.other.id, pool, 1), Ticket(UUID(int=1), 0)
    await publish_tickets(live.database, [(lane, ticket)] * LANE_DEPTH_MAX)
    assert (await explained(live, task_id))["binding"] is None


async def test_a_full_lane_in_memory_is_asked_of_the_process(live: Front) -> None:
    """Inside one process the tickets are in no table; of other tenants' tickets nothing is told."""
    task_id = await submit(live, **URL)
    asked: list[Lane] = []

    def depth(lane: Lane) -> int:
        asked.append(lane)
        return LANE_DEPTH_MAX

    async with live.database.tenant(live.tenant.id) as session:
        situation = await read_situation(session, live.tenant.id, UUID(task_id), depth)
    assert situation is not None
    facts = situation.facts
    assert (facts.lane_depth, facts.lane_depth_max) == (LANE_DEPTH_MAX, LANE_DEPTH_MAX)
    assert asked == [Lane(live.tenant.id, 0, 1), Lane(0, 0, 1)]
