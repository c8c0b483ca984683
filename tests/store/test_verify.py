"""`duly verify` on real tables: clean where duly made them, and every damage by its name."""

from typing import Any, NamedTuple

import asyncpg
import pytest

from duly.domain.errors import DatabaseUnfit
from duly.store import verify as module
from duly.store.database import Database
from duly.store.verify import count_roughly, opened, snapshot, verify
from duly.verify.history import Tables
from duly.verify.report import Verification
from tests.store.ledger_of_all import Kinds, make_all

KEPT_MAX = 100
COPY_TIMER = """
INSERT INTO duly.timers (shard, id, tenant, queue, pool, priority, timeout_ms, due_at, type, fence,
                         attempt)
SELECT duly.shard_of($1), $1, tenant, queue, pool, priority, timeout_ms, due_at, type, 2, 1
  FROM duly.timers WHERE id = $2
"""
COPY_LETTER = """
INSERT INTO duly.dead_letters (shard, pool, priority, attempts, tenant, timeout_ms, id, created_at,
                               run_at, failed_at, reason, fingerprint, type, execution_key)
SELECT duly.shard_of($1), pool, priority, attempts, tenant, timeout_ms, $1, created_at, run_at,
       failed_at, reason, fingerprint, type, execution_key
  FROM duly.dead_letters WHERE id = $2
"""
FIRE = """
INSERT INTO duly.occurrences (shard, schedule, nominal_at, decided_at, late_s, verdict, tenant,
                              task)
SELECT 1, gen_random_uuid(), now(), now(), 0, 'FIRED', tasks.tenant + {abroad}, {task}
  FROM duly.tasks WHERE id = $1 RETURNING task
"""
NOWHERE = "duly.make_task_id(now(), 3::smallint, $1)"
LOSE_REPLAY = """
WITH task AS (DELETE FROM duly.tasks WHERE id = $1) DELETE FROM duly.timers WHERE id = $1
"""


class Damage(NamedTuple):
    """A statement with up to two tasks, and the violations it must cause: of the first of them, of
    the one that `blames` names, or of the one that the statement returns."""

    name: str
    statement: str
    tasks: tuple[str, ...]
    causes: set[str]
    blames: str | None = None


