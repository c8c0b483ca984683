"""Metrics of an installation whose roles are in processes of their own: each figure where it is
known, and no zero where nothing looked."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.processes import child, eventually
from tests.story.duly_up import RunningDuly
from tests.story.hooks import call
from tests.story.installation import Installation

pytestmark = pytest.mark.slow

TASKS = 4


class Apart:
    """Processes of one installation, started as the story needs them."""

    def __init__(self, installation: Installation, stack: ExitStack) -> None:
        self.environ = installation.environ
        self.stack = stack
        self.key = installation.make_key()

    def start(self, roles: str) -> RunningDuly:
        arguments = ("-m", "duly", "serve", "--json", "--port", "0", "--roles", roles)
        return RunningDuly(self.stack.enter_context(child(*arguments, environ=self.environ)))

    def ask(self, duly: RunningDuly, path: str, body: Any) -> Any:
        status, answer = call(duly, self.key, "POST", path, body)
        assert status in (200, 201), answer
        return answer

    def lease(self, duly: RunningDuly, most: int) -> list[Any]:
        asked = {"worker_id": "w", "pools": ["default"], "max": most, "wait_s": 20}
        tasks: list[Any] = self.ask(duly, "/v1/worker/lease", asked)["tasks"]
        return tasks

    def settle(self, duly: RunningDuly, task: Any, outcome: str) -> None:
        settled = {"id": task["id"], "fence": task["fence"], "outcome": outcome}
        self.ask(duly, "/v1/worker/settle", {"worker_id": "w", "settlements": [settled]})


@pytest.fixture
def apart(installation: Installation) -> Iterator[Apart]:
    with ExitStack() as stack:
        yield Apart(installation, stack)


def number(duly: RunningDuly, name: str) -> float | None:
    for line in duly.get("/metrics")[1].decode().splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    return None


def test_every_figure_is_told_where_it_is_known(apart: Apart) -> None:
    """Slots without owner were 0 with 64 of 64 unowned, and ready times had no observations."""
    api = apart.start("api")
    eventually(lambda: number(api, "duly_slots_without_owner") == 64, "nobody owns a slot")
    scheduler = apart.start("scheduler,maintenance")
    eventually(lambda: number(api, "duly_slots_without_owner") == 0, "all are owned")
    assert number(scheduler, "duly_slots_without_owner") == 0

    specs = [{"type": "a.b", "payload": n} for n in range(TASKS)]
    apart.ask(api, "/v1/tasks/batch", {"tasks": specs})
    leased = apart.lease(api, 1)
    while len(leased) < TASKS:
        leased += apart.lease(api, TASKS)
    assert number(api, 'duly_ready_wait_seconds_count{band="normal"}') == TASKS
    assert number(scheduler, "duly_dispatched_total") == TASKS
    running = 'duly_in_flight{tenant="(all)"}'
    eventually(lambda: number(scheduler, running) == TASKS, "without a cap they run as well")

    second = apart.start("api")
    apart.settle(api, leased[0], "completed")
    apart.settle(api, leased[1], "rejected")
    apart.settle(second, leased[2], "completed")
    assert number(api, "duly_attempt_run_seconds_count") == 2
    assert number(api, 'duly_dead_letters_total{reason="rejected"}') == 1
    eventually(
        lambda: number(second, "duly_attempt_run_seconds_count") == 1, "started elsewhere, too"
    )
    scheduled = 'duly_backlog{state="scheduled",tenant="(all)"}'
    apart.ask(api, "/v1/tasks", {"type": "a.b", "payload": 1, "delay_s": 3600})
    eventually(lambda: number(scheduler, scheduled) == 1, "what is for later is counted")
