"""`python -m tests.promotion [--times 5] [--fault killed|frozen|restarted]`: fail over under load.

Prints what was seen each time, in seconds after the database took writes again; ends with 1 if an
acknowledged task was not run and settled in time.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.promotion.trial import Fault, run_trial

# Of everything acknowledged, after the new primary took writes.
RUN_WITHIN_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--fault", type=Fault, default=Fault.KILLED, choices=list(Fault))
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also how readiness changed, and what was logged most",
    )
    arguments = parser.parse_args()
    is_good = True
    for _ in range(arguments.times):
        with tempfile.TemporaryDirectory(prefix="duly-promotion-") as folder:
            Path(folder).chmod(0o711)
            seen = asyncio.run(run_trial(Path(folder), arguments.fault))
        is_good &= seen.not_run == 0 and seen.last_settled_s <= RUN_WITHIN_S
        facts = {
            "acknowledged": seen.acknowledged,
            "not run": seen.not_run,
            "first submit": seen.first_submit_s,
            "first run": seen.first_run_s,
            "last run": seen.last_run_s,
            "last settled": seen.last_settled_s,
            "ready": seen.ready_again_s,
            "log lines": seen.log_lines,
        }
        sys.stdout.write(", ".join(f"{name} {fact}" for name, fact in facts.items()) + "\n")
        for line in (*seen.readiness, *seen.complaints) if arguments.verbose else ():
            sys.stdout.write(f"   {line}\n")
        sys.stdout.flush()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
