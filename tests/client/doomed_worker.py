"""A worker that kills itself, as `kill -9` would, at one moment of its first task.

`python -m tests.client.doomed_worker MOMENT '{"pools": ["p"], ...}'`
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum

from duly import Context, Worker
from duly.client import session
from duly.client.leased_tasks import LeasedTask, LeaseRequest, SettledItem, Settlement
from duly.client.worker_api import WorkerApi
from tests.client.worker_process import say


class Moment(StrEnum):
    """Between every two steps that others can see: the lease, the effect, the settlement."""

    AFTER_LEASE = "after_lease"
    IN_HANDLER = "in_handler"
    AFTER_EFFECT = "after_effect"
    AFTER_SETTLE = "after_settle"


def die_at(moment: Moment) -> None:
    if moment == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)


class DoomedDesk(WorkerApi):
    async def lease(self, request: LeaseRequest) -> list[LeasedTask]:
        tasks = await super().lease(request)
        if tasks:
            die_at(Moment.AFTER_LEASE)
        return tasks

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettledItem]:
        die_at(Moment.AFTER_EFFECT)
        items = await super().settle(settlements)
        die_at(Moment.AFTER_SETTLE)
        return items


def main() -> None:
    session.WorkerApi = DoomedDesk  # type: ignore[attr-defined]
    worker = Worker(**json.loads(sys.argv[2]))

    @worker.task("wait")
    async def wait(ctx: Context, seconds: float = 0.0) -> int:
        say(ctx, "started")
        die_at(Moment.IN_HANDLER)
        return ctx.fence

    worker.run()


if __name__ == "__main__":
    main()
