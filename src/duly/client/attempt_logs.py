"""Lines that handlers log, on their way to the server: of `ctx.log`, `logging` records made in a
handler, and what it prints; in bounded chunks. A log never stops or slows a handler.

| event | what happens |
|---|---|
| server away, or it refuses | the chunk is dropped; the attempt goes on |
| more than CHUNKS_MAX chunks of an attempt | the last line says so, and the rest is dropped |
| a server before these calls | the first answer 404 ends sending |
| the worker is killed | what was not sent yet, at most a second's worth, is missing |
| a handler in a process is killed | the same, of the line that it was at |
"""

import asyncio
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import msgspec

from duly.client.clock import utc_now
from duly.client.errors import ApiError
from duly.client.leased_tasks import LeasedTask
from duly.client.worker_api import WorkerApi
from duly.domain.errors import DulyError

# As the server bounds them (api/task_logs.py).
CHUNKS_MAX = 64
CHUNK_LINES_MAX = 500
CHUNK_BYTES_MAX = 24 * 1024
LINE_CHARACTERS_MAX = 4000
CHUNKS_PER_CALL = 50
# Of all attempts of the worker together, while the server does not answer.
WAITING_CHUNKS_MAX = 1000
FLUSH_S = 0.5
LEVELS = {"critical": "error", "fatal": "error", "exception": "error", "warn": "warning"}
LOGGED_LEVELS = frozenset({"debug", "info", "warning", "error"})
STDOUT = "stdout"
KNOWN_LEVELS = LOGGED_LEVELS | {STDOUT}
CUT = "more was logged than is kept of one attempt"
REDACTED = "[redacted]"
# Of `ctx.log.info("paid", card_token=...)`: names whose values are never kept.
SECRET_NAME = re.compile(r"passw|secret|token|authorization|api_?key|credential", re.IGNORECASE)

current: ContextVar["LineLog | None"] = ContextVar("duly_attempt_log", default=None)


class Line(msgspec.Struct):
    at: datetime
    level: str
    text: str


class Chunk(msgspec.Struct):
    id: str
    fence: int
    seq: int
    lines: list[Line]


class LineLog:
    """Where the lines of one attempt go."""

    __slots__ = ("printed",)

    def __init__(self) -> None:
        # What was printed of a line that has not ended yet.
        self.printed = ""

    def add(self, level: str, text: str) -> None:
        raise NotImplementedError

    def add_printed(self, text: str) -> None:
        *lines, self.printed = (self.printed + text).split("\n")
        for line in lines:
            self.add(STDOUT, line)
        if len(self.printed) > LINE_CHARACTERS_MAX:
            self.end_printed()

    def end_printed(self) -> None:
        """What comes next is another line."""
        rest, self.printed = self.printed, ""
        if rest:
            self.add(STDOUT, rest)


class PipedLog(LineLog):
    """Of a handler in a process: its worker keeps the lines."""

    __slots__ = ("send",)

    def __init__(self, send: Callable[[Any], None]) -> None:
        super().__init__()
        self.send = send

    def add(self, level: str, text: str) -> None:
        self.send(("log", (level, text[:LINE_CHARACTERS_MAX])))


class AttemptLog(LineLog):
    """The lines of one attempt that were not sent yet. Any thread adds to it."""

    __slots__ = ("lines", "seq", "shipper", "size", "task")

    def __init__(self, task: LeasedTask, shipper: "LogShipper") -> None:
        super().__init__()
        self.task = task
        self.shipper = shipper
        self.lines: list[Line] = []
        self.size = 0
        self.seq = 0

    def add(self, level: str, text: str) -> None:
        if self.seq >= CHUNKS_MAX:
            return
        level = LEVELS.get(level, level)
        for pattern in self.shipper.redactions:
            text = pattern.sub(REDACTED, text)
        text = text[:LINE_CHARACTERS_MAX].replace("\x00", "\ufffd")
        # A JSON escape can take six bytes.
        size = len(text.encode(errors="replace")) + 60
        with self.shipper.lock_of_lines:
            if self.size + size > CHUNK_BYTES_MAX or len(self.lines) >= CHUNK_LINES_MAX:
                self.cut_chunk()
            known = level if level in KNOWN_LEVELS else "info"
            self.lines.append(Line(utc_now(), known, text))
            self.size += size
        self.shipper.wake(self)

    def cut_chunk(self) -> None:
        """Called with the lock held."""
        if not self.lines or self.seq >= CHUNKS_MAX:
            self.lines = []
            return
        if self.seq == CHUNKS_MAX - 1:
            self.lines.append(Line(utc_now(), "warning", CUT))
        self.shipper.waiting.append(Chunk(self.task.id, self.task.fence, self.seq, self.lines))
        self.seq += 1
        self.lines, self.size = [], 0


