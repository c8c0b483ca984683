"""`python -m tests.chaos --minutes N`: break a cluster of real processes for N minutes; check it.

Prints what was done, what was broken, how long recovery took, and every violation; ends with 1 if
there is one. The plan of faults comes from `--seed`; what they hit at that instant does not.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.run import run
from tests.chaos.wipe import wipe

SHOWN_MAX = 50


async def until_signal(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """SIGTERM ends it as Ctrl-C does: with everything that was started."""
    working = asyncio.ensure_future(chosen(arguments, folder))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
    return await working


async def chosen(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if arguments.wipe_queue:
        return await wipe(arguments.wipe_queue, arguments.seed, folder)
    seconds = arguments.minutes * 60
    result = await run(seconds, arguments.seed, arguments.rate, folder)
    return {"seed": arguments.seed, "minutes": arguments.minutes, **result.report}


@contextlib.contextmanager
def folder_for(named: Path | None) -> Iterator[Path]:
    """A temporary one is removed; a named one keeps the logs of every process."""
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="duly-chaos-") as temporary:
        yield Path(temporary)


def show(report: dict[str, Any]) -> None:
    violations = report["violations"]
    shown = {name: value for name, value in report.items() if name != "violations"}
    sys.stdout.write(json.dumps(shown, indent=2) + f"\n{len(violations)} violations\n")
    for violation in violations[:SHOWN_MAX]:
        sys.stdout.write(f"{violation}\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1, help="orders the faults, not their effects")
    parser.add_argument("--rate", type=float, default=80.0, help="tasks a second")
    parser.add_argument("--wipe-queue", type=int, metavar="N", help="instead: lose N tickets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--folder", type=Path, help="keep data and logs in this folder")
    arguments = parser.parse_args()
    with folder_for(arguments.folder) as folder:
        report = asyncio.run(until_signal(arguments, folder))
    show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(1 if report["violations"] else 0)


if __name__ == "__main__":
    main()
