"""A real pseudo terminal with a `duly` in it: typed into, looked at, always ended."""

import contextlib
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from fcntl import ioctl

from tests.processes import PROJECT, eventually

ROWS, COLUMNS = 50, 160
CTRL_C = "\x03"
# Makes the terminal the program's own, so that what is typed there can interrupt it.
# A test run in the background of a shell ignores Ctrl-C, and so would what it starts.
LAUNCHER = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    " signal.signal(signal.SIGINT, signal.SIG_DFL);"
    " os.execv(sys.executable, [sys.executable, '-m', 'duly', *sys.argv[1:]])"
)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
WAIT_S = 30.0


class Terminal:
    def __init__(self, *arguments: str, environ: Mapping[str, str], columns: int = COLUMNS) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *arguments],
            cwd=PROJECT,
            env={**os.environ, "TERM": "xterm-256color", **environ},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = b""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        # The terminal of a program that has ended answers with an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(self.master, 65536):
                self.seen += chunk

    @property
    def raw(self) -> str:
        return self.seen.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Everything that was shown, without colours and movements."""
        return ESCAPES.sub("", self.raw)

    def shows(self, pattern: str) -> None:
        eventually(
            lambda: re.search(pattern, self.text),
            f"the terminal shows {pattern!r}",
            timeout_s=WAIT_S,
        )

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()
        os.close(self.master)


@contextlib.contextmanager
def terminal(
    *arguments: str, environ: Mapping[str, str], columns: int = COLUMNS
) -> Iterator[Terminal]:
    opened = Terminal(*arguments, environ=environ, columns=columns)
    try:
        yield opened
    finally:
        opened.close()
