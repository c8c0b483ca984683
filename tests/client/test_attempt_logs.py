"""Lines on their way to the server: none is left behind, and none holds a handler up."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from duly.client import attempt_logs
from duly.client.attempt_logs import AttemptLog, LogShipper
from duly.client.leased_tasks import LeasedTask

WAIT_S = 5.0


class SlowDesk:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.calls = 0
        self.is_called = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def send_logs(self, chunks: Sequence[Any]) -> None:
        self.calls += 1
        self.is_called.set()
        await self.may_answer.wait()
        self.sent += [line.text for chunk in chunks for line in chunk.lines]


def task() -> LeasedTask:
    return msgspec.convert(
        {
            "id": "019a5b6e-0000-7000-8000-000000000001",
            "fence": 1,
            "attempt": 1,
            "max_attempts": 5,
            "type": "mail.send",
            "scheduled_for": "2026-01-01T00:00:00Z",
            "started_at": "2026-01-01T00:00:00Z",
            "lease_until": "2026-01-01T00:00:15Z",
            "timeout_s": 60.0,
            "execution_key": "k",
        },
        LeasedTask,
    )


async def test_lines_that_come_while_others_are_sent_are_sent_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that logged all the time sent its first lines, and the rest when it ended."""
    monkeypatch.setattr(attempt_logs, "FLUSH_S", 0.0)
    desk = SlowDesk()
    shipper = LogShipper(cast(Any, desk))
    try:
        log = AttemptLog(task(), shipper)
        log.add("info", "first")
        async with asyncio.timeout(WAIT_S):
            await desk.is_called.wait()
            log.add("info", "second")
            # The wake of the second line finds the first one's flight.
            await asyncio.sleep(0)
            desk.may_answer.set()
            assert shipper.flight is not None
            await shipper.flight
        assert desk.sent == ["first", "second"]
        desk.is_called.clear()
        log.add("info", "third")
        async with asyncio.timeout(WAIT_S):
            await desk.is_called.wait()
            await shipper.flight
        assert desk.sent[-1] == "third"
    finally:
        shipper.detach()
