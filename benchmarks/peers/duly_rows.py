"""duly's own rows: drains through the contract of the peers; what stays inside one process or
crosses HTTP from its benchmark command."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import Any

from benchmarks.peers.catalogue import FLOW_ROWS
from benchmarks.peers.driver import Bench, PeerFailed
from benchmarks.peers.installation import PROJECT

# row -> its scenario, and what of that is which figure
SCENARIOS = {
    "single": ("submit-single", {"tasks_per_s": "single_per_s"}),
    "latency": ("lone", {"paced_p50_ms": "latency_p50_ms", "paced_p99_ms": "latency_p99_ms"}),
    "herd": ("herd", {"p50_ms": "herd_p50_ms", "p99_ms": "herd_p99_ms"}),
    "chain": ("workflow-chain-http", {"chain_s": "chain_ms"}),
    "fan": ("workflow-fan-http", {"fan_s": "fan_ms"}),
    "diamonds": ("workflow-diamonds-http", {"workflows_per_s": "diamonds_per_s"}),
}


class Duly:
    def __init__(self, bench: Bench, *, quick: bool) -> None:
        self.name = bench.name
        self.bench = bench
        self.rows = (*bench.rows, *FLOW_ROWS)
        self.quick = quick

    async def measure(self, row: str) -> dict[str, float]:
        if row not in SCENARIOS:
            return await self.bench.measure(row)
        scenario, fields = SCENARIOS[row]
        (result,) = (await run_scenario(scenario, quick=self.quick))["results"]
        return {name: in_unit(name, field, result[field]) for field, name in fields.items()}


def in_unit(name: str, field: str, value: float) -> float:
    is_in_seconds = field.endswith("_s") and name.endswith("_ms")
    return float(value) * 1000 if is_in_seconds else float(value)


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
