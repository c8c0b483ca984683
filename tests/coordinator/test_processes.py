"""Two real processes share the slots of one database; one leaves, is killed, or is stopped."""

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest

from duly.domain.ids import SLOTS
from tests.processes import WAIT_MAX_S, Child, child

LEASE_S = 3.0
# Below the lease, so that it was a hand-over and no expiry.
HAND_OVER_MAX_S = 2.8
# What a busy machine may add to any of these.
SLACK_S = 20.0

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def node(url: str, number: int) -> Iterator[Child]:
    arguments = ("-m", "tests.coordinator.node_process", url, str(number), str(LEASE_S))
    with child(*arguments) as started:
        yield started


def until_held(process: Child, count: int) -> float:
    """Seconds until it says that it holds so many."""
    started = time.monotonic()
    while process.answer()["held"] != count:
        assert time.monotonic() - started < WAIT_MAX_S
    return time.monotonic() - started


@contextlib.contextmanager
def two_nodes(url: str) -> Iterator[tuple[Child, Child]]:
    with node(url, 1) as one:
        until_held(one, SLOTS)
        with node(url, 2) as two:
            until_held(one, SLOTS // 2)
            until_held(two, SLOTS // 2)
            yield one, two


def test_a_terminated_node_hands_over_within_a_second(engine_url: str) -> None:
    """A deployment stops every node once; each stop must not cost a lease."""
    with two_nodes(engine_url) as (leaver, stayer):
        leaver.signal(signal.SIGTERM)
        assert until_held(stayer, SLOTS) < HAND_OVER_MAX_S
        assert leaver.wait() == 0


def test_a_killed_nodes_slots_are_taken_over_within_its_lease(engine_url: str) -> None:
    """kill -9 says nothing to anybody; only the lease tells."""
    with two_nodes(engine_url) as (victim, heir):
        victim.kill()
        assert until_held(heir, SLOTS) < LEASE_S + SLACK_S


def test_a_node_stopped_beyond_its_lease_finds_its_slots_taken(engine_url: str) -> None:
    """It goes on in the middle of a line, and must learn before it dispatches again."""
    with two_nodes(engine_url) as (zombie, heir):
        zombie.signal(signal.SIGSTOP)
        assert until_held(heir, SLOTS) < LEASE_S + SLACK_S
        zombie.signal(signal.SIGCONT)
        until_held(zombie, 0)
        until_held(zombie, SLOTS // 2)
        until_held(heir, SLOTS // 2)
