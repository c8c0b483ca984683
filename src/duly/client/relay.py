"""`duly relay`: forwards the rows of an outbox in another PostgreSQL to duly, each exactly once.

Once within the life of idempotency keys, seven days: each row's id makes the key of its task.

| event | what happens |
|---|---|
| killed before or after the submit, or before its own commit | the rows are still there; sent again with the same keys, each is answered with the task it has |
| duly down, slow, or at its limits | the rows stay and are sent again after a growing pause |
| the outbox's database down or restarted | connected again after a growing pause |
| duly refuses a row | set aside in duly_outbox_refused with the reason; its neighbours go on |
| two relays at once | each takes rows that the other has not locked |
| a notification lost, or a pooler that swallows them | found by the next look, `poll_s` later |
"""  # noqa: E501 (a table row is one line)

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from duly.client.asynchronous import AsyncClient
from duly.client.errors import ApiError, Conflict, Forbidden, Invalid
from duly.client.request import encode_task, task_fields
from duly.client.submits import SubmitQueue
from duly.client.wire import jittered
from duly.domain.errors import DulyError

DDL = (Path(__file__).parent / "outbox.sql").read_text("utf-8")
CHANNEL = "duly_outbox"
BATCH_MAX = 500
PART_BYTES_MAX = 64 * 1024
POLL_S = 1.0
PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 30.0
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 30.0
# Rows stay locked while duly is asked: not for longer than this, and never for ever.
BOUND_LOCKS = "SET LOCAL idle_in_transaction_session_timeout = '90s'"
# A part that is larger than duly takes is not even fetched.
TAKE = """
SELECT id, type, created_at,
       CASE WHEN octet_length(payload::text) <= $2 THEN payload::text END AS payload,
       CASE WHEN octet_length(options::text) <= $2 THEN options::text END AS options
  FROM duly_outbox
 ORDER BY position
 LIMIT $1
   FOR UPDATE SKIP LOCKED
"""
SET_ASIDE = """
INSERT INTO duly_outbox_refused AS kept (id, type, payload, options, created_at, error)
SELECT outbox.id, outbox.type, outbox.payload, outbox.options, outbox.created_at, refused.error
  FROM unnest($1::uuid[], $2::text[]) AS refused(id, error)
  JOIN duly_outbox AS outbox ON outbox.id = refused.id
    ON CONFLICT (id) DO UPDATE
   SET type = excluded.type, payload = excluded.payload, options = excluded.options,
       refused_at = now(), error = excluded.error
"""
REMOVE = "DELETE FROM duly_outbox WHERE id = ANY ($1::uuid[])"
FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # What the driver says of a connection that was cut in the middle of something.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# No pause mends these.
UNFIT = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.InsufficientPrivilegeError,
)

Step = Literal["before_submit", "after_submit", "after_delete", "after_commit"]
OnStep = Callable[[Step], Awaitable[None]]


class OutboxUnfit(DulyError):
    """the outbox cannot be read: {problem}; `duly relay --create-table` makes one"""


class Row(NamedTuple):
    id: UUID
    type: str
    created_at: datetime
    payload: str | None
    options: str | None


@dataclass(frozen=True)
class Round:
    """What one batch came to. `problem` says why some rows have to wait, `retry_in_s` how long."""

    stored: int = 0
    refused: int = 0
    waiting: int = 0
    problem: str | None = None
    retry_in_s: float = 0.0


async def no_step(_step: Step) -> None:
    """What production does between two steps: nothing."""


