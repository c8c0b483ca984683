"""Hints between processes by LISTEN and NOTIFY. Losing them makes things slower and nothing worse.

A hint is a short text; several travel in one payload, a line each. `Channel` listens, over a
connection of its own; `Notifier` sends, through the pool; `PacedHints` throttles those that are as many
as tasks. None of them knows what a hint means.

| event | what happens |
|---|---|
| connection lost, server restarted | noticed at once or at the next probe; connected again after a jittered, doubling pause |
| transaction-mode pooler that swallows notifications | the probe is not answered: `is_working` is False, tried again now and then |
| half-open connection | the same |
| NOTIFY fails, or the server's queue is full | those hints are lost, and counted |
| more hints than can be sent | the newest are lost, and counted |
| a listener raises | logged; the other listeners and hints go on |
| sent before we listen, or while we do not | `on_listening`, once we do: waiting consumers poll |
"""  # noqa: E501 (a table row is one line)

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import asyncpg

from duly.backoff import backoff_s
from duly.domain.errors import DulyError
from duly.environment import Environment
from duly.role import Wakeup
from duly.store.connection_pool import CONNECTION_FAULTS
from duly.store.database import Database, connect, translated_faults
from duly.store.statements import statements_beside
from duly.telemetry import get_logger

SQL = statements_beside(__file__)
OWNERSHIP = "duly_ownership"
DOORBELL = "duly_doorbell"
FREED = "duly_freed"
READY = "duly_ready"
SCHEDULES = "duly_schedules"
CHANGED = "duly_changed"
BULK = "duly_bulk"
WORKFLOWS = "duly_workflows"
# PostgreSQL refuses a payload of 8,000 bytes.
PAYLOAD_BYTES_MAX = 7999
SEPARATOR = "\n"
PROBE_TIMEOUT_S = 2.0
PROBE_EVERY_S = 30.0
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 60.0
CLOSE_TIMEOUT_S = 1.0
WAITING_MAX = 50_000
# Payloads of one NOTIFY statement; the rest waits for the next.
PAYLOADS_MAX = 200
# Of a paced channel: how often it sends, and how many different hints may wait for that.
PACE_S = 0.05
PACED_MAX = 1000

log = get_logger("duly.channel")

Listener = Callable[[list[str]], None]
Send = Callable[[str, list[str]], None]


class Channel:
    """A role: each tick connects if need be, then proves that notifications arrive.

    The probe is sent through the pool, not over the listening connection: a pooler may deliver
    what a session sends to itself, and nothing else.
    """

    name = "channel"

    def __init__(
        self,
        database: Database,
        environment: Environment,
        listeners: Mapping[str, Listener],
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self.database = database
        self.environment = environment
        self.listeners = listeners
        self.on_listening = on_listening
        self.connection: asyncpg.Connection | None = None
        self.is_working = False
        self.failures_in_a_row = 0
        self.probe_channel = f"duly_probe_{environment.random.getrandbits(64):016x}"
        self.expected = ""
        self.answered = asyncio.Event()
        self.wakeup = Wakeup()

    async def tick(self) -> float:
        try:
            if self.connection is None or self.connection.is_closed():
                await self.listen()
                self.on_listening()
            is_answered = await self.probe()
        except DulyError as error:
            return await self.give_up(str(error))
        if not is_answered:
            return await self.give_up("a notification did not arrive (a pooler, or a dead peer)")
        if not self.is_working:
            log.info("notifications work")
        self.is_working = True
        self.failures_in_a_row = 0
        return PROBE_EVERY_S

    async def listen(self) -> None:
        self.connection = await connect(self.database.url)
        self.connection.add_termination_listener(self.on_lost)
        with translated_faults(self.database.url):
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                for channel in (self.probe_channel, *self.listeners):
                    await self.connection.add_listener(channel, self.on_payload)

    async def probe(self) -> bool:
        self.answered.clear()
        self.expected = f"{self.environment.random.getrandbits(64):016x}"
        await self.database.fetch(SQL.notify, [self.probe_channel], [self.expected])
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self.answered.wait()
        except TimeoutError:
            return False
        return True

    def on_payload(self, connection: object, _process: int, channel: str, payload: object) -> None:
        """Called by the driver for each notification."""
        if connection is not self.connection:
            return
        hints = str(payload).split(SEPARATOR)
        if channel == self.probe_channel:
            if self.expected in hints:
                self.answered.set()
            return
        try:
            self.listeners[channel](hints)
        except Exception as error:
            log.warning("notification listener failed", channel=channel, error=repr(error))

    def on_lost(self, connection: object) -> None:
        """Called by the driver when the connection has ended, for any reason."""
        if connection is self.connection:
            self.connection = None
            self.is_working = False
            self.wakeup.wake()

    async def give_up(self, problem: str) -> float:
        """Start again with a new connection, later and later."""
        if self.failures_in_a_row == 0:
            log.warning("notifications do not work, polling only", problem=problem)
        self.failures_in_a_row += 1
        failures, random = self.failures_in_a_row, self.environment.random
        pause_s = backoff_s(failures, BACKOFF_FIRST_S, BACKOFF_MAX_S, random)
        await self.close()
        return pause_s

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        self.is_working = False
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=CLOSE_TIMEOUT_S)
        except CONNECTION_FAULTS:
            connection.terminate()


