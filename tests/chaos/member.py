"""One process of the cluster, and whoever starts it again when it is gone."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from tests.processes import PROJECT

RESTART_S = (0.2, 1.5)
# Beyond the longest orderly stop, on a machine that has more to do.
END_S = 40.0


class Member:
    """Its first line of output says that it is ready."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        random: Random,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.environ = environ
        self.log = folder / f"{name}.log"
        self.random = random
        self.process: asyncio.subprocess.Process | None = None
        self.is_ready = asyncio.Event()
        self.closing = asyncio.Event()
        self.is_doomed = False
        self.failed_starts = 0
        # Killed by what it ran.
        self.poisoned = 0
        # Ended by itself after it had been ready: nothing that we do to others excuses that.
        self.unexplained: list[str] = []

    async def supervise(self) -> None:
        """Ends by itself once this is closing: a start that is cancelled would leave a process."""
        while not self.closing.is_set():
            code = await self.live()
            if self.closing.is_set():
                return
            if not self.is_ready.is_set():
                self.failed_starts += not self.is_doomed
            elif code == -signal.SIGKILL and not self.is_doomed:
                self.poisoned += 1
            elif not self.is_doomed:
                self.unexplained.append(f"{self.name} ended by itself with {code}")
            self.is_ready.clear()
            self.is_doomed = False
            await asyncio.sleep(self.random.uniform(*RESTART_S))

    async def live(self) -> int:
        """From its start to its end."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.arguments,
                cwd=PROJECT,
                env={**os.environ, **self.environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                # A Ctrl-C on the terminal is for the harness, which then ends all of them.
                start_new_session=True,
            )
        assert self.process.stdout is not None
        if self.closing.is_set():
            # It was ended while it was being started, and knew of no process.
            self.send(signal.SIGKILL)
        if await self.process.stdout.readline():
            self.is_ready.set()
        return await self.process.wait()

    @property
    def pid(self) -> int | None:
        is_there = self.process is not None and self.process.returncode is None
        return self.process.pid if is_there and self.process is not None else None

    def send(self, number: signal.Signals) -> int | None:
        """The pid that was hit; None if there was nobody."""
        pid = self.pid
        if pid is None:
            return None
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            # It has ended, and the word of it is on its way.
            return None
        return pid

    def kill(self) -> int | None:
        pid = self.send(signal.SIGKILL)
        self.is_doomed = self.is_doomed or pid is not None
        return pid

    async def end(self) -> None:
        """In order if it can, else not."""
        self.closing.set()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self.process is None:
            return
        try:
            async with asyncio.timeout(END_S):
                await self.process.wait()
        except TimeoutError:
            self.unexplained.append(f"{self.name} did not stop within {END_S:g} s")
        finally:
            self.send(signal.SIGKILL)
