"""`duly status` against a real front door, for keys that see all, and for keys that see little."""

from typing import Any

from duly.cli.status import (
    BEHIND_S,
    COUNTED_MAX,
    COUNTED_MIN,
    OWN,
    TENANTS_SHOWN,
    count_max,
    counted,
    history_lines,
    problems_of,
    with_bounds,
    worker_lines,
)
from duly.store.cluster import COUNT_MAX
from duly.store.tenants import create_tenant
from tests.api.conftest import Front
from tests.api.letters import fail
from tests.cli.conftest import CommandLine


async def test_one_screen_tells_what_waits_failed_and_runs(duly: CommandLine, front: Front) -> None:
    """The page that is read first, at night, by somebody who is in a hurry."""
    await duly("tasks", "submit", "x", "--priority", 9)
    await duly("tasks", "submit", "x", "--delay", "1h")
    await fail(front)
    status = await duly.json("status")
    assert status["nodes"] == []
    assert status["slots"]["count"] == status["slots"]["owned"] + len(status["slots"]["ownerless"])
    tenants = {each["tenant"]: each for each in status["tenants"]}
    assert list(tenants) == ["default", "other"]
    bands = {each["band"]: each for each in tenants["default"]["bands"]}
    assert (bands["high"]["ready"], bands["normal"]["scheduled"]) == (1, 1)
    assert bands["high"]["oldest_ready_s"] > 0
    assert (tenants["default"]["dead_letters"], tenants["other"]["dead_letters"]) == (1, 0)
    screen = await duly("status")
    for word in ("nodes: 0 live", "slots: ", "lag p50", "lag p99", "drain", "oldest ready"):
        assert word in screen
    assert "open breakers: 0" in screen
    row = next(line for line in screen.splitlines() if line.startswith("default  high"))
    assert row.split()[2:4] == ["1", "0"]


async def test_a_key_of_one_tenant_sees_that_tenant(duly: CommandLine, front: Front) -> None:
    """An error instead would hide from a producer what is their own."""
    await create_tenant(front.database, "third")
    duly.use_key(front.operator)
    status = await duly.json("status")
    assert [each["tenant"] for each in status["tenants"]] == [OWN]
    assert status["nodes"] is None
    duly.use_key(front.producer)
    status = await duly.json("status")
    assert (status["nodes"], status["slots"]) == (None, None)
    screen = await duly("status")
    assert "nodes" not in screen
    assert OWN in screen
    duly.use_key(front.worker)
    assert (await duly.problem("status"))["code"] == "forbidden"
    duly.use_key(front.admin)
    status = await duly.json("status", "--tenant", "third")
    assert [each["tenant"] for each in status["tenants"]] == ["third"]
    assert (await duly.problem("status", "--tenant", "nobody"))["code"] == "not_found"


async def test_more_tenants_than_fit_are_said_to_be_there(duly: CommandLine, front: Front) -> None:
    """A screen that silently leaves some out looks like one on which all is well."""
    for number in range(TENANTS_SHOWN):
        await create_tenant(front.database, f"t{number:02}")
    status = await duly.json("status")
    assert (len(status["tenants"]), status["has_more_tenants"]) == (TENANTS_SHOWN, True)
    assert f"the first {TENANTS_SHOWN} are shown" in await duly("status")


def test_a_count_that_was_cut_short_says_so() -> None:
    """10,000 on the screen while a million wait is a wrong number."""
    assert counted(COUNT_MAX - 1, COUNT_MAX) == COUNT_MAX - 1
    assert counted(COUNT_MAX, COUNT_MAX) == "10,000 or more"


def test_a_drain_of_more_than_was_counted_says_so() -> None:
    """Two minutes on the screen while the backlog is of hours sends somebody to bed."""
    band = {"ready": 1000, "scheduled": 0}
    tenant = {"count_max": 1000, "drain_s": 90.0, "dead_letters": 0, "bands": [band]}
    assert with_bounds(tenant)["drain"] == "1m 30s or more"
    assert with_bounds(tenant | {"count_max": 1001})["drain"] == "1m 30s"


