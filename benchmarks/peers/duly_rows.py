"""duly's own rows: drains through the contract of the peers; what stays inside one process or
crosses HTTP from its benchmark command."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from benchmarks.peers.driver import Bench, PeerFailed
from benchmarks.peers.installation import PROJECT

# row -> its scenario, and what of that is which figure
SCENARIOS = {
    "single": ("submit-single", {"tasks_per_s": "single_per_s"}),
    "latency": ("lone", {"paced_p50_ms": "latency_p50_ms", "paced_p99_ms": "latency_p99_ms"}),
    "herd": ("herd", {"p50_ms": "herd_p50_ms", "p99_ms": "herd_p99_ms"}),
}


class Duly:
    def __init__(self, bench: Bench, *, quick: bool) -> None:
        self.name = bench.name
        self.bench = bench
        self.rows = bench.rows
        self.quick = quick

    async def measure(self, row: str) -> dict[str, float]:
        if row not in SCENARIOS:
            return await self.bench.measure(row)
        scenario, fields = SCENARIOS[row]
        (result,) = (await run_scenario(scenario, quick=self.quick))["results"]
        return {name: float(result[field]) for field, name in fields.items()}


async def run_scenario(scenario: str, *, quick: bool) -> dict[str, Any]:
    words = [sys.executable, "-m", "duly", "bench", scenario, "--json"]
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
