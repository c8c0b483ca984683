"""What gets past a breaker: nothing, one probe a minute, then a growing rate."""

from datetime import UTC, datetime, timedelta

from duly.domain.breaker import PROBE_EVERY_S, RAMP_S
from duly.scheduler.probes import Probes
from duly.store.tenants import Breaker

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
OPEN = Breaker(1, "example.com", "x", UNTIL)
RAMP = OPEN._replace(ramp_at=UNTIL)
THEN = UNTIL.timestamp()


def test_an_open_breaker_lets_nothing_pass() -> None:
    """The host is down, and every call makes it worse."""
    assert Probes().ready_at(OPEN, THEN - 30) == THEN


def test_one_probe_passes_each_minute() -> None:
    """Without the memory of it, everything parked would follow the first."""
    probes = Probes()
    assert probes.ready_at(OPEN, THEN) <= THEN
    probes.passed(OPEN, THEN)
    assert probes.ready_at(OPEN, THEN) == THEN + PROBE_EVERY_S
    probes.passed(OPEN, THEN + PROBE_EVERY_S)
    assert probes.ready_at(OPEN, THEN + PROBE_EVERY_S) == THEN + 2 * PROBE_EVERY_S


def test_a_wasted_probe_is_followed_by_another_at_once() -> None:
    """The task was cancelled while it was parked: its host would wait a minute for nothing."""
    probes = Probes()
    probes.passed(OPEN, THEN)
    assert probes.wasted(OPEN)
    assert probes.ready_at(OPEN, THEN) <= THEN
    assert not probes.wasted(OPEN), "one for one"
    probes.passed(RAMP, THEN)
    assert not probes.wasted(RAMP), "a ramp goes on by itself"


def passed_within(probes: Probes, start_s: float, seconds: float) -> int:
    """Tasks let through when somebody always asks."""
    count, now = 0, THEN + start_s
    while now < THEN + start_s + seconds:
        ready_at = probes.ready_at(RAMP, now)
        if ready_at <= now:
            probes.passed(RAMP, now)
            count += 1
        else:
            now = max(ready_at, now + 1e-4)
    return count


def test_a_ramp_begins_slowly_and_grows() -> None:
    """What was parked meanwhile would otherwise come back as one herd."""
    probes = Probes()
    first, later = passed_within(probes, 0, 6), passed_within(probes, 30, 6)
    assert 1 <= first <= 15
    assert later > 5 * first


def test_after_the_ramp_everything_passes() -> None:
    """A row that nobody deleted yet must hold nothing back."""
    now = THEN + RAMP_S
    assert Probes().ready_at(RAMP, now) == now


def test_what_is_over_is_forgotten() -> None:
    """Hosts come and go; memory must not grow with them."""
    probes = Probes()
    probes.passed(OPEN, THEN)
    probes.ready_at(RAMP, THEN + 1)
    probes.forget({})
    assert not probes.next_probe
    assert not probes.ramps
    # A new breaker of the same host starts with its own probe.
    assert probes.ready_at(OPEN._replace(open_until=UNTIL + timedelta(seconds=5)), THEN) == THEN + 5
