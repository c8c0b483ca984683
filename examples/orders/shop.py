"""In place of a payment provider, a warehouse, a parcel service and a mail server: one SQLite file.

Each takes the execution key of the task that calls it, as real ones take an idempotency key: the
same call again is answered as before, and does nothing.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

FILE = Path(os.environ.get("ORDERS_SHOP", "shop.sqlite"))
STOCK = {"teapot": 5, "cup": 40}
TABLES = """
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, quantity INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS done (key TEXT PRIMARY KEY, what TEXT NOT NULL, number INTEGER NOT NULL);
"""


class Refused(Exception):
    """It will not become possible by trying again."""


@contextmanager
def shop() -> Iterator[sqlite3.Connection]:
    """A transaction."""
    if FILE.with_name("away").exists():
        raise ConnectionError("the shop's systems are away")
    with closing(sqlite3.connect(FILE, isolation_level=None)) as books:
        books.executescript(TABLES)
        books.execute("BEGIN IMMEDIATE")
        books.executemany("INSERT OR IGNORE INTO stock VALUES (?, ?)", STOCK.items())
        yield books
        books.execute("COMMIT")


def first(books: sqlite3.Connection, key: str, what: str) -> int | None:
    """A number for what is done now; None if it was done before."""
    (number,) = books.execute("SELECT coalesce(max(number), 0) + 1 FROM done").fetchone()
    added = books.execute("INSERT OR IGNORE INTO done VALUES (?, ?, ?)", (key, what, number))
    return number if added.rowcount else None


def number_of(books: sqlite3.Connection, key: str) -> int:
    (number,) = books.execute("SELECT number FROM done WHERE key = ?", (key,)).fetchone()
    return int(number)


def accept(key: str, order: str) -> None:
    with shop() as books:
        first(books, key, f"accept {order}")


def charge(key: str, card: str, cents: int) -> int:
    if not card.startswith("4"):
        raise Refused(f"the card {card} was declined")
    with shop() as books:
        first(books, key, f"charge {cents} to {card}")
        return number_of(books, key)


def refund(key: str, receipt: int) -> None:
    with shop() as books:
        first(books, key, f"refund {receipt}")


def reserve(key: str, items: dict[str, int]) -> int:
    with shop() as books:
        if first(books, key, f"reserve {items}") is not None:
            for sku, quantity in items.items():
                taken = books.execute(
                    "UPDATE stock SET quantity = quantity - ? WHERE sku = ? AND quantity >= ?",
                    (quantity, sku, quantity),
                )
                if not taken.rowcount:
                    raise Refused(f"there are not {quantity} of {sku}")
        return number_of(books, key)


def restock(key: str, items: dict[str, int]) -> None:
    with shop() as books:
        if first(books, key, f"restock {items}") is not None:
            for sku, quantity in items.items():
                books.execute(
                    "UPDATE stock SET quantity = quantity + ? WHERE sku = ?", (quantity, sku)
                )


def ship(key: str, reservation: int, address: str) -> str:
    with shop() as books:
        first(books, key, f"ship {reservation} to {address}")
        return f"parcel-{number_of(books, key)}"


def recall(key: str, parcel: str) -> None:
    with shop() as books:
        first(books, key, f"recall {parcel}")


def mail(key: str, to: str, text: str) -> None:
    with shop() as books:
        first(books, key, f"mail {to}: {text}")
