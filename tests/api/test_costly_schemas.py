"""A tenant's schema against the server that runs it: whatever it says, the others are served."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from duly.api import schema_checks
from duly.domain.limits import PAYLOAD_BYTES_MAX
from duly.testing.clock import ManualClock
from duly.validation import process
from duly.validation.process import CheckProcess
from tests.api.conftest import Front, Reply
from tests.loop_watch import loop_watched
from tests.processes import is_alive

TYPE = "/v1/task-types/costly"
OPTIONS = {"anyOf": [{"const": f"c{number}"} for number in range(1500)]}
RUNAWAY = {"pattern": "((a{0,40}){0,40}){0,40}x"}
TASK: dict[str, Any] = {"type": "costly", "delay_s": 3600}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one of processor time; on a busy machine it takes as long as it takes."""
    monkeypatch.setattr(process, "ANSWER_S_MAX", 60.0)


async def describe(front: Front, schema: Any) -> None:
    reply = await front.call("PUT", TYPE, {"schema": schema})
    assert reply.status == 200, reply.body


async def submit(front: Front, payload: Any, **how: Any) -> Reply:
    return await front.call("POST", "/v1/tasks", TASK | {"payload": payload}, **how)


@contextlib.asynccontextmanager
async def others_served(front: Front) -> AsyncIterator[None]:
    """Another tenant submits all the while, to the same type name and to one with a pattern."""
    statuses: list[int] = []
    small: dict[str, Any] = {"schema": {"patternProperties": {"^[a-z]{1,300}$": {}}}}
    await front.call("PUT", "/v1/task-types/other", small, key=front.other_admin)

    async def go_on() -> None:
        while True:
            for name in ("costly", "other"):
                task = {"type": name, "delay_s": 3600, "payload": {"a": 1}}
                reply = await front.call("POST", "/v1/tasks", task, key=front.other_producer)
                statuses.append(reply.status)
            await asyncio.sleep(0.01)

    going = asyncio.create_task(go_on())
    try:
        while not statuses:  # noqa: ASYNC110 (a list has no signal)
            await asyncio.sleep(0.005)
        yield
    finally:
        going.cancel()
    assert set(statuses) == {201}


@pytest.mark.parametrize(
    ("schema", "payload", "pointer", "words"),
    [
        ({"items": OPTIONS}, ["x"] * 15_000, "/payload/0", "is not valid under any"),
        ({"anyOf": [{"items": OPTIONS}]}, ["x"] * 15_000, "/payload", "does not fit the schema"),
        (RUNAWAY, "a" * 2_000, "/payload", "takes too long"),
        (RUNAWAY, "a" * 60_000, "/payload", "takes too long"),
    ],
)
async def test_a_costly_check_is_refused_and_holds_up_nobody(
    front: Front, schema: Any, payload: Any, pointer: str, words: str
) -> None:
    """Eight gigabytes and the end of the process; minutes in which no route answers."""
    await describe(front, schema)
    async with others_served(front), loop_watched():
        reply = await submit(front, payload)
    assert (reply.status, reply.code) == (422, "invalid"), reply.body
    (error,) = reply.json["errors"]
    assert error["pointer"] == pointer
    assert words in error["detail"]


async def test_a_costly_check_that_ends_in_time_is_answered(front: Front) -> None:
    """A rule against attacks that refuses honest schemas is switched off."""
    await describe(front, {"items": OPTIONS, "uniqueItems": True})
    fits = [f"c{number}" for number in range(1500)]
    assert (await submit(front, fits)).status == 201
    reply = await submit(front, [*fits, "c0"])
    assert (reply.status, reply.json["errors"][0]["pointer"]) == (422, "/payload")
    await describe(front, {"patternProperties": {r"^\p{L}{1,100}$": {"type": "integer"}}})
    assert (await submit(front, {"ä": 1})).status == 201
    assert (await submit(front, {"ä": "x"})).json["errors"][0]["pointer"] == "/payload/ä"


async def test_a_tenant_that_exceeded_a_limit_waits_and_no_other_does(
    still_front: tuple[Front, ManualClock],
) -> None:
    """A loop of such calls would hold every process, one second at a time."""
    front, clock = still_front
    await describe(front, RUNAWAY)
    await front.call("PUT", TYPE, {"schema": RUNAWAY}, key=front.other_admin)
    assert (await submit(front, "a" * 60_000)).status == 422
    paused = await submit(front, "x")
    assert (paused.status, paused.code) == (429, "rate_limited")
    assert 0 < int(paused.headers["Retry-After"]) <= schema_checks.PAUSE_S
    # What needs no process goes on, for the same tenant.
    plain = {"type": "plain", "delay_s": 3600, "payload": {}}
    assert (await front.call("POST", "/v1/tasks", plain)).status == 201
    assert (await submit(front, "x", key=front.other_producer)).status == 201
    clock.advance(schema_checks.PAUSE_S + 0.1)
    assert (await submit(front, "x")).status == 201


