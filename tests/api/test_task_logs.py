"""Logs of attempts over HTTP: only their own worker writes them, only their tenant reads them."""

import asyncio
from typing import Any

import msgspec
import pytest

from duly.api.task_logs import LINE_CHARACTERS_MAX
from duly.store.task_logs import CHUNKS_MAX, LOOK_S, LogQuota, delete_old_logs
from duly.testing.clock import MovableClock
from tests.api.conftest import Front, Reply
from tests.api.test_worker_protocol import lease, ready_task, settle

AT = "2026-01-01T00:00:00Z"


async def write(
    front: Front,
    task: dict[str, Any],
    *texts: str,
    worker_id: str = "w1",
    seq: int = 0,
    **more: Any,
) -> Reply:
    lines = [{"at": AT, "text": text} for text in texts]
    chunk = {"id": task["id"], "fence": task["fence"], "seq": seq, "lines": lines, **more}
    body = {"worker_id": worker_id, "chunks": [chunk]}
    return await front.call("POST", "/v1/worker/logs", body, key=front.worker)


async def read(front: Front, task_id: str, query: str = "", key: str | None = None) -> Reply:
    return await front.call("GET", f"/v1/tasks/{task_id}/logs{query}", key=key or front.producer)


async def test_lines_are_read_while_the_task_runs_and_after(front: Front) -> None:
    """What a handler said was gone with its process."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    assert (await write(front, task, "one", "two")).json == {"stored": 1}
    page = (await read(front, task_id)).json
    assert [item["text"] for item in page["items"]] == ["one", "two"]
    assert (page["after"], page["is_over"]) == (f"{task['fence']}.0", False)
    await settle(front, task)
    assert (await write(front, task, "last words", seq=1)).json == {"stored": 1}
    rest = (await read(front, task_id, f"?after={page['after']}")).json
    assert [item["text"] for item in rest["items"]] == ["last words"]
    assert rest["is_over"]
    assert rest["items"][0]["level"] == "info"


async def test_a_chunk_that_is_sent_twice_is_stored_once(front: Front) -> None:
    """An answer that was lost would double the lines."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    await write(front, task, "one")
    assert (await write(front, task, "one")).json == {"stored": 0}
    assert len((await read(front, task_id)).json["items"]) == 1


async def test_only_the_worker_of_the_attempt_writes(front: Front) -> None:
    """A worker that lost its lease, or never had it, could forge what another one said."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    assert (await write(front, task, "forged", worker_id="w2")).json == {"stored": 0}
    assert (await write(front, {**task, "fence": 7}, "forged")).json == {"stored": 0}
    assert (await read(front, task_id)).json["items"] == []


async def test_another_tenant_reads_nothing(front: Front) -> None:
    """Logs hold what payloads hold."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    await write(front, task, "secret")
    assert (await read(front, task_id, key=front.other_producer)).status == 404


@pytest.mark.parametrize(
    "more",
    [
        {"seq": CHUNKS_MAX},
        {"seq": -1},
        {"lines": []},
        {"lines": [{"at": AT, "text": "x" * (LINE_CHARACTERS_MAX + 1)}]},
        {"lines": [{"at": AT, "text": "x" * LINE_CHARACTERS_MAX}] * 5},
        {"lines": [{"at": AT, "text": "x", "level": "loud"}]},
        {"lines": [{"at": "yesterday", "text": "x"}]},
    ],
)
async def test_what_is_out_of_bounds_is_refused(front: Front, more: dict[str, Any]) -> None:
    """A handler in a loop would fill the disk."""
    await ready_task(front)
    (task,) = await lease(front)
    assert (await write(front, task, "x", **more)).status in (400, 422)


@pytest.mark.parametrize("after", ["x", "1", "9999999999.1", "-1.0"])
async def test_a_position_that_is_none_is_refused(front: Front, after: str) -> None:
    """Bad input never gives a 5xx."""
    task_id = await ready_task(front)
    assert (await read(front, task_id, f"?after={after}")).status in (400, 422)


async def test_a_follower_waits_for_the_first_line(front: Front) -> None:
    """Polling as fast as one can is what people do otherwise."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    following = asyncio.ensure_future(read(front, task_id, "?follow=20"))
    await write(front, task, "at last")
    page = (await following).json
    assert [item["text"] for item in page["items"]] == ["at last"]
    await settle(front, task)
    done = (await read(front, task_id, f"?follow=20&after={page['after']}")).json
    assert (done["items"], done["is_over"]) == ([], True)


async def test_a_follower_hears_the_last_lines_of_a_short_attempt(front: Front) -> None:
    """A worker sends lines half a second after they were logged, and the end of the task at once: a
    follower of a short handler was told that it had logged nothing."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    await settle(front, task)
    following = asyncio.ensure_future(read(front, task_id, "?follow=20"))
    await write(front, task, "last words")
    page = (await following).json
    assert [item["text"] for item in page["items"]] == ["last words"]
    assert not page["is_over"]
    done = (await read(front, task_id, f"?follow=20&after={page['after']}")).json
    assert (done["items"], done["is_over"]) == ([], True)
    assert (await read(front, task_id)).json["is_over"]


async def test_an_erasure_takes_the_logs_along(front: Front) -> None:
    """Lines name customers as often as payloads do."""
    task_id = await ready_task(front)
    (task,) = await lease(front)
    await write(front, task, "mail to ann@example.org")
    await settle(front, task)
    erased = await front.call("POST", "/v1/erasures", {"task": task_id})
    assert erased.json["erased"] == 1
    assert (await front.database.fetch("SELECT id FROM duly.task_logs")) == []


async def test_past_the_quota_of_its_day_a_tenants_lines_are_dropped(
    moving_front: tuple[Front, MovableClock],
) -> None:
    """A handler that logs in a loop fills the disk that everybody shares."""
    front, clock = moving_front
    task_id = await ready_task(front)
    (task,) = await lease(front)
    size = len(msgspec.json.encode([{"at": AT, "level": "info", "text": "x" * 100}]))
    elsewhere = LogQuota(front.database, front.environment, 0)
    await elsewhere.look(front.tenant.id, 0.0)
    elsewhere.usages[front.tenant.id].untold = size
    await elsewhere.look(front.tenant.id, 0.0)
    front.door.log_quota.quota = 2 * size
    assert (await write(front, task, "x" * 100)).json == {"stored": 1}
    over = {"stored": 0, "is_over_quota": True}
    assert (await write(front, task, "x", seq=1)).json == over
    clock.advance(LOOK_S)
    assert (await write(front, task, "x", seq=1)).json == over
    assert len((await read(front, task_id)).json["items"]) == 1
    clock.advance(86400.0)
    assert await front.door.log_quota.has_room(front.tenant.id, size), "a new day"
    assert await front.door.log_quota.has_room(front.other.id, 2 * size), "of each tenant"
    await delete_old_logs(front.database, 10)
    assert len(await front.database.fetch("SELECT FROM duly.log_usage WHERE bytes > 0")) == 0
