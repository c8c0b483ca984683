"""A process of a chaos run that is gone before anybody has heard of its end."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from pathlib import Path
from random import Random
from typing import cast

import pytest

from tests.chaos.member import Member


class Gone:
    """The thread that waits for it has collected it; the loop does not know yet. Its number is one
    that no process can have."""

    returncode = None
    pid = 2**22 + 1


@pytest.fixture
def member(tmp_path: Path) -> Member:
    member = Member("worker-1", [], {}, tmp_path, Random(7))
    member.process = cast("Process", Gone())
    return member


def test_whoever_is_gone_already_is_not_hit(member: Member) -> None:
    """A fault that comes in the moment after another one would end the whole run."""
    assert member.send(signal.SIGCONT) is None
    assert member.kill() is None


@pytest.mark.parametrize("was_doomed", [True, False])
def test_an_end_that_we_did_not_cause_is_not_taken_for_ours(
    member: Member, was_doomed: bool
) -> None:
    """It died of what it ran, or by itself, which must come out; or by an earlier kill of ours."""
    member.is_doomed = was_doomed
    member.kill()
    assert member.is_doomed is was_doomed


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
async def test_what_is_being_started_when_all_ends_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float
) -> None:
    """A process that nobody knows outlives the run, and its pipe is found open by another test."""
    monkeypatch.setattr("tests.chaos.member.RESTART_S", (pause_s, pause_s))
    pids = tmp_path / "pids"
    say = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}} '); print(flush=True)"
    member = Member("worker-1", ["-c", f"{say}; time.sleep(60)"], {}, tmp_path, Random(7))
    supervisor = asyncio.create_task(member.supervise())
    await member.is_ready.wait()
    member.kill()
    while member.is_ready.is_set():  # noqa: ASYNC110 (nothing tells of it)
        await asyncio.sleep(0)
    # Without a pause, it is in the middle of its second start by now.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await member.end()
        await supervisor
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