async def test_many_tenants_are_counted_for_the_price_of_one(
    duly: CommandLine, front: Front
) -> None:
    """Twenty backlogs counted to the full make a screen that nobody waits for."""
    assert [count_max(tenants) for tenants in (0, 1, 4, 1000)] == [
        COUNTED_MAX,
        COUNTED_MAX,
        COUNTED_MAX // 4,
        COUNTED_MIN,
    ]
    status = await duly.json("status")
    assert {each["count_max"] for each in status["tenants"]} == {COUNTED_MAX // 2}
    assert COUNTED_MAX == COUNT_MAX, "one tenant alone is counted as far as the server goes"
    for most, code in ((0, 400), (COUNT_MAX + 1, 400), (1, 200)):
        reply = await front.call("GET", f"/v1/stats/now?count_max={most}")
        assert reply.status == code


async def test_what_is_wrong_comes_first(duly: CommandLine, front: Front) -> None:
    """Below three tables, a pool that nothing serves is found after the incident."""
    await duly("tasks", "submit", "x", "--pool", "orphan")
    status = await duly.json("status")
    (pool,) = [each for tenant in status["tenants"] for each in tenant["pools"]]
    assert (pool["name"], pool["workers"]) == ("orphan", 0)
    screen = await duly("status")
    problems = screen.partition("\n\n")[0]
    assert problems.startswith(f"problems: {len(status['problems'])}\n")
    assert "- no live node has the role api, scheduler, executor, maintenance" in problems
    assert "- default: pool orphan has due tasks (" in problems
    assert "and no worker" in problems
    assert "workers: 0\n" in screen
    lease = {"worker_id": "w1", "pools": ["orphan"], "max": 1, "wait_s": 0}
    assert (await front.call("POST", "/v1/worker/lease", lease, key=front.worker)).status == 200
    await duly("tasks", "submit", "x", "--pool", "orphan")
    screen = await duly("status")
    assert "no worker" not in screen
    assert "workers: 1\n" in screen
    assert next(line for line in screen.splitlines() if "orphan" in line).split()[2] == "1"
    status = await duly.json("status")
    assert status["tenants"][0]["workers"] == {
        "count": 1,
        "has_more": False,
        "by_pool": {"orphan": 1},
    }
    duly.use_key(front.producer)
    assert (await duly.json("status"))["tenants"][0]["workers"] is None


def test_problems_are_told_in_a_sentence_each() -> None:
    """A number that turns red says nothing to one who sees the screen for the first time."""
    node = {"name": "n1", "roles": ["api", "scheduler", "executor"], "is_live": True}
    up = {"kind": "postgres", "address": "", "problem": None, "falls_back": True}
    down = {"kind": "redis", "address": "redis://r:1", "problem": "refused", "falls_back": False}
    breaker = {"kind": "host", "name": "h", "open_until": "2026-11-18T12:00:00Z", "reason": "500s"}
    tenant = {
        "tenant": "acme",
        "count_max": 10,
        "breakers": [breaker],
        "pools": [
            {"name": "slow", "workers": 2, "oldest_ready_s": BEHIND_S},
            {"name": "quick", "workers": 2, "oldest_ready_s": BEHIND_S - 1},
        ],
        "bands": [
            {"ready": 7, "oldest_ready_s": BEHIND_S},
            {"ready": 4, "oldest_ready_s": None},
        ],
        "submitted_per_s": 3.0,
        "started_per_s": 0.0,
        "ended_per_s": 1.0,
        "workflow_overdue_s": BEHIND_S,
    }
    status = {
        "nodes": [
            {**node, "failing": {"scheduler": "no connection"}, "carrier": down},
            {**node, "name": "n2", "failing": {}, "carrier": up},
            {**node, "name": "older", "failing": {}, "carrier": None},
            {
                **node,
                "name": "gone",
                "roles": ["maintenance"],
                "is_live": False,
                "failing": {},
                "carrier": down,
            },
        ],
        "slots": {"count": 64, "owned": 62, "ownerless": [1, 2]},
        "tenants": [tenant],
    }
    assert list(problems_of(status)) == [
        "no live node has the role maintenance",
        "node n1: role scheduler fails: no connection",
        "node n1: carrier redis://r:1 is down, tasks wait until it is up: refused",
        "nodes have different carriers: postgres, redis redis://r:1",
        "2 of 64 slots have no owner",
        "acme: the breaker of host h is open until 2026-11-18 12:00:00Z: 500s",
        "acme: pool slow is 1m 0s behind, with 2 workers",
        "acme: workflows have had something to do for 1m 0s, and no scheduler does it",
        "acme: 11 or more due, and nothing started lately",
    ]
    calm = {**tenant, "breakers": [], "pools": [], "bands": [], "tenant": OWN}
    calm["workflow_overdue_s"] = 0.0
    assert list(problems_of({"nodes": None, "slots": None, "tenants": [calm]})) == []


def test_a_backlog_that_grows_is_told() -> None:
    """How many wait says nothing of whether it gets worse."""
    growing: dict[str, Any] = {
        "tenant": "acme",
        "count_max": 10,
        "breakers": [],
        "pools": [],
        "bands": [{"ready": 7, "oldest_ready_s": BEHIND_S}, {"ready": 4, "oldest_ready_s": None}],
        "submitted_per_s": 3.0,
        "started_per_s": 1.0,
        "ended_per_s": 1.0,
        "workflow_overdue_s": 0.0,
    }
    assert list(problems_of({"nodes": None, "slots": None, "tenants": [growing]})) == [
        "acme: the backlog grows by 120 tasks a minute: 180 come, 60 end"
    ]
    for calming in ({"ended_per_s": 2.9}, {"bands": [{"ready": 9, "oldest_ready_s": 1.0}]}):
        well = {**growing, **calming}
        assert list(problems_of({"nodes": None, "slots": None, "tenants": [well]})) == []


def test_a_watch_draws_what_it_has_seen() -> None:
    """Whether a backlog grows or shrinks cannot be seen in one number."""
    looks = [
        {"ready": ready, "lag_p99_s": lag}
        for ready, lag in ((0, None), (500, 0.5), (1000, None), (1, 1.0))
    ]
    title, head, ready, lag = list(history_lines(looks, 2.0))[1:]
    assert title == "the last 4 looks, one each 2s"
    assert head.split() == ["figure", "now", "over", "time"]
    assert ready.split() == ["ready", "1", "·▄█▁"]
    assert lag.split() == ["lag", "p99", "1s", "·▄·█"]


def test_pools_with_idle_workers_stand_below_those_that_wait() -> None:
    """Whether a pool has a worker at all is asked before anything is submitted to it."""
    pools = [{"name": name, "workers": 0, "oldest_ready_s": s} for name, s in (("a", 1), ("b", 9))]
    workers = {"count": 2, "has_more": True, "by_pool": {"b": 1, "idle": 2}}
    acme = {"tenant": "acme", "pools": pools, "workers": workers}
    unknown: dict[str, Any] = {"tenant": "other", "pools": [], "workers": None}
    lines = [line.split() for line in worker_lines([acme, unknown])]
    assert lines[1] == ["workers:", "2", "or", "more"]
    assert [line[1] for line in lines[3:]] == ["b", "a", "idle"]
    assert lines[-1] == ["acme", "idle", "2", "-"]
    assert list(worker_lines([unknown])) == []
