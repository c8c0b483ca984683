"""The check process: validates payloads against costly schemas; started by process.py.

It reads a request, answers it, and ends with its parent: nothing is left when that is killed. The
kernel ends it past its processor time or its memory, because nothing in Python could. It ends by
itself when it has been idle, or has grown.

| frame | from | holds |
|---|---|---|
| hello | child, once | nothing |
| request | parent | schema, payloads; none of them asks whether the schema is sound |
| soundness | child | the reason why it is not, or empty |
| verdict | child, one for each payload | `f` fits, `m` does not fit |
| problem | child, after each `m` | pointer and reason |
| remainder | child | how much of its processor time is left for further requests of the call |
"""

import contextlib
import os
import resource
import signal
import socket
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from duly.domain.limits import Problem
from duly.validation.schema import REASON_CHARACTERS_MAX, UNSOUND, compile_schema, first_problem

MEMORY_BYTES_MAX = 128 * 1024 * 1024
MEMORY_BYTES_KEPT = 64 * 1024 * 1024
IDLE_S_MAX = 60.0
PAYLOAD_CPU_S_MAX = 0.5
CALL_CPU_S_MAX = 5.0
# A timer of nothing would never end.
CPU_S_MIN = 0.01
# The server's own work goes first.
NICENESS = 5
SCHEMAS_KEPT = 8
LENGTH = struct.Struct("!I")
SECONDS = struct.Struct("!d")
FITS, MISFIT = b"f", b"m"


class Request(msgspec.Struct, frozen=True, array_like=True):
    """`cpu_s`: what is left of the processor time for all that is asked in one call."""

    schema: str
    payloads: list[bytes]
    cpu_s: float


def main() -> None:
    confine()
    parent = socket.socket(fileno=0)
    parent.settimeout(IDLE_S_MAX)
    with contextlib.suppress(EOFError, OSError):
        send(parent, b"")
        while not is_grown():
            answer(parent, msgspec.msgpack.decode(receive(parent), type=Request))


def is_grown() -> bool:
    """By what it has now: the peak of `getrusage` counts what its parent had at the fork."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize() > MEMORY_BYTES_KEPT


def confine() -> None:
    """What ends it is its parent's end, or the kernel."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)


def answer(parent: socket.socket, request: Request) -> None:
    """The timer counts processor time, so that a busy machine ends nothing; its signal kills."""
    remaining_s = allow(request.cpu_s)
    try:
        validator, reason = compiled(request.schema), ""
    except UNSOUND as error:
        validator, reason = None, str(error).partition("\n")[0][:REASON_CHARACTERS_MAX]
    send(parent, reason.encode(errors="replace"))
    for payload in request.payloads if validator is not None else []:
        document = msgspec.json.decode(payload)
        if validator.is_valid(document):
            send(parent, FITS)
        else:
            send(parent, MISFIT)
            send(parent, encode_problem(first_problem(validator, document)))
        remaining_s = allow(remaining_s)
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    send(parent, SECONDS.pack(remaining_s))


def allow(remaining_s: float) -> float:
    """The next payload's time; what is left of the request's after what the last one took."""
    unused_s, _ = signal.getitimer(signal.ITIMER_PROF)
    if unused_s:
        remaining_s -= max(min(PAYLOAD_CPU_S_MAX, remaining_s) - unused_s, 0.0)
    remaining_s = max(remaining_s, CPU_S_MIN)
    signal.setitimer(signal.ITIMER_PROF, min(PAYLOAD_CPU_S_MAX, remaining_s))
    return remaining_s


@lru_cache(SCHEMAS_KEPT)
def compiled(schema: str) -> Any:
    return compile_schema(schema)


def encode_problem(problem: Problem) -> bytes:
    return msgspec.msgpack.encode((problem.pointer, problem.reason))


def receive(peer: socket.socket) -> bytes:
    (size,) = LENGTH.unpack(receive_exactly(peer, LENGTH.size))
    return receive_exactly(peer, size)


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        piece = peer.recv(min(size - len(pieces), 1 << 20))
        if not piece:
            raise EOFError
        pieces += piece
    return bytes(pieces)


def send(peer: socket.socket, frame: bytes) -> None:
    peer.sendall(LENGTH.pack(len(frame)) + frame)


if __name__ == "__main__":
    main()
