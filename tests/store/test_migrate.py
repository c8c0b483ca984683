"""Migrations go forward and back, one migrator at a time, and survive being killed."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from duly.domain.errors import DatabaseUnfit, MigrationFailed
from duly.environment import CrashPoint, Environment
from duly.store import migrate
from duly.store.migrate import Migrator, read_migrations
from tests.processes import doomed
from tests.schema_dump import dump_schema

ALL = read_migrations()
TWO_STEPS = {
    "0001_pre_first.sql": (
        "-- name: forward\n-- Why.\nCREATE TABLE duly.first (n integer);\n"
        "-- name: reverse\n-- Why.\nDROP TABLE duly.first;\n"
    ),
    "0002_post_second.sql": (
        "-- name: forward\n-- Why.\nALTER TABLE duly.first ADD COLUMN m integer;\n"
        "-- name: reverse\n-- Why.\nALTER TABLE duly.first DROP COLUMN m;\n"
    ),
}
NAMES = [name.removesuffix(".sql") for name in TWO_STEPS]


@pytest.fixture
def two_steps(tmp_path: Path) -> Path:
    for name, text in TWO_STEPS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("migration", ALL, ids=lambda migration: migration.name)
async def test_a_migration_and_its_reverse_leave_the_schema_as_it_was(
    empty_url: str, environment: Environment, migration: migrate.Migration
) -> None:
    """A reverse that forgets something makes the way back from a bad release a dead end."""
    migrator = Migrator(empty_url, environment)
    await migrator.migrate(migration.number - 1)
    if migration.number == 1:
        await create_ledger(empty_url, migrator)
    before = await asyncio.to_thread(dump_schema, empty_url)
    assert await migrator.migrate(migration.number) == [migration.name]
    after = await asyncio.to_thread(dump_schema, empty_url)
    assert await migrator.migrate(migration.number - 1) == [f"reverse of {migration.name}"]
    assert await asyncio.to_thread(dump_schema, empty_url) == before
    await migrator.migrate(migration.number)
    assert await asyncio.to_thread(dump_schema, empty_url) == after


async def create_ledger(url: str, migrator: Migrator) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrator.create_ledger(connection)
    finally:
        await connection.close()


async def test_the_whole_way_back_and_forth_again_works(
    empty_url: str, environment: Environment, two_steps: Path
) -> None:
    """Each step may be reversible alone and still leave something that stops a later one."""
    migrator = Migrator(empty_url, environment, two_steps)
    assert await migrator.migrate() == NAMES
    assert await migrator.migrate(0) == [f"reverse of {name}" for name in reversed(NAMES)]
    assert await migrator.applied() == []
    assert await migrator.migrate() == NAMES


async def test_the_schema_is_made_again_after_it_was_reversed_with_data(
    owner: asyncpg.Connection, owner_url: str, environment: Environment
) -> None:
    """Partitions and rows of a running installation must not stop the reverse."""
    await owner.execute("SELECT duly.create_partition('tasks', '2031-02-01')")
    await owner.execute("INSERT INTO duly.tenants (name) VALUES ('kept until the reverse')")
    migrator = Migrator(owner_url, environment)
    assert len(await migrator.migrate(0)) == len(ALL)
    assert await migrator.applied() == []
    assert await migrator.migrate() == [migration.name for migration in ALL]


async def test_two_migrators_apply_each_step_once(
    empty_url: str, environment: Environment, two_steps: Path
) -> None:
    """Two nodes of a cluster start at once; the second would fail on tables that exist."""
    first, second = (Migrator(empty_url, environment, two_steps) for _ in range(2))
    ran = await asyncio.gather(first.migrate(), second.migrate())
    assert sorted(ran) == [[], NAMES]


async def test_a_migrator_that_waits_too_long_for_another_says_so(
    owner: asyncpg.Connection,
    owner_url: str,
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forgotten session that holds the lock must not hang every start without a word."""
    monkeypatch.setattr(migrate, "LOCK_WAIT_MAX_S", 0.2)
    await owner.fetchval(migrate.SQL.try_lock)
    with pytest.raises(MigrationFailed, match="another migrator is still running"):
        await Migrator(owner_url, environment).migrate()