class Relay:
    def __init__(
        self,
        source_url: str,
        client: AsyncClient,
        *,
        batch_max: int = BATCH_MAX,
        poll_s: float = POLL_S,
        on_step: OnStep = no_step,
        report: Callable[[Round], None] = lambda _round: None,
    ) -> None:
        self.source_url = source_url
        self.queue = SubmitQueue(client.connection)
        self.batch_max = batch_max
        self.poll_s = poll_s
        self.on_step = on_step
        self.report = report
        self.source: asyncpg.Connection | None = None
        self.notified = asyncio.Event()
        self.is_stopping = False

    def stop(self) -> None:
        """After the batch that is on its way."""
        self.is_stopping = True
        self.notified.set()

    async def run(self) -> None:
        """Until `stop`; faults of either side only make it wait."""
        pause_s = PAUSE_FIRST_S
        try:
            while not self.is_stopping:
                round_ = await self.try_round()
                self.report(round_)
                if round_.problem is not None:
                    await self.wait(max(jittered(pause_s), round_.retry_in_s))
                    pause_s = min(pause_s * 2, PAUSE_MAX_S)
                    continue
                pause_s = PAUSE_FIRST_S
                if round_.stored + round_.refused < self.batch_max:
                    await self.wait(self.poll_s, is_woken=True)
        finally:
            await self.close()

    async def drain(self) -> Round:
        """Until the outbox is empty or something has to wait; what all of it came to."""
        stored = refused = 0
        try:
            while True:
                round_ = await self.try_round()
                self.report(round_)
                stored, refused = stored + round_.stored, refused + round_.refused
                if round_.problem is not None or round_ == Round():
                    return Round(stored, refused, round_.waiting, round_.problem)
        finally:
            await self.close()

    async def wait(self, seconds: float, *, is_woken: bool = False) -> None:
        """For that long, or until a notification; a pause after a fault is not cut short."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.is_stopping:
                    await self.notified.wait()
                    self.notified.clear()
                    if is_woken:
                        return

    async def try_round(self) -> Round:
        try:
            return await self.round()
        except UNFIT as error:
            raise OutboxUnfit(problem=str(error)) from error
        except FAULTS as error:
            await self.close()
            problem = str(error) or type(error).__name__
            return Round(problem=f"the outbox's database: {problem}")

    async def round(self) -> Round:
        """One batch: taken, submitted, and gone from the outbox in one transaction there."""
        source = await self.connected()
        self.notified.clear()
        async with source.transaction():
            await source.execute(BOUND_LOCKS)
            rows = [Row(*row) for row in await source.fetch(TAKE, self.batch_max, PART_BYTES_MAX)]
            if not rows:
                return Round()
            await self.on_step("before_submit")
            errors = await self.submit(rows)
            await self.on_step("after_submit")
            refused = {row.id: str(e) for row, e in zip(rows, errors, strict=True) if is_final(e)}
            done = [row.id for row, e in zip(rows, errors, strict=True) if e is None]
            if refused:
                await source.execute(SET_ASIDE, list(refused), list(refused.values()))
            await source.execute(REMOVE, [*done, *refused])
            await self.on_step("after_delete")
        await self.on_step("after_commit")
        return summary(len(done), len(refused), errors)

    async def submit(self, rows: Sequence[Row]) -> list[Exception | None]:
        """For each row None once its task is durable, or why it is not."""
        answers = await asyncio.gather(*(self.submit_one(row) for row in rows))
        for ordinal, answer in enumerate(answers):
            # Said of a whole batch when one of its types is not allowed: ask of each alone.
            if isinstance(answer, Forbidden) and len(rows) > 1:
                answers[ordinal] = await self.submit_one(rows[ordinal])
        return answers

    async def submit_one(self, row: Row) -> Exception | None:
        """Many of these at once become few calls: the client batches behind the scenes."""
        try:
            body, key = request_of(row)
            await (await self.queue.put(body, key))
        except Conflict as error:
            # The key is known, and its task has come and gone: it was forwarded.
            return None if error.code == "conflict" else error
        except (DulyError, RowUnfit) as error:
            return error
        return None

    async def connected(self) -> asyncpg.Connection:
        if self.source is None or self.source.is_closed():
            self.source = await asyncpg.connect(
                self.source_url,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=COMMAND_TIMEOUT_S,
                # A pooler in transaction mode knows no statement of an earlier transaction.
                statement_cache_size=0,
            )
            await self.source.add_listener(CHANNEL, self.on_notify)
        return self.source

    def on_notify(self, *_notification: object) -> None:
        self.notified.set()

    async def close(self) -> None:
        source, self.source = self.source, None
        if source is not None:
            # Its other end may be gone: do not wait for a farewell.
            source.terminate()


class RowUnfit(ValueError):
    """A row that needs no server to be refused."""


def request_of(row: Row) -> tuple[bytes, str]:
    """The body of the task and its idempotency key, the same every time."""
    for name, part in (("payload", row.payload), ("options", row.options)):
        if part is None:
            raise RowUnfit(f"its {name} is larger than {PART_BYTES_MAX} bytes")
    assert row.payload is not None
    assert row.options is not None
    try:
        options: dict[str, Any] = task_fields(msgspec.json.decode(row.options))
    except (msgspec.DecodeError, TypeError) as error:
        raise RowUnfit(f"its options cannot be read: {error}") from None
    for name in ("type", "payload"):
        if name in options:
            raise RowUnfit(f"its options say {name}, which has a column of its own")
    key = options.setdefault("idempotency_key", f"outbox:{row.id}")
    if not isinstance(key, str):
        raise RowUnfit("its idempotency_key is not text")
    from_creation(options, row.created_at)
    return encode_task(row.type, msgspec.Raw(row.payload.encode()), options), key


def from_creation(options: dict[str, Any], created_at: datetime) -> None:
    """A delay counts from the producer's transaction, however late the relay comes by."""
    delay_s = options.get("delay_s")
    if isinstance(delay_s, int | float) and delay_s >= 0 and options.get("run_at") is None:
        with contextlib.suppress(OverflowError):
            run_at = created_at.astimezone(UTC) + timedelta(seconds=delay_s)
            options["run_at"] = run_at
            del options["delay_s"]


def is_final(error: Exception | None) -> bool:
    """Of this row, and the same however often it is asked; everything else may pass."""
    return isinstance(error, Invalid | Conflict | Forbidden | RowUnfit)


def summary(stored: int, refused: int, errors: list[Exception | None]) -> Round:
    waiting = [error for error in errors if error is not None and not is_final(error)]
    if not waiting:
        return Round(stored, refused)
    retry_in_s = max(
        ((e.retry_after_s or 0.0) for e in waiting if isinstance(e, ApiError)), default=0.0
    )
    return Round(stored, refused, len(waiting), str(waiting[0]), min(retry_in_s, PAUSE_MAX_S))


async def create_outbox(source_url: str) -> None:
    """The tables, if they are not there yet."""
    try:
        source = await asyncpg.connect(source_url, timeout=CONNECT_TIMEOUT_S)
        try:
            async with source.transaction():
                await source.execute(DDL)
        finally:
            await source.close()
    except FAULTS as error:
        raise OutboxUnfit(problem=str(error) or type(error).__name__) from error
