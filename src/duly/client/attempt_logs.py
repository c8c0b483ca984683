"""Lines that handlers log, on their way to the server: of `ctx.log`, and `logging` records made in
a handler; in bounded chunks. A log never stops or slows a handler.

| event | what happens |
|---|---|
| server away, or it refuses | the chunk is dropped; the attempt goes on |
| more than CHUNKS_MAX chunks of an attempt | the last line says so, and the rest is dropped |
| a server before these calls | the first answer 404 ends sending |
| the worker is killed | what was not sent yet, at most a second's worth, is missing |
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterator
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
KNOWN_LEVELS = frozenset({"debug", "info", "warning", "error"})
CUT = "more was logged than is kept of one attempt"

current: ContextVar["AttemptLog | None"] = ContextVar("duly_attempt_log", default=None)


class Line(msgspec.Struct):
    at: datetime
    level: str
    text: str


class Chunk(msgspec.Struct):
    id: str
    fence: int
    seq: int
    lines: list[Line]


class AttemptLog:
    """The lines of one attempt that were not sent yet. Any thread adds to it."""

    __slots__ = ("lines", "seq", "shipper", "size", "task")

    def __init__(self, task: LeasedTask, shipper: "LogShipper") -> None:
        self.task = task
        self.shipper = shipper
        self.lines: list[Line] = []
        self.size = 0
        self.seq = 0

    def add(self, level: str, text: str) -> None:
        if self.seq >= CHUNKS_MAX:
            return
        level = LEVELS.get(level, level)
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

    def __init__(self, worker_api: WorkerApi) -> None:
        self.worker_api = worker_api
        self.loop = asyncio.get_running_loop()
        self.lock_of_lines = threading.Lock()
        self.waiting: deque[Chunk] = deque(maxlen=WAITING_CHUNKS_MAX)
        self.open: set[AttemptLog] = set()
        self.flight: asyncio.Task[None] | None = None
        self.is_woken = False
        self.is_off = False
        self.handler = CapturingHandler()
        logging.getLogger().addHandler(self.handler)

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
        await asyncio.sleep(FLUSH_S)
        self.is_woken = False
        await self.send_all()

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
        self.is_off = True
        logging.getLogger().removeHandler(self.handler)


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


@contextmanager
def capturing(log: AttemptLog | None) -> Iterator[None]:
    """What is logged inside belongs to this attempt."""
    token = current.set(log)
    try:
        yield
    finally:
        current.reset(token)


class AttemptLogger:
    """`ctx.log`: a structlog logger whose lines are kept with the attempt, too."""

    def __init__(self, logger: Any, log: AttemptLog | None) -> None:
        self.logger = logger
        self.attempt_log = log

    def bind(self, **values: Any) -> "AttemptLogger":
        return AttemptLogger(self.logger.bind(**values), self.attempt_log)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.logger, name)
        log = self.attempt_log
        if log is None or (name not in KNOWN_LEVELS and name not in LEVELS):
            return method

        def write(event: object = "", *arguments: Any, **values: Any) -> Any:
            words = [str(event) % arguments if arguments else str(event)]
            words += [f"{key}={value!r}" for key, value in values.items() if key != "exc_info"]
            log.add(name, " ".join(words))
            # It may end up in `logging`: once is enough.
            with capturing(None):
                return method(event, *arguments, **values)

        return write