@pytest.mark.slow
@pytest.mark.parametrize("point", [CrashPoint.MIGRATION_BETWEEN])
async def test_a_migrator_killed_between_two_steps_is_resumed(
    empty_url: str, environment: Environment, two_steps: Path, point: CrashPoint
) -> None:
    """A deploy that dies half-way must be repaired by running it again, not by hand."""
    program = "import asyncio, sys; from pathlib import Path; "
    program += "from duly.environment import system_environment; "
    program += "from duly.store.migrate import Migrator; "
    program += (
        "asyncio.run(Migrator(sys.argv[1], system_environment(), Path(sys.argv[2])).migrate())"
    )
    with doomed(point, "-c", program, empty_url, str(two_steps)) as dying:
        await asyncio.to_thread(dying.wait)
    migrator = Migrator(empty_url, environment, two_steps)
    assert [entry.number for entry in await migrator.applied()] == [1]
    assert await migrator.migrate() == ["0002_post_second"]


async def test_a_migration_that_meets_a_lock_steps_back_and_tries_again(
    empty_url: str, environment: Environment, two_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits, every statement of the table queues behind it: an outage by migration."""
    monkeypatch.setattr(migrate, "RETRY_S", 0.01)
    quick = migrate.SQL.blocks | {"set_lock_timeout": "SET LOCAL lock_timeout = '50ms'"}
    monkeypatch.setattr(migrate.SQL, "blocks", quick)
    migrator = Migrator(empty_url, environment, two_steps)
    await migrator.migrate(1)
    blocker, watcher = await asyncpg.connect(empty_url), await asyncpg.connect(empty_url)
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE duly.first IN ACCESS SHARE MODE")
            running = asyncio.create_task(migrator.migrate())
            await rolled_back(watcher, times=2)
            assert not running.done()
        assert await running == ["0002_post_second"]
    finally:
        await blocker.close()
        await watcher.close()


async def rolled_back(watcher: asyncpg.Connection, times: int) -> None:
    """Wait until the waiting statement was seen to come and go that often."""
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation IS NOT NULL)"
    async with asyncio.timeout(20):
        for _ in range(times):
            while not await watcher.fetchval(waiting):
                pass
            while await watcher.fetchval(waiting):
                pass


async def test_a_migration_that_never_gets_its_lock_gives_up_in_one_line(
    empty_url: str, environment: Environment, two_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retrying for ever would look like a hang; nothing may be half-applied."""
    monkeypatch.setattr(migrate, "RETRY_S", 0.001)
    monkeypatch.setattr(migrate, "TRIES_MAX", 3)
    quick = migrate.SQL.blocks | {"set_lock_timeout": "SET LOCAL lock_timeout = '10ms'"}
    monkeypatch.setattr(migrate.SQL, "blocks", quick)
    migrator = Migrator(empty_url, environment, two_steps)
    await migrator.migrate(1)
    blocker = await asyncpg.connect(empty_url)
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE duly.first IN ACCESS SHARE MODE")
            with pytest.raises(MigrationFailed, match=r"0002_post_second failed: .*lock timeout"):
                await migrator.migrate()
    finally:
        await blocker.close()
    assert [entry.number for entry in await migrator.applied()] == [1]


async def test_a_failing_migration_leaves_nothing_behind(
    empty_url: str, environment: Environment, two_steps: Path
) -> None:
    """A ledger row without its change, or the reverse, could never be repaired by running again."""
    broken = two_steps / "0002_post_second.sql"
    broken.write_text(broken.read_text().replace("m integer;", "m integer; SELECT 1/0;", 1))
    with pytest.raises(MigrationFailed, match="0002_post_second failed: division by zero"):
        await Migrator(empty_url, environment, two_steps).migrate()
    (two_steps / "0002_post_second.sql").write_text(TWO_STEPS["0002_post_second.sql"])
    assert await Migrator(empty_url, environment, two_steps).migrate() == ["0002_post_second"]


async def test_a_schema_newer_than_the_code_is_refused(
    owner: asyncpg.Connection, owner_url: str, environment: Environment
) -> None:
    """An old binary on a new schema would write what newer ones no longer understand."""
    newest = len(ALL)
    await owner.execute("INSERT INTO duly.migrations (number, name) VALUES ($1, 'x')", newest + 1)
    refusal = f"its schema is at version {newest + 1}, and this duly knows {newest}"
    with pytest.raises(DatabaseUnfit, match=refusal):
        await Migrator(owner_url, environment).migrate()


async def test_a_schema_that_other_migrations_made_is_refused_and_left_alone(
    empty_url: str, environment: Environment, two_steps: Path
) -> None:
    """Taken for version 2 of ours, it would run without our tables, or be reversed by ours."""
    other = Migrator(empty_url, environment, two_steps)
    await other.migrate()
    before = await asyncio.to_thread(dump_schema, empty_url)
    ours = Migrator(empty_url, environment)
    refusal = (
        r"made by a version before 0\.1 \(0001_pre_first\).*new data directory.*empty database"
    )
    for refused in (ours.migrate(), ours.migrate(0), ours.applied()):
        with pytest.raises(DatabaseUnfit, match=refusal):
            await refused
    assert [entry.name for entry in await other.applied()] == NAMES
    assert await asyncio.to_thread(dump_schema, empty_url) == before


async def test_one_renamed_migration_is_enough_to_be_refused(
    empty_url: str, environment: Environment, two_steps: Path
) -> None:
    """The first may agree, and the schema still be another one."""
    await Migrator(empty_url, environment, two_steps).migrate()
    (two_steps / "0002_post_second.sql").rename(two_steps / "0002_post_other.sql")
    with pytest.raises(DatabaseUnfit, match="0002_post_second"):
        await Migrator(empty_url, environment, two_steps).migrate()


@pytest.mark.parametrize("target", [-1, len(ALL) + 1])
async def test_a_version_that_does_not_exist_is_refused(
    owner_url: str, environment: Environment, target: int
) -> None:
    """One past either end would silently run everything, or undo it."""
    with pytest.raises(MigrationFailed, match=f"there is no version {target}"):
        await Migrator(owner_url, environment).migrate(target)


async def test_a_login_that_may_not_create_the_schema_is_told(
    empty_url: str, engine_url: str, environment: Environment
) -> None:
    """The engine's login is not the owner; it must be said, not shown as a traceback."""
    with pytest.raises(MigrationFailed, match="permission denied"):
        await Migrator(engine_url, environment).migrate(0)


async def test_a_session_may_override_the_clock_and_no_other_sees_it(
    owner: asyncpg.Connection, owner_url: str
) -> None:
    """Time is given, never taken; but one test's time must not become another's."""
    other = await asyncpg.connect(owner_url)
    try:
        await owner.execute("SET duly.test_now = '2031-02-03 04:05:06+00'")
        assert await owner.fetchval("SELECT duly.now() = '2031-02-03 04:05:06+00'")
        assert await other.fetchval("SELECT duly.now() = now()")
        await owner.execute("SET duly.test_now = ''")
        assert await owner.fetchval("SELECT duly.now() = now()")
    finally:
        await other.close()


async def test_the_clock_is_inlined_as_an_index_condition(owner: asyncpg.Connection) -> None:
    """As an opaque call it would be a filter on every row of every scan for due timers."""
    await owner.execute("CREATE TABLE duly.moments (due_at timestamptz)")
    await owner.execute("CREATE INDEX ON duly.moments (due_at)")
    await owner.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    question = "EXPLAIN (COSTS OFF) SELECT * FROM duly.moments WHERE due_at <= duly.now()"
    plan = "\n".join(row[0] for row in await owner.fetch(question))
    assert "Index Cond: (due_at <= COALESCE(" in plan, plan
