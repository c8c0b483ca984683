"""Connection pool: connections are acquired for a statement or a transaction, and released.

No session keeps state, so nothing is reset. The driver's own pool starts an asyncio task and a
timer for every acquire, which costs a lone task a tenth of a millisecond and more.

| event | what happens |
|---|---|
| all are in use | the caller waits, first come first served |
| one breaks, in use or not | dropped; another is opened when one is needed |
| its user is interrupted | ended: its protocol is somewhere in the middle |
| it is released inside a transaction, or one could not be begun | ended, which rolls back |
| opening fails | that caller gets the error, and the next in line tries |
| idle for a while | ended, once another is released, or instead of being acquired |
| close | waits for connections in use; nothing more is acquired; interrupted, it ends all |
| end_all | all are ended at once, also those in use |
| terminate | all are ended at once, also those in use, and one that is being opened |
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

import asyncpg

# The world failed; the outcome of a statement in flight is unknown to us.
CONNECTION_FAULTS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.exceptions.CannotConnectNowError,
    asyncpg.exceptions.TooManyConnectionsError,
    asyncpg.exceptions.AdminShutdownError,
    asyncpg.exceptions.CrashShutdownError,
)
IDLE_MAX_S = 300.0


class Connections:
    def __init__(self, open_one: Callable[[], Awaitable[asyncpg.Connection]], most: int) -> None:
        self.open_one = open_one
        self.most = most
        self.room = asyncio.Semaphore(most)
        # Those that wait for a connection.
        self.waiting = 0
        # With the instant since when. The last one used is acquired first: it is the warmest, and
        # surplus ones grow idle.
        self.idle: list[tuple[asyncpg.Connection, float]] = []
        self.lent: set[asyncpg.Connection] = set()
        self.is_closed = False

    def acquire(self) -> "PooledConnection":
        return PooledConnection(self)

    async def take(self) -> asyncpg.Connection:
        self.refuse_if_closed()
        self.waiting += 1
        try:
            await self.room.acquire()
        finally:
            self.waiting -= 1
        try:
            self.refuse_if_closed()
            connection = self.take_idle()
            if connection is None:
                connection = await self.open_one()
                if self.is_closed:
                    connection.terminate()
                    self.refuse_if_closed()
        except BaseException:
            self.room.release()
            raise
        self.lent.add(connection)
        return connection

    def take_idle(self) -> asyncpg.Connection | None:
        now = asyncio.get_running_loop().time()
        while self.idle:
            connection, idle_since = self.idle.pop()
            if now - idle_since > IDLE_MAX_S:
                connection.terminate()
            elif not connection.is_closed():
                return connection
        return None

    def refuse_if_closed(self) -> None:
        if self.is_closed:
            raise asyncpg.InterfaceError("the connections of this process are closed")

    def release(self, connection: asyncpg.Connection) -> None:
        self.lent.discard(connection)
        if not connection.is_closed() and connection.is_in_transaction():
            connection.terminate()
        if not connection.is_closed():
            now = asyncio.get_running_loop().time()
            self.idle.append((connection, now))
            self.end_oldest(now)
        self.room.release()

    def end_oldest(self, now: float) -> None:
        connection, idle_since = self.idle[0]
        if now - idle_since > IDLE_MAX_S:
            del self.idle[0]
            connection.terminate()

    async def close(self) -> None:
        self.is_closed = True
        taken = 0
        try:
            while taken < self.most:
                await self.room.acquire()
                taken += 1
            while self.idle:
                # Until it has ended it is for `terminate` to find.
                await self.idle[-1][0].close()
                self.idle.pop()
        except BaseException:
            self.terminate()
            raise
        finally:
            # Also for a second call.
            for _ in range(taken):
                self.room.release()

    def terminate(self) -> None:
        self.is_closed = True
        self.end_all()

    def end_all(self) -> None:
        """End also those in use; others are opened when they are needed."""
        for connection in (*self.lent, *(each for each, _ in self.idle)):
            connection.terminate()


class PooledConnection:
    """A pooled connection for the length of a block."""

    __slots__ = ("connection", "connections")

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    async def __aenter__(self) -> asyncpg.Connection:
        self.connection = await self.connections.take()
        return self.connection

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is not None and is_interruption(error):
            self.connection.terminate()
        self.connections.release(self.connection)


def is_interruption(error: BaseException) -> bool:
    """What the server itself says of a statement leaves its protocol where it should be."""
    if not isinstance(error, Exception):
        return True
    return isinstance(error, CONNECTION_FAULTS) and not isinstance(error, asyncpg.PostgresError)


class OpenTransaction:
    """A transaction on a pooled connection. The driver takes one whose beginning failed for open,
    and every later one for a part of it: such a connection is of no more use."""

    __slots__ = ("connection", "transaction")

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.transaction = connection.transaction()

    async def __aenter__(self) -> None:
        try:
            await self.transaction.__aenter__()
        except BaseException:
            self.connection.terminate()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.transaction.__aexit__(kind, error, trace)
