"""Processor time is what was burnt, here and in children, whatever else the machine does."""

import os
import subprocess
import sys

from duly.bench.processor_time import Costs, server_s

BURN_S = 0.2
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass"


def test_what_this_process_burns_is_counted_for_each_task() -> None:
    """A change would be judged by a number that does not move."""
    costs = Costs(os.getpid())
    until = os.times().user + BURN_S
    while os.times().user < until:
        pass
    assert costs.figures(10)["python_us_per_task"] >= BURN_S / 10 * 1e6 * 0.9


def test_what_a_child_of_the_server_burnt_counts_after_its_end() -> None:
    """Connections come and go; their work would go with them."""
    before = server_s(os.getpid())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert server_s(os.getpid()) - before >= BURN_S * 0.9
