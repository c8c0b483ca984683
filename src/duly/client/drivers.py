"""One statement over whatever connection a program has: asyncpg, psycopg, SQLAlchemy, Django.

Statements name their arguments in braces. Nothing here begins or ends a transaction, and no driver
is imported before a connection of it was given.
"""

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any

Arguments = Mapping[str, str | None]
ASYNCPG, DJANGO, PSYCOPG, SQLALCHEMY = "asyncpg", "django", "psycopg", "sqlalchemy"


def asker(connection: Any) -> Callable[..., Any]:
    """For a connection that is not awaited: `ask(connection, statement, arguments)` answers the
    first value of the first row."""
    return chosen(
        connection, {DJANGO: ask_django, PSYCOPG: ask_psycopg, SQLALCHEMY: ask_sqlalchemy}
    )


def awaited_asker(connection: Any) -> Callable[..., Any]:
    """The same, to be awaited."""
    return chosen(
        connection,
        {
            ASYNCPG: ask_asyncpg,
            PSYCOPG: ask_psycopg_awaited,
            SQLALCHEMY: ask_sqlalchemy_awaited,
        },
    )


def chosen(connection: Any, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    driver = driver_of(connection)
    if driver is not None and driver in known:
        return known[driver]
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise TypeError(f"cannot work over a {kind}; known here: {', '.join(sorted(known))}")


def driver_of(connection: Any) -> str | None:
    """By whose class it is: importing a driver to compare would require all of them."""
    for kind in type(connection).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in (ASYNCPG, DJANGO, PSYCOPG, SQLALCHEMY):
            return package
    return None


def is_awaited(connection: Any) -> bool:
    is_asyncpg = driver_of(connection) == ASYNCPG
    return is_asyncpg or iscoroutinefunction(getattr(type(connection), "execute", None))


def state_of(error: BaseException) -> str | None:
    """The SQLSTATE, where there is one."""
    fault = fault_of(error)
    # As psycopg 2 calls it, which Django still takes.
    state: str | None = getattr(fault, "sqlstate", None) or getattr(fault, "pgcode", None)
    return state


def fault_of(error: BaseException) -> BaseException:
    """The driver's own error: SQLAlchemy and Django wrap it."""
    original: BaseException | None = getattr(error, "orig", None)
    if original is not None:
        return original
    cause = error.__cause__
    return cause if cause is not None and hasattr(cause, "diag") else error


def ask_django(connection: Any, statement: str, arguments: Arguments) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(named(statement, arguments, "%({})s"), arguments)
        return cursor.fetchone()[0] if cursor.description else None


def ask_psycopg(connection: Any, statement: str, arguments: Arguments) -> Any:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(named(statement, arguments, "%({})s"), arguments)
        return cursor.fetchone()[0] if cursor.description else None


async def ask_psycopg_awaited(connection: Any, statement: str, arguments: Arguments) -> Any:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(named(statement, arguments, "%({})s"), arguments)
        return (await cursor.fetchone())[0] if cursor.description else None


async def ask_asyncpg(connection: Any, statement: str, arguments: Arguments) -> Any:
    places = {name: f"${number}" for number, name in enumerate(arguments, 1)}
    return await connection.fetchval(statement.format(**places), *arguments.values())


def ask_sqlalchemy(connection: Any, statement: str, arguments: Arguments) -> Any:
    from sqlalchemy import text

    done = connection.execute(text(named(statement, arguments, ":{}")), arguments)
    return done.scalar_one() if done.returns_rows else None


async def ask_sqlalchemy_awaited(connection: Any, statement: str, arguments: Arguments) -> Any:
    from sqlalchemy import text

    done = await connection.execute(text(named(statement, arguments, ":{}")), arguments)
    return done.scalar_one() if done.returns_rows else None


def named(statement: str, arguments: Arguments, form: str) -> str:
    return statement.format(**{name: form.format(name) for name in arguments})
