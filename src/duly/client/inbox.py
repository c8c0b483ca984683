"""Effects that happen once: an inbox table in the user's own database, and `once` around an effect.

| event | what happens |
|---|---|
| a second delivery, later | it finds the row: not the first |
| a second delivery at the same time | it waits for the other's commit or rollback, then sees |
| the effect raises | row and effect go back to before the block, whatever becomes of the rest |
| `first` is never read | raised at the end of the block, in every delivery |
| no table yet | made inside the caller's transaction |
"""

import re
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from duly.client.clock import chance
from duly.client.drivers import SQLALCHEMY, asker, awaited_asker, driver_of, is_awaited, state_of
from duly.domain.errors import ConfigurationError, DulyError

DDL = (Path(__file__).parent / "inbox.sql").read_text("utf-8")
STATEMENTS = [text for text in re.sub(r"--[^\n]*", "", DDL).split(";") if text.strip()]
# Two that make the table at once would meet in the catalogue, where IF NOT EXISTS is no help.
LOCK = "SELECT CAST(pg_advisory_xact_lock(hashtext('duly_inbox')) AS text)"
NOTE = """
WITH noted AS (
    INSERT INTO duly_inbox (execution_key, step, task_id, fence)
    VALUES (CAST({key} AS text), CAST({step} AS text), CAST({task_id} AS text),
            CAST(CAST({fence} AS text) AS bigint))
    ON CONFLICT (execution_key, step) DO NOTHING
    RETURNING 1
)
SELECT count(*) FROM noted
"""
# Fences of two tasks with one key (a dead letter and its replay) cannot be compared.
NOTE_FENCE = """
WITH noted AS (
    INSERT INTO duly_inbox AS known (execution_key, step, task_id, fence)
    VALUES (CAST({key} AS text), CAST({step} AS text), CAST({task_id} AS text),
            CAST(CAST({fence} AS text) AS bigint))
    ON CONFLICT (execution_key, step) DO UPDATE
       SET task_id = excluded.task_id, fence = excluded.fence, done_at = excluded.done_at
     WHERE known.task_id <> excluded.task_id OR known.fence <= excluded.fence
    RETURNING 1
)
SELECT count(*) FROM noted
"""
# Not in a transaction that a row deleted by another would break.
FORGET = """
WITH batch AS (
    DELETE FROM duly_inbox
     WHERE (execution_key, step) IN (
               SELECT execution_key, step
                 FROM duly_inbox
                WHERE done_at < now() - interval '30 days'
                  AND current_setting('transaction_isolation') = 'read committed'
                ORDER BY done_at
                LIMIT 1000
                  FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM batch
"""
# One effect in so many takes old rows away.
FORGET_SHARE = 1 / 500
STEP_CHARACTERS_MAX = 200
# No step of a user: theirs have no control characters.
FENCE_STEP = "\x1ffence"
NO_TABLE, NO_TRANSACTION = "42P01", "25P01"
SAVEPOINT = "duly_once"

Result = TypeVar("Result")
# Work as a generator of calls, which the sync or async driver makes or awaits.
Steps = Generator[Callable[[], Any], Any, Result]


class NoTransaction(DulyError):
    """`once` needs an open transaction: without one, the record and the effect can part"""


class StaleFence(DulyError):
    """task {task_id} was seen here with a higher fence than {fence}: this attempt is over"""


class FirstNotAsked(DulyError):
    """the block never checked whether this is the first time: write `with ... as first:` and `if
    first:`"""


class First:
    """True in the delivery that is to act, false in every other."""

    __slots__ = ("is_asked", "is_first")

    def __init__(self, is_first: bool) -> None:
        self.is_first = is_first
        self.is_asked = False

    def __bool__(self) -> bool:
        self.is_asked = True
        return self.is_first


def once(
    connection: Any,
    execution_key: str,
    step: str = "",
    *,
    task_id: str = "",
    fence: int = 0,
    fenced: bool = False,
) -> "Once":
    """`with` or `async with`, as the connection needs it. `fenced` refuses an attempt after a later
    one of its task was here; steps of one execution then wait for each other."""
    if len(step) > STEP_CHARACTERS_MAX or not step.isprintable():
        most = f"at most {STEP_CHARACTERS_MAX} printable characters"
        raise ConfigurationError(problem=f"{step[:40]!r} cannot name a step: {most}")
    return Once(connection, execution_key, step, task_id, fence, fenced)


