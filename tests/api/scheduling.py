"""Verbs for schedules at the front door: define one, let what is due fire, read its ledger."""

from typing import Any

from duly.domain.recurrence import Recurrence
from duly.store.fire_schedules import look_ahead
from duly.store.schedules import read_schedules
from tests.api.conftest import Front

SCHEDULES = "/v1/schedules"
HOURLY: dict[str, Any] = {"name": "report", "every_s": 3600, "task": {"type": "report.write"}}
ROUNDS_MAX = 1000


async def define(front: Front, **more: Any) -> dict[str, Any]:
    """Every hour from now on, unless another rule is given."""
    asked = HOURLY | more
    if "cron" in more:
        del asked["every_s"]
    reply = await front.call("POST", SCHEDULES, asked)
    assert reply.status == 201, reply.body
    made: dict[str, Any] = reply.json
    return made


def path_of(schedule: dict[str, Any], *more: str) -> str:
    return "/".join([SCHEDULES, schedule["id"], *more])


async def read(front: Front, schedule: dict[str, Any]) -> dict[str, Any]:
    reply = await front.call("GET", path_of(schedule))
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


async def fire_due(front: Front) -> None:
    """What the schedulers do, until nothing is due."""
    schedule_firer = front.door.scheduling.schedule_firer
    for _ in range(ROUNDS_MAX):
        soon = await look_ahead(front.database, range(1024), 0.0, 60.0, 1000, 1000)
        if not soon:
            return
        found = await read_schedules(front.database, [each.id for each in soon])
        reckoned = [(each, each.recurrence()) for each in found]
        readable = [(each, rule) for each, rule in reckoned if isinstance(rule, Recurrence)]
        await schedule_firer.fire(front.database, await schedule_firer.plan(readable))
    raise AssertionError("a schedule stays due for ever")


async def ledger(front: Front, schedule: dict[str, Any]) -> list[dict[str, Any]]:
    """Oldest first."""
    reply = await front.call("GET", path_of(schedule, "occurrences") + "?limit=200")
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["items"]
    return found[::-1]


async def verdicts(front: Front, schedule: dict[str, Any]) -> list[str]:
    return [entry["verdict"] for entry in await ledger(front, schedule)]
