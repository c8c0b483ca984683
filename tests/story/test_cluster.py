"""Two `duly serve` on one database, as a supervisor meets them: stopped, killed, cut off."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import asyncpg
import pytest

from duly.coordinator.postgres import LEASE_S
from duly.domain.ids import SLOTS
from tests.processes import child, eventually
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly

pytestmark = pytest.mark.slow

# Under a second on a quiet machine; below the lease of 10 s it was a hand-over and no expiry.
HAND_OVER_MAX_S = 6.0
# The lease of 10 s and a tick, and whatever a busy machine adds.
TAKE_OVER_MAX_S = 40.0
# What a busy machine may add to the time of a hand-over.
SLACK_S = 1.0
HOLDERS = """
SELECT number, holder::text, epoch,
       holder IS NOT NULL AND expires_at > now() AS is_owned
  FROM duly.ownership WHERE kind = 'slot'
"""
NAMES = "SELECT name, id::text FROM duly.nodes"
SEEN_SINCE = "SELECT count(*) FROM duly.nodes WHERE seen_at > $1"
CUT_OFF = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


@dataclass
class Installation:
    """The database that both share, and what it says of its slots."""

    server: ServerOfTheRun
    connection: asyncpg.Connection
    epochs: dict[int, int]
    holders: dict[int, str | None]

    def node_of(self, running: RunningDuly) -> str:
        rows = self.server.run(self.connection.fetch(NAMES))
        (found,) = [row["id"] for row in rows if row["name"].endswith(f":{running.process.pid}")]
        return str(found)

    def slots_by_node(self) -> dict[str, int]:
        """Also looks that no epoch falls, and that each next holder has a higher one."""
        counts: dict[str, int] = {}
        for row in self.server.run(self.connection.fetch(HOLDERS)):
            slot, epoch, holder = row["number"], row["epoch"], row["holder"]
            known = self.epochs.get(slot, 0)
            assert epoch >= known, "an epoch went back"
            if holder is not None and self.holders.setdefault(slot, holder) != holder:
                assert epoch > known, "two holders under one epoch"
                self.holders[slot] = holder
            self.epochs[slot] = epoch
            if row["is_owned"]:
                counts[row["holder"]] = counts.get(row["holder"], 0) + 1
        return counts

    def seconds_until(self, is_so: Callable[[dict[str, int]], bool], claim: str) -> float:
        began = time.monotonic()
        eventually(lambda: is_so(self.slots_by_node()), claim)
        return time.monotonic() - began

    def all_of(self, node: str) -> Callable[[dict[str, int]], bool]:
        return lambda counts: counts == {node: SLOTS}


@pytest.fixture
def installation(server: ServerOfTheRun, owner_url: str) -> Iterator[Installation]:
    connection = server.run(asyncpg.connect(owner_url))
    yield Installation(server, connection, {}, {})
    server.run(connection.close())


@contextlib.contextmanager
def duly_serve(owner_url: str, engine_url: str) -> Iterator[RunningDuly]:
    environ = {"DULY_DATABASE_URL": engine_url, "DULY_MIGRATION_DATABASE_URL": owner_url}
    with child("-m", "duly", "serve", "--json", "--port", "0", environ=environ) as process:
        try:
            yield RunningDuly(process)
        finally:
            # A stopped process hears no SIGTERM.
            with contextlib.suppress(ProcessLookupError):
                process.signal(signal.SIGCONT)


Pair = tuple[RunningDuly, RunningDuly]


@pytest.fixture
def pair(installation: Installation, owner_url: str, engine_url: str) -> Iterator[Pair]:
    with duly_serve(owner_url, engine_url) as one, duly_serve(owner_url, engine_url) as two:
        installation.seconds_until(
            lambda counts: sorted(counts.values()) == [SLOTS // 2, SLOTS // 2],
            "both have half of the slots",
        )
        yield one, two


def test_a_terminated_process_hands_over_within_a_second(
    installation: Installation, pair: Pair
) -> None:
    """A deployment stops every process once; each stop must not cost a lease."""
    leaver, stayer = pair
    assert leaver.is_ready()
    assert stayer.is_ready()
    heir = installation.node_of(stayer)
    leaver.process.signal(signal.SIGTERM)
    taken_s = installation.seconds_until(installation.all_of(heir), "the other has all slots")
    assert taken_s < HAND_OVER_MAX_S + SLACK_S
    assert leaver.process.wait() == 0
    assert "Traceback" not in leaver.process.said_on_errors
    assert stayer.is_ready()


def test_a_killed_process_is_replaced_within_its_lease(
    installation: Installation, pair: Pair
) -> None:
    """kill -9 says nothing to anybody; only the lease tells."""
    victim, stayer = pair
    heir, before = installation.node_of(stayer), dict(installation.epochs)
    victim.process.kill()
    taken_s = installation.seconds_until(installation.all_of(heir), "the other has all slots")
    assert taken_s < TAKE_OVER_MAX_S
    raised = [slot for slot in before if installation.epochs[slot] > before[slot]]
    assert len(raised) == SLOTS // 2
    assert stayer.is_ready()


def test_a_process_stopped_beyond_its_lease_finds_its_slots_taken(
    installation: Installation, pair: Pair
) -> None:
    """It goes on in the middle of a line, believing what was true a lease ago."""
    zombie, stayer = pair
    ghost, heir = installation.node_of(zombie), installation.node_of(stayer)
    zombie.process.signal(signal.SIGSTOP)
    taken_s = installation.seconds_until(installation.all_of(heir), "the other has all slots")
    assert taken_s < TAKE_OVER_MAX_S
    taken = dict(installation.epochs)
    zombie.process.signal(signal.SIGCONT)
    installation.seconds_until(
        lambda counts: counts == {heir: SLOTS // 2, ghost: SLOTS // 2}, "they share again"
    )
    given = [slot for slot in taken if installation.epochs[slot] > taken[slot]]
    assert len(given) == SLOTS // 2, "a slot came back under an epoch that was over"
    eventually(lambda: zombie.is_ready() and stayer.is_ready(), "both are ready again")


def test_both_recover_when_the_database_cuts_them_off(
    installation: Installation, pair: Pair
) -> None:
    """A failover ends every session at once; nobody may exit, and nobody stays broken."""
    server, connection = installation.server, installation.connection
    assert server.run(connection.fetchval(CUT_OFF)) >= len(pair)
    cut_at = server.run(connection.fetchval("SELECT clock_timestamp()"))
    for each in pair:
        assert each.get("/healthz")[0] == 200
        eventually(each.is_ready, "ready again", timeout_s=LEASE_S)

    def seen_since() -> int:
        count: int = server.run(connection.fetchval(SEEN_SINCE, cut_at))
        return count

    eventually(lambda: seen_since() == len(pair), "both renewed their leases", LEASE_S)
    assert sorted(installation.slots_by_node().values()) == [SLOTS // 2, SLOTS // 2]
