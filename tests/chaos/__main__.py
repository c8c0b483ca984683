"""`python -m tests.chaos --minutes N`: break a small cluster for N minutes, then check it.

Two nodes with scheduler and executor, a submitter, one PostgreSQL of its own in a temporary folder;
kill -9, SIGSTOP beyond every lease, terminated backends, a killed PostgreSQL. Stops by itself.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from duly.environment import Environment
from duly.settings import Settings
from duly.store.place import open_place, prepare_place
from tests.chaos.harness import Chaos


async def run(minutes: float, seed: int) -> int:
    environment = Environment()
    with tempfile.TemporaryDirectory(prefix="duly-chaos-") as folder:
        settings = Settings(data_dir=str(Path(folder) / "data"))
        async with open_place(settings, environment) as place:
            await prepare_place(place, settings, environment)
            assert place.keeper is not None
            chaos = Chaos(place.keeper, place.engine_url, Path(folder), seed)
            violations = await chaos.run(minutes * 60)
            summary = chaos.summary()
    sys.stdout.write(json.dumps({"seed": seed, **summary, "violations": len(violations)}) + "\n")
    for violation in violations[:50]:
        sys.stdout.write(f"{violation}\n")
    return 1 if violations else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="orders the faults, not their effects")
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run(arguments.minutes, arguments.seed)))


if __name__ == "__main__":
    main()
