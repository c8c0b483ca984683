"""Delivering to a program of the server's own configuration: the payload is its standard input.

No part of a command ever comes from the API, and no shell reads it.

| event | what happens |
|---|---|
| it ends with another status than 0 | failed and tried again; what it wrote is in the log |
| it does not end in time; cancelled; the lease is lost | its process group is killed |
| there is no such program | failed and tried again |
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from duly.domain.states import Outcome
from duly.execution.attempt import AttemptResult
from duly.store.lease import Lease
from duly.telemetry import get_logger

MARGIN_S = 1.0
OUTPUT_BYTES_MAX = 4096
AT_ONCE_MAX = 4
# Of the server's environment, which has secrets.
PASSED_ON = ("HOME", "LANG", "PATH", "TZ")

log = get_logger("duly.execution.command")


class CommandRunner:
    """`await runner(lease)` is one run."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.places = asyncio.Semaphore(AT_ONCE_MAX)

    async def __call__(self, lease: Lease) -> AttemptResult:
        if not self.command:
            return failed("this executor has no notification_command in its configuration")
        limit_s = max(lease.policy.timeout_s - MARGIN_S, lease.policy.timeout_s / 2)
        async with self.places:
            return await self.run(lease, limit_s)

    async def run(self, lease: Lease, limit_s: float) -> AttemptResult:
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as fault:
            log.warning("command cannot be run", task=str(lease.id), error=str(fault))
            return failed("the command cannot be run")
        try:
            async with asyncio.timeout(limit_s):
                output, status = await exchange(process, (lease.payload or "null").encode())
        except TimeoutError:
            return failed("timed out", "timeout")
        finally:
            await kill(process)
        if status == 0:
            return AttemptResult()
        # Its words are the operator's, not the tenant's.
        told = output.decode(errors="replace")
        log.warning("command failed", task=str(lease.id), status=status, output=told)
        return failed(f"the command ended with status {status}")


async def exchange(process: asyncio.subprocess.Process, payload: bytes) -> tuple[bytes, int]:
    """The last of what it wrote, and its status."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        # At most a megabyte; a program that reads none of it may end all the same.
        process.stdin.write(payload)
        await process.stdin.drain()
    process.stdin.close()
    output = b""
    while piece := await process.stdout.read(OUTPUT_BYTES_MAX):
        output = (output + piece)[-OUTPUT_BYTES_MAX:]
    return output, await process.wait()


async def kill(process: asyncio.subprocess.Process) -> None:
    """It, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def failed(error: str, kind: str = "command") -> AttemptResult:
    return AttemptResult(Outcome.FAILED, error=error, error_kind=kind)
