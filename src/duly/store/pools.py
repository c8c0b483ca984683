"""Numbers for pool names: two bytes in a timer instead of a name. Cached for ever; never reused."""

from collections.abc import Iterable, Sequence
from typing import NoReturn, TypeAlias

from duly.domain.errors import StatementRefused, TooManyPools
from duly.domain.limits import POOLS_PER_TENANT_MAX
from duly.store.database import SERIALIZATION_FAILURE, Database, Session
from duly.store.statements import statements_beside

SQL = statements_beside(__file__)
RACES_MAX = 100
CHECK_VIOLATION = "23514"

Numbers: TypeAlias = dict[tuple[int, str], int]


class PoolNumbers:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.numbers: Numbers = {}

    async def resolve(
        self, wanted: Iterable[tuple[int, str]], session: Session | None = None
    ) -> Numbers:
        """The number of each (tenant, pool name), made if it is new.

        A caller in a transaction passes its session: holding one connection and waiting for a
        second can deadlock. It can find a number, and not create one.
        """
        missing = sorted(set(wanted) - self.numbers.keys())
        if missing:
            await self.find(session or self.database, missing)
            for pair in missing:
                if pair in self.numbers:
                    continue
                if session is not None:
                    await refuse(session, pair)
                await self.create(pair)
        return self.numbers

    async def find(self, session: Session, pairs: list[tuple[int, str]]) -> None:
        tenants, names = [tenant for tenant, _ in pairs], [name for _, name in pairs]
        for row in await session.fetch(SQL.find_pools, tenants, names):
            self.numbers[row["tenant"], row["name"]] = row["number"]

    async def create(self, pair: tuple[int, str]) -> None:
        for _ in range(RACES_MAX):
            try:
                await self.database.fetch(SQL.create_pool, *pair)
            except StatementRefused as refusal:
                if refusal.facts["code"] != CHECK_VIOLATION:
                    raise
                raise TooManyPools(tenant=pair[0], most=POOLS_PER_TENANT_MAX) from None
            await self.find(self.database, [pair])
            if pair in self.numbers:
                return
        raise AssertionError("a pool number was lost to others a hundred times")


async def refuse(session: Session, pair: tuple[int, str]) -> NoReturn:
    """Refuse: the next try creates the pool before its transaction begins."""
    if not await may_have_pool(session, *pair):
        raise TooManyPools(tenant=pair[0], most=POOLS_PER_TENANT_MAX)
    problem = "its pool is new since the call began"
    raise StatementRefused(problem=problem, code=SERIALIZATION_FAILURE)


async def may_have_pool(session: Session, tenant: int, name: str) -> bool:
    """Whether a task could go there; makes nothing."""
    (row,) = await session.fetch(SQL.may_have_pool, tenant, name, POOLS_PER_TENANT_MAX)
    found: bool = row["may_have"]
    return found


async def name_pools(
    session: Session, numbers: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], str]:
    """The names of pools, by (tenant, number)."""
    tenants, pools = [tenant for tenant, _ in numbers], [number for _, number in numbers]
    rows = await session.fetch(SQL.name_pools, tenants, pools)
    return {(row["tenant"], row["number"]): row["name"] for row in rows}
