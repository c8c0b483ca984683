"""Real child processes for tests: started, listened to, and always ended."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from duly.environment import CrashPoint

PROJECT = Path(__file__).parent.parent
WAIT_MAX_S = 60.0
POLL_S = 0.02


class Child:
    """A Python program of ours; its lines are read as they come."""

    def __init__(self, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=PROJECT,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self.readers = [
            threading.Thread(target=self.read_lines, daemon=True),
            threading.Thread(target=self.read_errors, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put("")

    def read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said_on_errors(self) -> str:
        return "".join(self.errors)

    def line(self, timeout_s: float = WAIT_MAX_S) -> str:
        """The next line of its output; an end instead of a line fails with what it complained."""
        line = self.lines.get(timeout=timeout_s)
        if not line:
            self.wait()
            raise AssertionError(f"the process ended early: {self.said_on_errors}")
        return line

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(self.line())
        return answer

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = WAIT_MAX_S) -> int:
        code = self.process.wait(timeout_s)
        for reader in self.readers:
            reader.join(timeout_s)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.wait(WAIT_MAX_S / 2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def child(*arguments: str, environ: Mapping[str, str] | None = None) -> Iterator[Child]:
    started = Child(*arguments, environ=environ)
    try:
        yield started
    finally:
        started.close()


@contextlib.contextmanager
def doomed(
    point: CrashPoint, *arguments: str, environ: Mapping[str, str] | None = None
) -> Iterator[Child]:
    """A program that dies when it first comes to the point; one that never does fails the test."""
    with child(*arguments, environ={**(environ or {}), "DULY_CRASH_AT": point.value}) as dying:
        yield dying
        assert dying.wait() == -signal.SIGKILL, dying.said_on_errors


def eventually(
    is_true: Callable[[], object], claim: str, timeout_s: float = WAIT_MAX_S / 2
) -> None:
    """Look until it is true, and fail with the claim if it never is."""
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_at, f"not within {timeout_s} s: {claim}"
        time.sleep(POLL_S)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def kill_all(pids: set[int]) -> None:
    """kill -9, as a machine's end would; only pids that the test itself found in its own folder."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(is_alive(pid) for pid in pids), f"{pids} are gone")
