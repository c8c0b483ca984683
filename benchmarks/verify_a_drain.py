"""`python -m benchmarks.verify_a_drain [--attempts N] [--odd PERCENT] [--json]`: how fast
`duly verify` reads what a whole scheduler has drained, and how much memory it needs for that.

Most tasks complete in their first attempt. The odd ones are retried once, and every tenth of those
fails for good: only such tasks are judged row by row. The goal is 20,000 attempts a second, in
memory that does not grow with what is stored.
"""

import argparse
import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

from duly.bench.drive import Driver
from duly.bench.stage import BATCH, PAYLOAD, TENANT, URL, BenchOptions, ScenarioContext, open_stage
from duly.domain.retry import RetryPolicy
from duly.domain.states import Outcome
from duly.domain.task import Policy, Submission
from duly.environment import system_environment
from duly.execution.attempt import DONE, AttemptResult
from duly.store.lease import Lease
from duly.store.submit import Submitter

ATTEMPTS_PER_S_MIN = 20_000
LOOKS = 3
PLAIN, RETRIED, FAILED = "bench.plain", "bench.retried", "bench.failed"
TWICE = Policy(retry=RetryPolicy(max_attempts=2, initial_s=1.0))
FAILURE = AttemptResult(
    Outcome.FAILED, error="ValueError: no such invoice", error_kind="ValueError"
)
# The command itself, which then says how much memory it had at its largest. Asked from outside,
# a process answers with the size of whoever started it, if that was larger.
COMMAND = """
import pathlib, sys
from duly.cli.main import run
code = run(sys.argv[1:])
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(*(line.split()[1] for line in lines if line.startswith("VmHWM:")), file=sys.stderr)
sys.exit(code)
"""
# Of the odd ones, how many there are to each that fails for good.
ODD_PER_FAILED = 10


def handle(lease: Lease) -> AttemptResult:
    is_failing = lease.type == FAILED or (lease.type == RETRIED and lease.attempt == 1)
    return FAILURE if is_failing else DONE


def type_of(number: int, odd: int) -> str:
    """Of every hundred in a row, the first `odd` are odd."""
    round_number, position = divmod(number, 100)
    if position >= odd:
        return PLAIN
    return FAILED if (round_number * odd + position) % ODD_PER_FAILED == 0 else RETRIED


async def drain(stage: ScenarioContext, odd: int) -> int:
    """Until there are so many attempts; answers how many they became."""
    driver = Driver(stage, handle)
    silent = Submitter(stage.database, stage.environment)
    types: list[str] = []
    attempts = 0
    while attempts < stage.tasks:
        batch = [type_of(len(types) + more, odd) for more in range(BATCH)]
        await silent.submit([make_task(each) for each in batch])
        types += batch
        attempts += sum(1 if each == PLAIN else 2 for each in batch)
    driver.restart_meter(attempts)
    async with driver.running(is_settled_down=False):
        await driver.all_settled()
    return attempts


def make_task(task_type: str) -> Submission:
    return Submission(tenant=TENANT, type=task_type, payload=PAYLOAD, url=URL, policy=TWICE)


async def verify(stage: ScenarioContext) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "verify", "--json", "--data-dir", stage.folder),
        stdout=PIPE,
        stderr=PIPE,
    )
    report, peak_kb = await process.communicate()
    return {**json.loads(report), "peak_mb": round(int(peak_kb) / 1024, 1)}


async def run(attempts: int, odd: int) -> dict[str, Any]:
    environment = system_environment()
    async with open_stage(
        attempts, BenchOptions(), environment, lambda _done, _goal: None
    ) as stage:
        made = await drain(stage, odd)
        looks = [await verify(stage) for _ in range(LOOKS)]
    assert all(look["is_clean"] for look in looks), looks[0]["violations"]
    assert all(look["rows"]["attempts"] == made for look in looks)
    return {
        "attempts": made,
        "tasks": looks[0]["rows"]["tasks"],
        "odd_percent": odd,
        "attempts_per_s": [look["attempts_per_s"] for look in looks],
        "goal": ATTEMPTS_PER_S_MIN,
        "elapsed_s": [look["elapsed_s"] for look in looks],
        "peak_mb": [look["peak_mb"] for look in looks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=300_000)
    parser.add_argument("--odd", type=int, default=10, metavar="PERCENT")
    parser.add_argument("--json", action="store_true", dest="as_json")
    given = parser.parse_args()
    figures = asyncio.run(run(given.attempts, given.odd))
    if given.as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, value in figures.items():
        sys.stdout.write(f"{name:>16}  {value}\n")


if __name__ == "__main__":
    main()
