"""Workers under SIGTERM, each within its limit: a few trials of `python -m tests.drain_trials`."""

import pytest

from tests.drain_trials import DOWN, HUNG, UP, open_stage

pytestmark = pytest.mark.slow
# What a busy machine may add; without a bound inside the worker it would be a minute.
SLACK_S = 10.0


@pytest.mark.parametrize("postgres", [UP, HUNG, DOWN])
def test_a_worker_that_is_told_to_stop_is_gone_within_its_limit(postgres: str) -> None:
    """Deployments kill what is late, and then nothing is given back."""
    with open_stage() as stage:
        trials = stage.run_round(postgres)
    assert [trial for trial in trials if not trial.is_good_within(SLACK_S)] == []
