"""The hot statements on an empty, a full, a suddenly full and a bloated `timers`."""

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest

from duly.broker.consumer import WaitingConsumer
from duly.domain.ids import shard_of
from duly.domain.lanes import Ticket
from duly.domain.states import Outcome, State
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store import control, finish, insert, lease, load, read, reap, retry, settle
from duly.store.control import TimerChange, cancel_tasks, reschedule_tasks
from duly.store.database import Database
from duly.store.finish import Settlement
from duly.store.lease import Beat, extend_leases, lease_tasks
from duly.store.load import Cursor, DueTimer, list_placements, load_due
from duly.store.partitions import create_partitions
from duly.store.read import Filter, list_tasks, read_tasks
from duly.store.reap import reap_leases
from duly.store.settle import Settler
from duly.store.submit import Submitter
from tests.plans.explain import MODES, ExplainingDatabase, Plan
from tests.plans.rules import RULES, complaints

ROWS = 30_000
TENANTS = 10
BATCH = 1000
TENANT = 1
HOLDER = UUID(int=1)
EMPTY, FULL, SUDDEN, BLOATED = "empty", "full", "suddenly full", "bloated"
HERD, EMPTIED = "one tenant's herd", "emptied"
MODULES = (insert, load, lease, retry, finish, settle, reap, control, read)
NAMES = {
    text: name for module in MODULES for name, text in module.SQL.blocks.items() if name in RULES
}
NO_VACUUM = "ALTER TABLE duly.timers SET (autovacuum_enabled = off)"
# What is left of a busy day: nearly everything has ended, and vacuum could not clear it away.
EMPTY_OUT = "DELETE FROM duly.timers WHERE tenant <> 1"
# Under load these decide; the others may walk the keys until somebody counts the rows again.
MANY_A_SECOND = {
    "load_due",
    "lease_tasks",
    "extend_leases",
    "finish_completed",
    "finish_terminal",
    "retry_tasks",
    "find_expired",
    "rearm_leases",
}
# Of `timers` at any moment; of the rest only when it has rows, as the server itself would do.
ANALYZE_TIMERS = "ANALYZE duly.timers"
THIS_MONTH = "SELECT to_char(duly.now() AT TIME ZONE 'UTC', 'YYYY_MM')"


@pytest.fixture
async def explaining(engine_url: str) -> AsyncIterator[ExplainingDatabase]:
    """The engine's login, with the planner settings that belong to it."""
    connection = await asyncpg.connect(engine_url)
    yield ExplainingDatabase(engine_url, connection, NAMES)
    await connection.close()


def tasks_of(tenant: int, number: int, spread_s: int = 7) -> list[Submission]:
    return [
        Submission(tenant=tenant, type="email", url="https://example.org/", delay_s=n % spread_s)
        for n in range(number)
    ]


async def prepare(database: Database, owner: asyncpg.Connection, condition: str) -> None:
    """Statistics as they would be: of an empty table, unless there was time to look again."""
    await create_partitions(database)
    await owner.execute(NO_VACUUM)
    await owner.execute(ANALYZE_TIMERS)
    if condition == HERD:
        await Submitter(database, Environment()).submit(tasks_of(TENANT, 2 * BATCH, spread_s=1))
    elif condition != EMPTY:
        await fill(database)
    if condition == BLOATED:
        await owner.execute(EMPTY_OUT)
    if condition == EMPTIED:
        await owner.execute("VACUUM (ANALYZE) duly.timers")
        await owner.execute("DELETE FROM duly.timers")
        await owner.execute("TRUNCATE duly.tasks")
        await owner.execute("VACUUM (ANALYZE) duly.timers")
    if condition in (FULL, BLOATED, HERD):
        month = await owner.fetchval(THIS_MONTH)
        await owner.execute(f"ANALYZE duly.timers, duly.placements, duly.tasks_{month}")