async def test_a_batch_travels_together_and_names_what_is_wrong(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand round trips to a process make a batch slower than a thousand calls."""
    asked: list[int] = []
    ask = CheckProcess.ask_once

    def counted(self: CheckProcess, request: Any) -> Any:
        asked.append(len(request.payloads))
        return ask(self, request)

    monkeypatch.setattr(CheckProcess, "ask_once", counted)
    await describe(front, {"uniqueItems": True})
    asked.clear()
    tasks = [TASK | {"payload": [number, 0]} for number in range(1, 1001)]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks})
    assert (reply.status, asked) == (201, [1000])
    tasks[7] = TASK | {"payload": [0, 0]}
    tasks[9] = TASK | {"payload": [1, 1]}
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": tasks})
    pointers = [error["pointer"] for error in reply.json["errors"]]
    assert (reply.status, pointers) == (422, ["/tasks/7/payload", "/tasks/9/payload"])


async def test_a_cheap_batch_lets_others_have_their_turn(front: Front) -> None:
    """What is quick for one payload is a second for a thousand."""
    await describe(front, {"items": {"allOf": [{"type": "integer"}] * 30}})
    numbers = list(range(2000))
    tasks = [TASK | {"payload": numbers} for _ in range(100)]
    raw = msgspec.json.encode({"tasks": tasks})
    reply = await front.call("POST", "/v1/tasks/batch", raw=raw)
    assert reply.status == 201


async def test_a_payload_that_is_too_long_meets_no_schema(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of sixteen megabytes, to find that they were never welcome."""
    await describe(front, {"uniqueItems": True})
    monkeypatch.setattr(CheckProcess, "check", None)
    reply = await submit(front, ["x" * PAYLOAD_BYTES_MAX])
    (error,) = reply.json["errors"]
    assert (reply.status, error["pointer"]) == (422, "/payload")
    assert "65536 is the most" in error["detail"]
    tasks = {"tasks": [TASK | {"payload": ["x" * PAYLOAD_BYTES_MAX]}]}
    reply = await front.call("POST", "/v1/tasks/batch", tasks)
    assert [error["pointer"] for error in reply.json["errors"]] == ["/tasks/0/payload"]


async def test_a_schema_beyond_every_bound_is_refused_when_it_is_described(front: Front) -> None:
    """Taken now and refused at every submit, it is found out at night."""
    patterns = [{"pattern": f"^\\p{{L}}{{1,{number}}}$"} for number in range(60, 120)]
    async with loop_watched():
        reply = await front.call("PUT", TYPE, {"schema": {"allOf": patterns}})
    (error,) = reply.json["errors"]
    assert (reply.status, error["pointer"]) == (422, "/schema")
    assert "to compile" in error["detail"]
    assert (await front.call("GET", TYPE)).status == 404


async def test_a_schedule_meets_the_same_limits(front: Front) -> None:
    """Checked while the call holds a connection, ten of them stop everything."""
    await describe(front, RUNAWAY)
    schedule = {"name": "s", "every_s": 3600, "task": {"type": "costly", "payload": "a" * 60_000}}
    async with loop_watched():
        reply = await front.call("POST", "/v1/schedules", schedule)
    (error,) = reply.json["errors"]
    assert (reply.status, error["pointer"]) == (422, "/task/payload")
    assert "takes too long" in error["detail"]


async def test_too_many_costly_checks_of_one_tenant_are_put_off(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that waits holds its body."""
    monkeypatch.setattr(schema_checks, "TENANT_WAITING_MAX", 2)
    await describe(front, {"items": OPTIONS, "uniqueItems": True})
    payload = [f"c{number}" for number in range(1500)]
    replies = await asyncio.gather(*(submit(front, payload) for _ in range(6)))
    assert {reply.status for reply in replies} == {201, 503}
    late = next(reply for reply in replies if reply.status == 503)
    assert late.code == "overloaded"
    assert "Retry-After" in late.headers
    assert front.door.rules.checks.lines == {}


async def test_a_door_that_closes_leaves_no_process(front: Front) -> None:
    """What runs on behind a stopped server runs on for ever."""
    await describe(front, {"uniqueItems": True})
    assert (await submit(front, [1])).status == 201
    checks = front.door.rules.checks
    pids = [process.child.pid for process in checks.processes if process.child is not None]
    assert pids
    await checks.close()
    assert not any(is_alive(pid) for pid in pids)


async def test_a_stop_refuses_checks_that_run_or_wait_for_now(front: Front) -> None:
    """A 422 for a check that the stop ended is final, and a 500 leaves a traceback in the log."""
    await describe(front, RUNAWAY)
    checks = front.door.rules.checks
    calls = [asyncio.create_task(submit(front, "a" * 60_000)) for _ in range(3)]
    while sum(line.calls for line in checks.lines.values()) < 3:  # noqa: ASYNC110 (no signal)
        await asyncio.sleep(0.001)
    await checks.close()
    statuses = {reply.status for reply in await asyncio.gather(*calls)}
    assert statuses == {503}
