"""Signals that a tenant changed: few, merged, and only to those who asked."""

import asyncio

import pytest

from duly.domain.errors import Overloaded
from duly.domain.states import State
from duly.events import TasksFinished
from duly.store.finish import SettleAnswer, SettleStatus
from duly.store.notify import CHANGED
from duly.tenant_changes import PACE_S, SUBSCRIBERS_MAX, TenantChanges

OURS, THEIRS = 7, 8


def change(*tenants: int) -> TasksFinished:
    answers = [SettleAnswer(SettleStatus.SETTLED, State.COMPLETED, tenant=each) for each in tenants]
    return TasksFinished([], answers)


async def test_a_thousand_changes_are_two_signals_to_other_processes() -> None:
    """A NOTIFY for each task would be a second commit for each task."""
    sent: list[tuple[str, list[str]]] = []
    changes = TenantChanges(lambda channel, hints: sent.append((channel, hints)))
    for _ in range(1000):
        changes.on_event(change(OURS))
    assert sent == [(CHANGED, [str(OURS)])]
    async with asyncio.timeout(10 * PACE_S):
        while len(sent) == 1:  # noqa: ASYNC110 (the pace is the thing under test)
            await asyncio.sleep(PACE_S / 10)
    assert sent[1:] == [(CHANGED, [str(OURS)])]


async def test_a_subscriber_hears_of_its_own_tenant_and_no_other() -> None:
    """That another tenant is busy is the other tenant's to know (I9)."""
    changes = TenantChanges()
    with changes.subscribe(OURS) as ours, changes.subscribe(THEIRS) as theirs:
        changes.on_event(change(THEIRS))
        assert await theirs.wait(0.0)
        assert not await ours.wait(0.0)


async def test_a_slow_subscriber_is_behind_by_one() -> None:
    """A hundred open pages must not hold a queue for each change."""
    changes = TenantChanges()
    with changes.subscribe(OURS) as subscription:
        for _ in range(3):
            changes.on_notify([str(OURS)])
        assert await subscription.wait(0.0)
        assert not await subscription.wait(0.0)
        assert await subscription.wait(10 * PACE_S)
    assert changes.subscribers == {}


async def test_nonsense_from_other_processes_disturbs_nobody() -> None:
    """Every process hears every signal, also those of a release that says more."""
    changes = TenantChanges()
    with changes.subscribe(OURS) as subscription:
        changes.on_notify(["", "x", "-7", f"{OURS} more"])
        assert not await subscription.wait(0.0)


async def test_a_stop_wakes_all_subscribers_and_later_ones() -> None:
    """A page that stays open would hold the process back until its limit."""
    changes = TenantChanges()
    with changes.subscribe(OURS) as before:
        changes.close()
        assert await before.wait(0.0)
        with changes.subscribe(THEIRS) as after:
            assert await after.wait(0.0)


async def test_one_subscriber_too_many_is_refused() -> None:
    """Open pages are callers like others: bounded."""
    changes = TenantChanges()
    opened = [changes.subscribe(OURS) for _ in range(SUBSCRIBERS_MAX)]
    for each in opened:
        each.__enter__()
    with pytest.raises(Overloaded), changes.subscribe(OURS):
        pass
    opened[0].__exit__(None, None, None)
    with changes.subscribe(OURS):
        assert changes.subscriber_count == SUBSCRIBERS_MAX
