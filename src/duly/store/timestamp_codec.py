"""Timestamp codec of the driver: its own way takes three quarters of a microsecond for each, and a
task has four. The rows of a batch share most of theirs, so each is made once."""

from datetime import UTC, datetime, timedelta

import asyncpg

# PostgreSQL counts microseconds from here.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
MICROSECONDS_BEFORE = 946_684_800_000_000
# Up to 2242 a double tells neighbouring microseconds apart.
EXACT_MAX = 2**33 * 1_000_000
KEPT_MAX = 4096


class Instants(dict[tuple[int], datetime]):
    """By the driver's own reading. An instant never changes, so everybody may have the same."""

    def __missing__(self, read: tuple[int]) -> datetime:
        if len(self) >= KEPT_MAX:
            self.clear()
        (microseconds,) = read
        since_1970 = microseconds + MICROSECONDS_BEFORE
        if 0 <= since_1970 < EXACT_MAX:
            instant = datetime.fromtimestamp(since_1970 / 1_000_000, UTC)
        else:
            instant = EPOCH + timedelta(microseconds=microseconds)
        self[read] = instant
        return instant


def written(instant: datetime) -> tuple[int]:
    passed = instant - EPOCH
    return ((passed.days * 86400 + passed.seconds) * 1_000_000 + passed.microseconds,)


async def use_instants(connection: asyncpg.Connection) -> None:
    await connection.set_type_codec(
        "timestamptz",
        schema="pg_catalog",
        encoder=written,
        decoder=Instants().__getitem__,
        format="tuple",
    )