RETURNED = "*"
DAMAGES = [
    Damage("end lost", "DELETE FROM duly.attempts WHERE id = $1", ("done",), {"I1"}),
    Damage("timer lost", "DELETE FROM duly.timers WHERE id = $1", ("waiting",), {"I1"}),
    Damage("revived", COPY_TIMER, ("done", "waiting"), {"I1", "I4"}),
    Damage("task lost, timer left", "DELETE FROM duly.tasks WHERE id = $1", ("waiting",), {"I1"}),
    Damage("task lost, end left", "DELETE FROM duly.tasks WHERE id = $1", ("neighbours",), {"I1"}),
    Damage(
        "live and purged",
        "INSERT INTO duly.tombstones VALUES (duly.shard_of($1), 1, $1, now(), 'x')",
        ("waiting",),
        {"I1"},
    ),
    Damage("letter lost", "DELETE FROM duly.dead_letters WHERE id = $1", ("lettered",), {"I1"}),
    Damage("letter of a success", COPY_LETTER, ("done", "lettered"), {"I1"}),
    Damage("replay lost", LOSE_REPLAY, ("replay",), {"I1"}, "dead"),
    Damage(
        "replay with another key",
        "UPDATE duly.tasks SET execution_key = 'x' WHERE id = $1",
        ("replay",),
        {"I1"},
    ),
    Damage(
        "fence kept",
        "UPDATE duly.attempts SET fence = 2 WHERE id = $1 AND fence = 1",
        ("retried",),
        {"I2"},
    ),
    Damage(
        "fence behind its record",
        "UPDATE duly.timers SET fence = 0 WHERE id = $1",
        ("held",),
        {"I2"},
    ),
    Damage(
        "overlap",
        "UPDATE duly.attempts SET ended_at = ended_at + interval '1h' WHERE id = $1 AND fence = 1",
        ("retried",),
        {"I2", "I12"},
    ),
    Damage(
        "two ends",
        "UPDATE duly.attempts SET state = 'CANCELLED' WHERE id = $1 AND fence = 1",
        ("retried",),
        {"I4"},
    ),
    Damage(
        "charge skipped",
        "UPDATE duly.attempts SET charged = 3 WHERE id = $1 AND fence = 3",
        ("retried",),
        {"I5"},
    ),
    Damage(
        "first charge wrong",
        "UPDATE duly.attempts SET charged = 2 WHERE id = $1",
        ("done",),
        {"I5"},
    ),
    Damage(
        "timer miscounts", "UPDATE duly.timers SET attempt = 1 WHERE id = $1", ("held",), {"I5"}
    ),
    Damage(
        "tried too often",
        """UPDATE duly.tasks SET policy = '{"retry":{"max_attempts":1}}' WHERE id = $1""",
        ("retried",),
        {"I5"},
    ),
    Damage("task nowhere", FIRE.format(abroad=0, task=NOWHERE), ("done",), {"I6"}, RETURNED),
    Damage("task of another", FIRE.format(abroad=0, task="id"), ("done",), {"I6"}),
    Damage("fired abroad", FIRE.format(abroad=1, task="id"), ("done",), {"I6", "I9"}),
    Damage(
        "key to nowhere",
        f"UPDATE duly.idempotency_keys SET task_id = {NOWHERE} WHERE task_id = $1"
        " RETURNING task_id",
        ("done",),
        {"I8"},
        RETURNED,
    ),
    Damage(
        "key where nobody looks",
        "UPDATE duly.idempotency_keys SET shard = (shard + 1) % 1024 WHERE task_id = $1",
        ("done",),
        {"I8"},
    ),
    Damage(
        "key to a foreign task",
        "UPDATE duly.idempotency_keys SET task_id = $1 WHERE task_id = $2",
        ("neighbours", "done"),
        {"I9"},
    ),
    Damage(
        "foreign attempt",
        "UPDATE duly.attempts SET tenant = tenant + 1 WHERE id = $1",
        ("done",),
        {"I9"},
    ),
    Damage(
        "foreign letter",
        "UPDATE duly.dead_letters SET tenant = tenant + 1 WHERE id = $1",
        ("lettered",),
        {"I9"},
    ),
    Damage(
        "foreign timer",
        "UPDATE duly.timers SET tenant = tenant + 1 WHERE id = $1",
        ("waiting",),
        {"I9", "I11"},
    ),
    Damage(
        "place forgotten",
        "DELETE FROM duly.placements WHERE (tenant, shard, queue) IN"
        " (SELECT tenant, shard, queue FROM duly.timers WHERE id = $1)",
        ("waiting",),
        {"I11"},
    ),
    Damage(
        "lease without an expiry batch",
        "UPDATE duly.timers SET queue = duly.timer_queue(pool, priority) WHERE id = $1",
        ("held",),
        {"I11"},
    ),
    Damage("wrong lane", "UPDATE duly.timers SET queue = 3 WHERE id = $1", ("waiting",), {"I11"}),
    Damage(
        "early start",
        "UPDATE duly.tasks SET run_at = run_at + interval '1h' WHERE id = $1",
        ("done",),
        {"I12"},
    ),
    Damage(
        "early lease",
        "UPDATE duly.tasks SET run_at = run_at + interval '1h' WHERE id = $1",
        ("held",),
        {"I12"},
    ),
]
WORRIES = [
    ("overdue", "UPDATE duly.timers SET due_at = now() - interval '1h' WHERE id = $1", "waiting"),
    (
        "overdue",
        "UPDATE duly.timers SET lease_until = now() - interval '1h' WHERE id = $1",
        "held",
    ),
]


@pytest.fixture
async def kinds(database: Database) -> Kinds:
    return await make_all(database)


async def verified(url: str, kept_max: int = KEPT_MAX, **choices: Any) -> Verification:
    verification = Verification(kept_max)
    await verify(url, verification, **choices)
    return verification


async def test_what_duly_made_is_clean(kinds: Kinds, engine_url: str) -> None:
    """A check that accuses a healthy installation is run once."""
    verification = await verified(engine_url)
    assert verification.violations == []
    assert [found.invariant for found in verification.warnings] == ["slots"]
    assert verification.rows["tasks"] == len(vars(kinds))
    assert verification.rows["timers"] == 3
    assert verification.rows["keys"] == 1
    assert verification.rows["tombstones"] == 1


async def test_every_damage_is_named_and_nothing_else(
    database: Database, owner: asyncpg.Connection, engine_url: str
) -> None:
    """What verify cannot see, nobody sees until a customer does."""
    caused: dict[tuple[str, object], str] = {}
    for number, damage in enumerate(DAMAGES):
        kinds = await make_all(database, tenant=1 + 2 * number)
        tasks = [getattr(kinds, name) for name in damage.tasks]
        returned = await owner.fetchval(damage.statement, *tasks)
        blamed = returned
        if damage.blames != RETURNED:
            blamed = getattr(kinds, damage.blames or damage.tasks[0])
        caused |= {(invariant, blamed): damage.name for invariant in damage.causes}
    verification = await verified(engine_url)
    found = {(each.invariant, each.task): each.problem for each in verification.violations}
    assert {key: name for key, name in caused.items() if key not in found} == {}, "not seen"
    assert {key: said for key, said in found.items() if key not in caused} == {}, "not caused"
    assert not verification.is_clean


