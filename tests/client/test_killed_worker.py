"""kill -9 of a worker at every moment of a task: the lease runs out, and the next attempt can be
told from the first by its fence and from another task by its key."""

import contextlib
import json
import signal
import time
from typing import Any

import pytest

from duly import Client
from tests.client.doomed_worker import Moment
from tests.processes import Child, child
from tests.story.duly_up import RunningDuly

pytestmark = pytest.mark.slow
LEASE_S = 1.0
WAIT_S = 30.0
# A look for lost leases each second, the start of the next worker, and a busy machine.
RECLAIM_SLACK_S = 15.0


def options(duly: RunningDuly, pool: str) -> str:
    return json.dumps(
        {"url": duly.url, "api_key": duly.ready["api_key"], "pools": [pool], "lease_s": LEASE_S}
    )


def die(moment: Moment, duly: RunningDuly, pool: str) -> list[str]:
    """What it said before it died."""
    with child("-m", "tests.client.doomed_worker", moment, options(duly, pool)) as doomed:
        assert doomed.wait() == -signal.SIGKILL, doomed.said_on_errors
        return [line for line in iter(doomed.lines.get, "") if line]


def start(duly: RunningDuly, pool: str) -> contextlib.AbstractContextManager[Child]:
    return child("-m", "tests.client.worker_process", options(duly, pool))


@pytest.mark.parametrize("moment", Moment)
def test_a_killed_worker_costs_one_attempt_at_most(
    duly: RunningDuly, pool: str, moment: Moment
) -> None:
    """Whatever it had done by then, nobody knows: only key and fence let a receiver find out."""
    with Client(duly.url, duly.ready["api_key"]) as calls:
        wish: Any = {"idempotency_key": f"{pool}-{moment}", "retry": {"initial_s": 0}}
        task = calls.submit("wait", {"seconds": 0.0}, pool=pool, **wish)
        before = [json.loads(line) for line in die(moment, duly, pool)]
        with start(duly, pool) as second:
            ended = calls.wait(task.id, WAIT_S)
            attempts = sorted(calls.attempts(task.id), key=lambda attempt: attempt.fence)
            if moment is not Moment.AFTER_SETTLE:
                after = second.answer()
    assert ended.state == "COMPLETED"
    outcomes = [attempt.outcome for attempt in attempts]
    if moment is Moment.AFTER_SETTLE:
        assert outcomes == ["completed"], "its end was told before it died"
        return
    assert outcomes == ["lease_lost", "completed"]
    assert [attempt.attempt for attempt in attempts] == [1, 2]
    assert (after["fence"], after["key"]) == (attempts[1].fence, f"{pool}-{moment}")
    assert attempts[1].fence > attempts[0].fence
    for line in before:
        assert (line["fence"], line["key"]) == (attempts[0].fence, after["key"])
    assert bool(before) == (moment is not Moment.AFTER_LEASE)


def test_a_killed_workers_task_begins_again_soon_after_its_lease(
    duly: RunningDuly, pool: str
) -> None:
    """The lease is what a crash costs; what comes on top of it is ours to keep short."""
    with Client(duly.url, duly.ready["api_key"]) as calls:
        calls.submit("wait", {"seconds": 0.0}, pool=pool, retry={"initial_s": 0})
        die(Moment.IN_HANDLER, duly, pool)
    died_at = time.monotonic()
    # Not before: its open poll would be given the task, and the doomed one would wait for it.
    with start(duly, pool) as second:
        assert second.answer()["attempt"] == 2
        assert time.monotonic() - died_at < LEASE_S + RECLAIM_SLACK_S
