"""duly's own figures that stay inside one process or cross HTTP, from its benchmark command."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from benchmarks.peers.driver import PeerFailed
from benchmarks.peers.installation import PROJECT

# scenario -> what of it is which row
SCENARIOS = {
    "submit-single": {"tasks_per_s": "single_per_s"},
    "lone": {"p50_ms": "latency_p50_ms", "p99_ms": "latency_p99_ms"},
    "herd": {"p50_ms": "herd_p50_ms", "p99_ms": "herd_p99_ms"},
}


async def measure(*, quick: bool) -> dict[str, Any]:
    """The command's whole report: the machine's facts stand beside the results."""
    words = [sys.executable, "-m", "duly", "bench", *SCENARIOS, "--json"]
    if quick:
        words.append("--quick")
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=DEVNULL, cwd=PROJECT)
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode != 0:
        raise PeerFailed(f"{' '.join(words[1:])} ended with {process.returncode}")
    report: dict[str, Any] = json.loads(output)
    return report


def rows_of(report: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for result in report["results"]:
        for field, row in SCENARIOS.get(result["scenario"], {}).items():
            found[row] = float(result[field])
    return found