@pytest.mark.parametrize(("name", "statement", "kind"), WORRIES, ids=["late", "lease lost"])
async def test_what_stands_still_is_a_warning(
    name: str, statement: str, kind: str, kinds: Kinds, owner: asyncpg.Connection, engine_url: str
) -> None:
    """A pause or a cap may explain it, so it is said and no alarm."""
    task = getattr(kinds, kind)
    await owner.execute(statement, task)
    verification = await verified(engine_url)
    assert verification.is_clean
    assert task in [found.task for found in verification.warnings if found.invariant == name]


async def test_more_leases_than_the_cap_are_a_warning(
    kinds: Kinds, owner: asyncpg.Connection, engine_url: str
) -> None:
    """A cap that was lowered is exceeded for a while, and then it is a bug."""
    await owner.execute(
        "INSERT INTO duly.tenants (id, name, in_flight_max) VALUES (1, 'one', 1)"
        " ON CONFLICT (id) DO UPDATE SET in_flight_max = 1"
    )
    assert (await verified(engine_url)).counts["caps"] == 0
    await owner.execute(
        "UPDATE duly.timers SET holder = $2, lease_until = due_at, started_at = now(), queue = 0,"
        " fence = fence + 1 WHERE id = $1",
        *(kinds.replay, kinds.held),
    )
    verification = await verified(engine_url)
    assert verification.counts["caps"] == 1
    assert verification.is_clean


async def test_a_purged_letter_is_excused_by_the_audit(
    kinds: Kinds, owner: asyncpg.Connection, engine_url: str
) -> None:
    """An operator who tidies up must not be called a data loss."""
    await owner.execute("DELETE FROM duly.dead_letters WHERE id = $1", kinds.lettered)
    await owner.execute(
        "INSERT INTO duly.audit (tenant, at, actor, action, subject, detail)"
        " VALUES (1, now(), 'a', 'dead_letter.purge', $1, '{}')",
        str(kinds.lettered),
    )
    assert (await verified(engine_url)).violations == []


async def test_what_retention_took_is_not_missed(
    kinds: Kinds, owner: asyncpg.Connection, engine_url: str
) -> None:
    """Keys and letters outlive the months of their tasks."""
    await owner.execute(
        "UPDATE duly.idempotency_keys"
        " SET task_id = duly.make_task_id(now() - interval '60 days', 3::smallint, task_id)"
    )
    assert (await verified(engine_url)).violations == []


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_pages_hide_nothing_and_are_bounded(
    size: int,
    kinds: Kinds,
    owner: asyncpg.Connection,
    engine_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row between two pages is never judged; a page without a bound is the whole table."""
    monkeypatch.setattr(module, "PAGE_TASKS", size)
    monkeypatch.setattr(module, "PAGE_KEYS", size)
    monkeypatch.setattr(module, "ATTEMPTS_MAX", 2)
    sizes: list[int] = []

    class Watched(Verification):
        def judge_tasks(self, tables: Tables, chosen: Any, now: Any) -> None:
            tasks = list(chosen)
            sizes.append(len(tasks))
            super().judge_tasks(tables, tasks, now)

    await owner.execute("DELETE FROM duly.tasks WHERE id = $1", kinds.waiting)
    await owner.execute("DELETE FROM duly.attempts WHERE id = $1", kinds.done)
    verification = Watched(KEPT_MAX)
    await verify(engine_url, verification)
    assert {found.task for found in verification.violations} == {kinds.waiting, kinds.done}
    assert verification.counts["I1"] == 2
    assert verification.rows["tasks"] == len(vars(kinds)) - 1
    assert max(sizes) <= min(size, 6)


async def test_since_leaves_out_what_was_placed_before(
    kinds: Kinds, owner: asyncpg.Connection, engine_url: str
) -> None:
    """A nightly look at the last day must not read the last year."""
    await owner.execute("DELETE FROM duly.attempts WHERE id = $1", kinds.done)
    now = await owner.fetchval("SELECT now()")
    verification = await verified(engine_url, since=now)
    assert verification.violations == []
    assert 0 < verification.rows["tasks"] < len(vars(kinds))


async def test_nothing_can_be_written(engine_url: str) -> None:
    """A tool that is run when something is wrong must not be able to make it worse."""
    async with opened(engine_url) as connection, snapshot(connection):
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("DELETE FROM duly.timers")


async def test_a_login_that_sees_nothing_is_refused(
    owner: asyncpg.Connection, owner_url: str, database_name: str
) -> None:
    """Row-level security shows a stranger empty tables, in which nothing is wrong."""
    login = f"stranger_{database_name}"
    await owner.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x'")
    try:
        url = owner_url.replace(owner_url.split("//")[1].split("@")[0], f"{login}:x")
        with pytest.raises(DatabaseUnfit, match="not a member of duly_engine"):
            await count_roughly(url)
    finally:
        await owner.execute(f"DROP ROLE {login}")


async def test_a_database_without_duly_is_refused(empty_url: str) -> None:
    """Nothing is wrong with tables that do not exist; that is no clean bill."""
    with pytest.raises(DatabaseUnfit, match="duly"):
        await verified(empty_url)