class Notifier:
    """Sends hints in the background; those that arrive while a NOTIFY is in flight form the
    next."""

    def __init__(self, database: Database, waiting_max: int = WAITING_MAX) -> None:
        self.database = database
        self.waiting_max = waiting_max
        self.waiting: dict[str, list[str]] = {}
        self.waiting_count = 0
        self.hints_lost = 0
        self.flight: asyncio.Task[None] | None = None

    def send(self, channel: str, hints: Iterable[str]) -> None:
        """Queue hints for sending. Never waits and never fails."""
        queue = self.waiting.setdefault(channel, [])
        for hint in hints:
            assert len(hint.encode()) <= PAYLOAD_BYTES_MAX, "a hint is short"
            assert hint, "a hint is not empty"
            assert SEPARATOR not in hint, "a hint is one line"
            if self.waiting_count >= self.waiting_max:
                self.hints_lost += 1
                continue
            queue.append(hint)
            self.waiting_count += 1
        if self.flight is None and self.waiting_count:
            self.flight = asyncio.get_running_loop().create_task(self.run_batch(), name="notify")

    async def run_batch(self) -> None:
        try:
            while self.waiting_count:
                await self.send_batch(self.take())
        finally:
            self.flight = None

    def take(self) -> list[tuple[str, list[str]]]:
        """The oldest hints, as (channel, hints of one payload)."""
        batch: list[tuple[str, list[str]]] = []
        for channel in list(self.waiting):
            queue = self.waiting[channel]
            taken = 0
            for hints in payloads(queue):
                if len(batch) >= PAYLOADS_MAX:
                    break
                batch.append((channel, hints))
                taken += len(hints)
            self.waiting_count -= taken
            del queue[:taken]
            if not queue:
                del self.waiting[channel]
        return batch

    async def send_batch(self, batch: list[tuple[str, list[str]]]) -> None:
        channels = [channel for channel, _ in batch]
        texts = [SEPARATOR.join(hints) for _, hints in batch]
        try:
            await self.database.fetch(SQL.notify, channels, texts)
        except DulyError as error:
            lost = sum(len(hints) for _, hints in batch)
            self.hints_lost += lost
            log.warning("notifications lost", count=lost, error=str(error))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what waits, for a bounded time."""
        if self.flight is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.flight, timeout_s)


class PacedHints:
    """Hints of one channel, sent at most every `pace_s`: the first at once, those that come soon
    after it together and once each. More than may wait is lost, as any hint may be."""

    def __init__(
        self, send: Send, channel: str, pace_s: float = PACE_S, waiting_max: int = PACED_MAX
    ) -> None:
        self.send = send
        self.channel = channel
        self.pace_s = pace_s
        self.waiting_max = waiting_max
        self.waiting: dict[str, None] = {}
        self.rest: asyncio.TimerHandle | None = None

    def add(self, hints: Iterable[str]) -> None:
        for hint in hints:
            if len(self.waiting) >= self.waiting_max:
                break
            self.waiting[hint] = None
        if self.waiting and self.rest is None:
            self.send_waiting()

    def send_waiting(self) -> None:
        self.rest = None
        if self.waiting:
            hints, self.waiting = list(self.waiting), {}
            self.rest = asyncio.get_running_loop().call_later(self.pace_s, self.send_waiting)
            self.send(self.channel, hints)


def payloads(hints: list[str]) -> Iterator[list[str]]:
    """Hints in order, in groups that fit into one payload each."""
    group: list[str] = []
    size = 0
    for hint in hints:
        more = len(hint.encode()) + len(SEPARATOR)
        if group and size + more > PAYLOAD_BYTES_MAX + len(SEPARATOR):
            yield group
            group, size = [], 0
        group.append(hint)
        size += more
    if group:
        yield group
