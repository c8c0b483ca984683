"""Client of the check process for costly payload checks. Blocking: for threads.

| event | what its user gets |
|---|---|
| a payload takes too much processor time | `ProcessEnd.TIME`; the next check starts a new process |
| a payload or a schema takes more memory | the same, with `ProcessEnd.MEMORY` |
| a process that served others before dies of anything else | asked again, once, in a fresh one |
| no answer for a while: the machine is overloaded | killed, `ProcessEnd.SILENCE` |
| it cannot be started | `CheckProcessUnavailable` |
| its parent is killed | it reads the end of its input, or its time runs out |
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from duly.domain.errors import CheckProcessUnavailable
from duly.domain.limits import Problem
from duly.validation.child import (
    CALL_CPU_S_MAX,
    FITS,
    MEMORY_BYTES_MAX,
    PAYLOAD_CPU_S_MAX,
    SECONDS,
    Request,
    receive,
    send,
)

COMMAND = ("-P", "-m", "duly.validation.child")
START_S_MAX = 30.0
ANSWER_S_MAX = 20.0
END_S_MAX = 2.0
# Of payloads in one request; a batch of a thousand small ones is one.
REQUEST_BYTES_MAX = 1024 * 1024
MEGABYTE = 1024 * 1024
UNTOLD = Problem("/payload", "does not fit the schema; to say where takes too long")


class ProcessEnd(Enum):
    """Why a process ended before it had answered."""

    TIME = (
        f"takes too long ({PAYLOAD_CPU_S_MAX:g} s of processor time is the most for one payload,"
        f" {CALL_CPU_S_MAX:g} s for all of a call)"
    )
    MEMORY = f"takes more than {MEMORY_BYTES_MAX // MEGABYTE} MB of memory"
    SILENCE = "was not answered in time"


@dataclass
class CheckResult:
    """What is wrong with each payload, in order, as far as the process came. `unsound` says why the
    schema is none; `cpu_s` is what is left for the rest."""

    found: list[Problem | None] = field(default_factory=list)
    unsound: str = ""
    end: ProcessEnd | None = None
    cpu_s: float = CALL_CPU_S_MAX

    def problems(self, count: int) -> list[Problem | None]:
        """For each of so many payloads. Those after one that was found may be missing: the call is
        refused for it all the same."""
        if self.unsound:
            reason = f"cannot be checked: the schema of its type is not sound: {self.unsound}"
            return [Problem("/payload", reason)] * count
        found = list(self.found)
        if self.end is not None and not any(found):
            found.append(Problem("/payload", f"{self.end.value} to check by its schema"))
        return found + [None] * (count - len(found))


class CheckProcess:
    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.peer: socket.socket | None = None
        self.is_killed = False

    def check(self, schema: str, payloads: Sequence[bytes]) -> CheckResult:
        """Without payloads, whether the schema is sound."""
        checked, self.is_killed = CheckResult(), False
        for part in parts_of(payloads):
            answer = self.ask(Request(schema, part, checked.cpu_s))
            answer.found = checked.found + answer.found
            checked = answer
            if answer.end is not None or answer.unsound:
                break
        return checked

    def ask(self, request: Request) -> CheckResult:
        is_fresh = self.child is None
        answer = self.ask_once(request)
        is_own_fault = is_fresh or self.is_killed or UNTOLD in answer.found
        if answer.end is ProcessEnd.MEMORY and not is_own_fault:
            # Its caches may have filled its memory; or it was idle and has just ended.
            answer = self.ask_once(request)
        return answer

    def ask_once(self, request: Request) -> CheckResult:
        child, peer = self.started()
        answer = CheckResult()
        try:
            send(peer, msgspec.msgpack.encode(request))
            answer.unsound = receive(peer).decode()
            while not answer.unsound and len(answer.found) < len(request.payloads):
                is_fit = receive(peer) == FITS
                # A verdict stands, also if the process ends over its reason.
                answer.found.append(None if is_fit else UNTOLD)
                if not is_fit:
                    answer.found[-1] = decode_problem(receive(peer))
            (answer.cpu_s,) = SECONDS.unpack(receive(peer))
        except TimeoutError:
            answer.end = ProcessEnd.SILENCE
            self.close()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_S_MAX)
            answer.end = (
                ProcessEnd.TIME if child.returncode == -signal.SIGPROF else ProcessEnd.MEMORY
            )
            self.close()
        return answer

    def started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self.child is not None and self.peer is not None:
            return self.child, self.peer
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = subprocess.Popen(
                    [sys.executable, *COMMAND],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # It runs what tenants wrote, and needs no secret of ours.
                    env={k: v for k, v in os.environ.items() if not k.startswith("DULY_")},
                )
        except OSError as error:
            ours.close()
            raise CheckProcessUnavailable(problem=str(error)) from error
        self.child, self.peer = child, ours
        try:
            ours.settimeout(START_S_MAX)
            receive(ours)
        except (EOFError, OSError) as error:
            self.close()
            raise CheckProcessUnavailable(problem=f"it ended with {child.returncode}") from error
        ours.settimeout(ANSWER_S_MAX)
        return child, ours

    def kill(self) -> None:
        """Called from another thread: a caller that waits for an answer gets the end of the
        stream."""
        self.is_killed = True
        if self.child is not None:
            self.child.kill()

    def close(self) -> None:
        """Ends it, however far it is."""
        child, peer = self.child, self.peer
        self.child = self.peer = None
        if peer is not None:
            peer.close()
        if child is not None:
            child.kill()
            child.wait()


def decode_problem(frame: bytes) -> Problem:
    return Problem(*msgspec.msgpack.decode(frame, type=tuple[str, str]))


def parts_of(payloads: Sequence[bytes]) -> list[list[bytes]]:
    """Requests of a bounded size; one without payloads, if there are none."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for payload in payloads:
        if parts[-1] and size + len(payload) > REQUEST_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(payload)
        size += len(payload)
    return parts