async def fill(database: Database) -> None:
    submitter = Submitter(database, Environment())
    for number in range(ROWS // BATCH):
        await submitter.submit(tasks_of(TENANT + number % TENANTS, BATCH))


async def work(database: ExplainingDatabase, environment: Environment) -> None:
    """Every hot statement once at least, by the calls that use them in earnest."""
    submitter = Submitter(database, environment)
    await submitter.submit(tasks_of(TENANT, 100))
    keyed = enumerate(tasks_of(TENANT, 100))
    await submitter.submit([task._replace(idempotency_key=str(number)) for number, task in keyed])
    submitter.find_consumer = lambda _entries: WaitingConsumer([], HOLDER, 1, 60.0)
    await submitter.submit(tasks_of(TENANT, 1))
    places = await list_placements(database, 0, 1023)
    due = [
        each
        for each in await load_due(database, dict.fromkeys(places, Cursor()), 60.0, 100)
        if each.tenant == TENANT
    ]
    # Of neighbours one stays in place and one moves.
    tickets = [Ticket(each.id, each.fence, in_place=at % 2 == 0) for at, each in enumerate(due)]
    leases = await lease_tasks(database, environment, HOLDER, tickets, 0.0)
    assert len(leases) >= 10, "too few were due to try every end"
    beats = [Beat(each.id, each.fence) for each in leases[:5]]
    await extend_leases(database, HOLDER, beats, 60.0)
    settler = Settler(database, environment)
    outcomes = [*Outcome][:6] * 2
    ends = [
        Settlement(each.id, each.fence, HOLDER, outcome, retry_in_s=60.0)
        for each, outcome in zip(leases[5:], outcomes, strict=False)
    ]
    await settler.settle(ends)
    await settler.settle(ends)
    for _ in range(2):
        # The second time, the expiry batches are done.
        await reap_leases(database, environment, [(TENANT, shard_of(tickets[0].id))], 100)
    await look_and_control(database, due)


async def look_and_control(database: ExplainingDatabase, due: list[DueTimer]) -> None:
    ids = [each.id for each in due]
    await reschedule_tasks(database, TENANT, [TimerChange(task_id, delay_s=9.0) for task_id in ids])
    await cancel_tasks(database, TENANT, ids[:20])
    await cancel_tasks(database, TENANT, ids[:20])
    await read_tasks(database, TENANT, ids)
    for state in (State.READY, State.RUNNING, State.SCHEDULED, None):
        await list_tasks(database, TENANT, Filter(state=state))


def judged(plans: list[Plan]) -> str:
    return "\n\n".join(each for plan in plans for each in complaints(plan))


@pytest.mark.parametrize("condition", [EMPTY, FULL, SUDDEN, BLOATED, HERD, EMPTIED])
async def test_the_hot_statements_go_by_index_whatever_the_table_holds(
    condition: str, database: Database, explaining: ExplainingDatabase, owner: asyncpg.Connection
) -> None:
    """One plan that reads the whole table, and a busy hour ends in a standstill."""
    await prepare(database, owner, condition)
    await work(explaining, Environment())
    assert {plan.statement for plan in explaining.plans} == RULES.keys()
    # A custom plan is made for one execution, so on a small table it may do as it likes; a generic
    # one is kept, and meets whatever the table holds by then.
    lasting = [
        plan
        for plan in explaining.plans
        if (condition != EMPTY or plan.mode == MODES[0])
        and (condition != EMPTIED or plan.statement in MANY_A_SECOND)
    ]
    problems = judged(lasting)
    if problems:
        pytest.fail(problems)


async def test_a_planner_without_its_settings_is_noticed(
    database: Database, explaining: ExplainingDatabase, owner: asyncpg.Connection
) -> None:
    """The rules themselves must be able to fail: with the planner free, they do."""
    await prepare(database, owner, FULL)
    for option in ("enable_hashjoin", "enable_mergejoin", "enable_seqscan"):
        await explaining.connection.execute(f"SET {option} = on")
    await work(explaining, Environment())
    assert "Join" in judged(explaining.plans) or "Seq Scan" in judged(explaining.plans)


@pytest.mark.parametrize(
    ("index", "statement"), [("timers_due", "load_due"), ("timers_due", "find_expired")]
)
async def test_a_missing_index_is_noticed(
    index: str,
    statement: str,
    database: Database,
    explaining: ExplainingDatabase,
    owner: asyncpg.Connection,
) -> None:
    """An index that seems spare is dropped."""
    await prepare(database, owner, EMPTY)
    await owner.execute(f"DROP INDEX duly.{index}")
    await work(explaining, Environment())
    assert f"{statement} (force_generic_plan) does not use {index}" in judged(explaining.plans)


async def test_a_load_that_filters_by_due_at_is_noticed(
    database: Database,
    explaining: ExplainingDatabase,
    owner: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An innocent sum on the column makes the index useless for the instant."""
    text = load.SQL.blocks["load_due"]
    rewritten = text.replace("timers.due_at <=", "timers.due_at + interval '0' <=").replace(
        "(timers.due_at, timers.id) >", "(timers.due_at + interval '0', timers.id) >"
    )
    assert rewritten != text
    monkeypatch.setitem(load.SQL.blocks, "load_due", rewritten)
    explaining.names = explaining.names | {rewritten: "load_due"}
    await prepare(database, owner, EMPTY)
    await work(explaining, Environment())
    assert "load_due (force_generic_plan) does not find due_at by the index" in judged(
        explaining.plans
    )