def create_table(connection: Any) -> None:
    """Inside the caller's transaction; nothing if it is there."""
    run(create(connection, asker(connection)))


async def acreate_table(connection: Any) -> None:
    """`create_table`, awaited."""
    await arun(create(connection, awaited_asker(connection)))


class Once:
    def __init__(
        self, connection: Any, key: str, step: str, task_id: str, fence: int, fenced: bool
    ) -> None:
        self.connection = connection
        self.task_id = task_id
        self.fence = fence
        self.fenced = fenced
        self.facts = {"key": key, "step": step, "task_id": task_id, "fence": str(fence)}
        self.first = First(is_first=False)
        # SQLAlchemy keeps account of savepoints itself.
        self.nested: Any = None
        self.is_mapped = driver_of(connection) == SQLALCHEMY
        self.ask: Callable[..., Any]

    def __enter__(self) -> First:
        if is_awaited(self.connection):
            raise TypeError("this connection is awaited: use `async with`")
        self.ask = asker(self.connection)
        return run(self.begin())

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> Literal[False]:
        run(self.end(error))
        return False

    async def __aenter__(self) -> First:
        if driver_of(self.connection) is not None and not is_awaited(self.connection):
            raise TypeError("this connection is not awaited: use `with`")
        self.ask = awaited_asker(self.connection)
        return await arun(self.begin())

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> Literal[False]:
        await arun(self.end(error))
        return False

    def begin(self) -> Steps[First]:
        yield from self.mark()
        try:
            try:
                is_first = yield from self.note()
            except Exception as error:
                if state_of(error) != NO_TABLE:
                    raise
                yield from self.undo()
                yield from self.mark()
                yield from create(self.connection, self.ask)
                is_first = yield from self.note()
        except BaseException as error:
            yield from self.undo_after(error)
            raise
        self.first = First(is_first)
        return self.first

    def end(self, error: BaseException | None) -> Steps[None]:
        if error is None and not self.first.is_asked:
            error = FirstNotAsked()
            yield from self.undo_after(error)
            raise error
        if error is not None:
            yield from self.undo_after(error)
        else:
            yield from self.keep()

    def note(self) -> Steps[bool]:
        if self.fenced:
            known = yield self.asking(NOTE_FENCE, self.facts | {"step": FENCE_STEP})
            if not known:
                raise StaleFence(task_id=self.task_id, fence=self.fence)
        is_first = bool((yield self.asking(NOTE, self.facts)))
        if is_first and chance.random() < FORGET_SHARE:
            yield self.asking(FORGET, {})
        return is_first

    def mark(self) -> Steps[None]:
        try:
            if self.is_mapped:
                self.nested = yield self.connection.begin_nested
            else:
                yield self.asking(f"SAVEPOINT {SAVEPOINT}", {})
        except Exception as error:
            if state_of(error) == NO_TRANSACTION:
                raise NoTransaction from error
            raise

    def keep(self) -> Steps[None]:
        if self.is_mapped:
            yield self.nested.commit
        else:
            yield self.asking(f"RELEASE SAVEPOINT {SAVEPOINT}", {})

    def undo(self) -> Steps[None]:
        if self.is_mapped:
            yield self.nested.rollback
        else:
            yield self.asking(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}", {})
            yield self.asking(f"RELEASE SAVEPOINT {SAVEPOINT}", {})

    def undo_after(self, error: BaseException) -> Steps[None]:
        """What happened first is what the caller has to hear."""
        try:
            yield from self.undo()
        except Exception as second:
            error.add_note(f"and the effect could not be taken back alone: {second}")

    def asking(self, statement: str, facts: dict[str, str]) -> Callable[[], Any]:
        return partial(self.ask, self.connection, statement, facts)


def create(connection: Any, ask: Callable[..., Any]) -> Steps[None]:
    for statement in (LOCK, *STATEMENTS):
        yield partial(ask, connection, statement, {})


def run(steps: Steps[Result]) -> Result:
    try:
        step = next(steps)
        while True:
            try:
                answer = step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


async def arun(steps: Steps[Result]) -> Result:
    try:
        step = next(steps)
        while True:
            try:
                answer = await step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
