"""What runs where, over HTTP: nodes, slots and workers, for those whom they concern."""

from uuid import UUID

import pytest

from duly.store.ownership import SLOT, Node, claim_assignments, keep_assignments
from tests.api.conftest import Front

LEASE_S, TICKET_S = 15.0, 10.0
NODE = Node(UUID(int=1), "alpha", "1.2.3", ("scheduler", "api"))
ADD_WORKER = """
INSERT INTO duly.workers (tenant, id, holder, pools, started_at, seen_at, expires_at)
VALUES ($1, $2, $3, '{default,mail}', duly.now(), duly.now(),
        duly.now() + make_interval(secs => $4))
"""
FORGET = "UPDATE duly.nodes SET expires_at = duly.now() - interval '1 second'"
LOSE = "UPDATE duly.ownership SET expires_at = duly.now() WHERE number = 1"


async def start_node(front: Front, slots: int) -> None:
    await keep_assignments(front.database, NODE, {}, LEASE_S, TICKET_S)
    await claim_assignments(front.database, NODE.id, SLOT, slots, {}, LEASE_S, TICKET_S)


async def add_worker(
    front: Front, name: str, tenant: int | None = None, expires_s: float = 60.0
) -> None:
    await front.database.fetch(
        ADD_WORKER, tenant or front.tenant.id, name, UUID(int=len(name)), expires_s
    )


async def test_nodes_are_listed_with_the_slots_they_hold(front: Front) -> None:
    """Which process is still the old version, and which one does the work?"""
    await start_node(front, 3)
    (node,) = (await front.call("GET", "/v1/nodes", key=front.admin)).json["items"]
    assert (node["name"], node["version"]) == ("alpha", "1.2.3")
    assert (node["roles"], node["slots"], node["is_live"]) == (["scheduler", "api"], 3, True)
    assert node["started_at"] <= node["seen_at"] < node["expires_at"]
    await front.database.fetch(FORGET)
    (node,) = (await front.call("GET", "/v1/nodes", key=front.admin)).json["items"]
    assert node["is_live"] is False


async def test_metrics_name_tenants_only_to_operators_of_the_installation(front: Front) -> None:
    """Anybody who reaches the port could list the customers, and see how busy each of them is."""
    front.door.metrics.show_in_flight({"acme": 2})
    named, merged = 'duly_in_flight{tenant="acme"} 2.0', 'duly_in_flight{tenant="(all)"} 2.0'
    for key, shown in (
        (front.admin, named),
        (None, merged),
        (front.other_admin, merged),
        (front.producer, merged),
    ):
        reply = await front.call("GET", "/metrics", key=key)
        assert (reply.status, shown in reply.body.decode()) == (200, True)
        assert shown == named or "acme" not in reply.body.decode()
    assert (await front.call("GET", "/metrics", key=front.admin[:-1] + "x")).status == 401


async def test_nodes_come_by_page(front: Front) -> None:
    """A crash loop leaves thousands of them."""
    for number in (3, 1, 2):
        node = Node(UUID(int=number), f"n{number}", "1", ())
        await keep_assignments(front.database, node, {}, LEASE_S, TICKET_S)
    first = (await front.call("GET", "/v1/nodes?limit=2", key=front.admin)).json
    assert [node["name"] for node in first["items"]] == ["n1", "n2"]
    path = f"/v1/nodes?limit=2&cursor={first['next_cursor']}"
    rest = (await front.call("GET", path, key=front.admin)).json
    assert [node["name"] for node in rest["items"]] == ["n3"]
    assert rest["next_cursor"] is None


async def test_every_shard_is_in_one_slot_with_its_owner(front: Front) -> None:
    """A slot that nobody owns is work that nobody dispatches; it must be seen at once."""
    await start_node(front, 2)
    await front.database.fetch(LOSE)
    found = (await front.call("GET", "/v1/shards?limit=200", key=front.admin)).json["items"]
    shards = [
        shard for slot in found for shard in range(slot["first_shard"], slot["last_shard"] + 1)
    ]
    assert shards == list(range(1024))
    assert [slot["slot"] for slot in found] == list(range(64))
    owned = [(slot["node"], slot["epoch"], slot["is_owned"]) for slot in found[:3]]
    assert owned == [("alpha", 1, True), ("alpha", 1, False), (None, 0, False)]
    first = (await front.call("GET", "/v1/shards", key=front.admin)).json
    rest = await front.call("GET", f"/v1/shards?cursor={first['next_cursor']}", key=front.admin)
    assert first["items"] + rest.json["items"] == found


async def test_live_workers_of_the_tenant_are_listed(front: Front) -> None:
    """Why does nothing run? Because no worker is there: a dead one must not hide that."""
    for name in ("b", "aa", "ccc"):
        await add_worker(front, name)
    await add_worker(front, "dead", expires_s=-1)
    await add_worker(front, "theirs", tenant=front.other.id)
    page = (await front.call("GET", "/v1/workers?limit=2", key=front.worker)).json
    assert [worker["id"] for worker in page["items"]] == ["aa", "b"]
    worker = page["items"][0]
    assert (worker["pools"], worker["holder"]) == (["default", "mail"], str(UUID(int=2)))
    assert worker["started_at"] <= worker["seen_at"] < worker["expires_at"]
    path = f"/v1/workers?limit=2&cursor={page['next_cursor']}"
    rest = (await front.call("GET", path, key=front.admin)).json
    assert [worker["id"] for worker in rest["items"]] == ["ccc"]
    theirs = (await front.call("GET", "/v1/workers", key=front.other_admin)).json
    assert [worker["id"] for worker in theirs["items"]] == ["theirs"]


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/shards", "/v1/workers"])
async def test_operators_routes_are_for_operators(front: Front, path: str) -> None:
    """Names and versions of machines are nobody's business but theirs."""
    of_a_tenant = 200 if path == "/v1/workers" else 403
    for key, status in (
        (front.admin, 200),
        (front.operator, of_a_tenant),
        (front.other_admin, of_a_tenant),
        (front.producer, 403),
        (None, 401),
    ):
        assert (await front.call("GET", path, key=key)).status == status
    worker = await front.call("GET", path, key=front.worker)
    assert worker.status == (200 if path == "/v1/workers" else 403)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/nodes?cursor=x",
        "/v1/nodes?limit=0",
        "/v1/shards?cursor=63",
        "/v1/shards?limit=201",
        "/v1/workers?cursor=%00",
        "/v1/workers?cursor=",
        "/v1/workers?pool=x",
    ],
)
async def test_a_wrong_query_is_refused(front: Front, path: str) -> None:
    """A parameter that is not understood must not be taken for none."""
    reply = await front.call("GET", path, key=front.admin)
    assert (reply.status, reply.code) == (400, "invalid_query")
