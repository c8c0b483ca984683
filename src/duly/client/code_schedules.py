"""The schedules that a worker's code says: planned, and created or changed when it starts.

| event | what happens |
|---|---|
| the server is away | tried again, as long as the worker is not stopped |
| several workers start at once | each makes the same of it; one of them wins a creation |
| the key may not write schedules | the worker does not start, and says what to do |
| a schedule is gone from the code | it stays: other programs may have made it |
"""

import asyncio
from collections.abc import Sequence

from duly.client.asynchronous import AsyncClient
from duly.client.errors import ApiError, Forbidden, Unavailable, Unreachable
from duly.client.logs import get_logger
from duly.client.registry import CodeSchedule
from duly.client.schedule_plan import ScheduleStep
from duly.client.server import Server
from duly.client.synchronous import Client
from duly.client.wire import jittered
from duly.domain.errors import ConfigurationError

PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0


def plan_schedules(server: Server, schedules: Sequence[CodeSchedule]) -> list[ScheduleStep]:
    with Client(*server) as client:
        return [client.schedules.plan(each.name, each.call, **each.options) for each in schedules]


async def apply_schedules(server: Server, schedules: Sequence[CodeSchedule]) -> None:
    log = get_logger()
    async with AsyncClient(*server) as client:
        for each in schedules:
            pause_s = PAUSE_FIRST_S
            while True:
                try:
                    step = await client.schedules.plan(each.name, each.call, **each.options)
                    if step.action != "unchanged":
                        await client.schedules.upsert(each.name, each.call, **each.options)
                        fields = [change.field for change in step.changes]
                        log.info(
                            "schedule written", name=each.name, action=step.action, fields=fields
                        )
                    break
                except Forbidden as error:
                    problem = f"the schedule {each.name!r} cannot be written: {error.detail}"
                    advice = "use an operator's key, or Worker(apply_schedules=False)"
                    raise ConfigurationError(problem=f"{problem}; {advice}") from error
                except (Unreachable, Unavailable) as error:
                    log.warning("schedules cannot be written", error=str(error))
                    await asyncio.sleep(jittered(pause_s))
                    pause_s = min(pause_s * 2, PAUSE_MAX_S)
                except ApiError as error:
                    problem = f"the schedule {each.name!r} is refused: {error}"
                    raise ConfigurationError(problem=problem) from error