class LogShipper:
    """Sends chunks half a second after the first line of them, off the handlers' way."""

    def __init__(self, worker_api: WorkerApi, redactions: Sequence[re.Pattern[str]] = ()) -> None:
        self.worker_api = worker_api
        self.redactions = redactions
        self.loop = asyncio.get_running_loop()
        self.lock_of_lines = threading.Lock()
        self.waiting: deque[Chunk] = deque(maxlen=WAITING_CHUNKS_MAX)
        self.open: set[AttemptLog] = set()
        self.flight: asyncio.Task[None] | None = None
        self.is_woken = False
        self.is_off = False
        self.is_detached = False
        capture.begin()

    def wake(self, log: AttemptLog) -> None:
        """From any thread."""
        self.open.add(log)
        if not self.is_woken and not self.is_off and not self.loop.is_closed():
            self.is_woken = True
            self.loop.call_soon_threadsafe(self.start_flight)

    def start_flight(self) -> None:
        if self.flight is None or self.flight.done():
            self.flight = self.loop.create_task(self.send_soon())

    async def send_soon(self) -> None:
        """Again for lines that come while others are on their way: they start no flight."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self.is_woken = False
            await self.send_all()
            if not self.is_woken:
                return

    async def send_all(self) -> None:
        with self.lock_of_lines:
            for log in list(self.open):
                log.cut_chunk()
            self.open.clear()
        while self.waiting and not self.is_off:
            chunks = [
                self.waiting.popleft() for _ in range(min(len(self.waiting), CHUNKS_PER_CALL))
            ]
            try:
                await self.worker_api.send_logs(chunks)
            except ApiError as error:
                self.is_off = error.code == "not_found"
            except DulyError:
                return

    async def finish(self, limit_s: float) -> None:
        """What is still here is sent, once."""
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.cancel()
            await asyncio.gather(flight, return_exceptions=True)
        try:
            async with asyncio.timeout(limit_s):
                await self.send_all()
        except TimeoutError:
            return

    def detach(self) -> None:
        """No further line is taken."""
        if not self.is_detached:
            self.is_off = self.is_detached = True
            capture.end()


class CapturingHandler(logging.Handler):
    """Records of `logging` that are made inside of a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        # A program without logging of its own sees warnings all the same.
        last = logging.lastResort
        is_only = last is not None and logging.getLogger().handlers == [self]
        if last is not None and is_only and record.levelno >= last.level:
            last.handle(record)
        log = current.get()
        if log is None:
            return
        try:
            log.add(record.levelname.lower(), self.format(record))
        except Exception:
            self.handleError(record)


class PrintedOutput:
    """Standard output: whatever else becomes of it, what a handler prints is kept."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> Any:
        log = current.get()
        if log is not None:
            log.add_printed(text)
        return self.stream.write(text)

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Capture:
    """What is taken of a program as long as it has a worker, and once where it has several."""

    def __init__(self) -> None:
        self.users = 0
        self.handler = CapturingHandler()
        self.lock = threading.Lock()

    def begin(self) -> None:
        with self.lock:
            self.users += 1
            if self.users == 1:
                logging.getLogger().addHandler(self.handler)
            if sys.stdout is not None and not isinstance(sys.stdout, PrintedOutput):
                sys.stdout = PrintedOutput(sys.stdout)

    def end(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users:
                return
            logging.getLogger().removeHandler(self.handler)
            if isinstance(sys.stdout, PrintedOutput):
                sys.stdout = sys.stdout.stream


capture = Capture()


@contextmanager
def capturing(log: LineLog | None) -> Iterator[None]:
    """What is logged inside belongs to this attempt."""
    token = current.set(log)
    try:
        yield
    finally:
        current.reset(token)
        if log is not None:
            log.end_printed()


class AttemptLogger:
    """`ctx.log`: a structlog logger whose lines are kept with the attempt, too."""

    def __init__(self, logger: Any, log: LineLog | None) -> None:
        self.logger = logger
        self.attempt_log = log

    def bind(self, **values: Any) -> "AttemptLogger":
        return AttemptLogger(self.logger.bind(**values), self.attempt_log)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.logger, name)
        log = self.attempt_log
        if log is None or (name not in LOGGED_LEVELS and name not in LEVELS):
            return method

        def write(event: object = "", *arguments: Any, **values: Any) -> Any:
            words = [str(event) % arguments if arguments else str(event)]
            words += [
                f"{key}={REDACTED if SECRET_NAME.search(key) else repr(value)}"
                for key, value in values.items()
                if key != "exc_info"
            ]
            log.add(name, " ".join(words))
            # It may end up in `logging`: once is enough.
            with capturing(None):
                return method(event, *arguments, **values)

        return write
