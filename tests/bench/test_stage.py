"""Waits of scenarios: as long as something moves, and no longer."""

import pytest

from duly.bench.stage import STALLED_S, StallWatch
from duly.testing.clock import ManualClock


def test_a_wait_ends_when_nothing_moves_and_not_before() -> None:
    """A worker that died would be waited for until somebody looks; a slow one is no dead one."""
    clock = ManualClock()
    patience = StallWatch(clock, "the worker")
    for done in (0, 1, 1, 2):
        patience.look(done, 3)
        clock.advance(STALLED_S)
    patience.look(2, 3)
    clock.advance(0.1)
    with pytest.raises(TimeoutError, match="the worker stopped at 2 of 3"):
        patience.look(2, 3)
