"""A process of a chaos run that is gone before anybody has heard of its end."""

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
