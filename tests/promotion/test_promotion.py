"""A fail-over to a synchronous standby under load, with real processes: no acknowledged task is
lost, and dispatch comes back by itself (I1, I11). `python -m tests.promotion` measures it."""

from pathlib import Path

import pytest

from tests.promotion.trial import run_trial

pytestmark = pytest.mark.slow

# Short, so that leases whose answers were lost with the primary run out soon.
LEASE_S = 3.0


async def test_everything_acknowledged_is_run_after_a_promotion(tmp_path: Path) -> None:
    """Every publish failed for ever: the sequence of the unlogged ready queue was unreadable on the
    new primary."""
    seen = await run_trial(tmp_path, lease_s=LEASE_S)
    assert seen.acknowledged > 0
    assert seen.not_run == 0, seen
    assert seen.first_submit_s >= 0, seen
    assert seen.told_the_truth(), seen.readiness
