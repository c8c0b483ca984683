"""Real `duly` processes for scenarios: started with a clean environment, always ended."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from duly.bench.stage import ScenarioContext

START_S = 60.0


@dataclass(frozen=True)
class Running:
    url: str
    api_key: str


@contextlib.asynccontextmanager
async def duly_up(stage: ScenarioContext) -> AsyncIterator[Running]:
    """On the stage's own server."""
    process, ready = await start_duly(stage, "up", "--data-dir", stage.folder)
    try:
        yield Running(ready["url"], ready["api_key"])
    finally:
        await end(process)


async def start_duly(
    stage: ScenarioContext, *arguments: str, environ: Mapping[str, str] | None = None
) -> tuple[Process, dict[str, Any]]:
    """A process, and what it said when it was ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly", *arguments, "--json", "--port", "0"),
        env={**clean_environ(stage), **(environ or {})},
        stdout=PIPE,
        stderr=DEVNULL,
        # A Ctrl-C on the terminal is for the benchmark, which then ends this one in order.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        assert line, f"duly {arguments[0]} did not start"
        ready: dict[str, Any] = msgspec.json.decode(line)
    except BaseException:
        await end(process)
        raise
    return process, ready


def clean_environ(stage: ScenarioContext) -> dict[str, str]:
    """The environment without DULY_* settings, which would change the measurement."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    given = {"DULY_PG_BIN": stage.order.pg_bin} if stage.order.pg_bin else {}
    return {**kept, **given, "XDG_CONFIG_HOME": stage.folder}


async def end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
