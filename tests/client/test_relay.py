"""The outbox relay: every committed row becomes one task, refused rows stand aside, faults wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from random import Random
from typing import Any

import asyncpg
import msgspec
import pytest

from duly.client.asynchronous import AsyncClient
from duly.client.relay import OutboxUnfit, Relay, Round, Step, create_outbox
from duly.environment import Environment, SystemClock
from duly.store.database import Database
from tests.api.conftest import Front, open_front
from tests.client.producers import count

pytestmark = pytest.mark.slow

WAIT_MAX_S = 30.0


class Killed(BaseException):
    """Ends a relay at a step as kill -9 would: nothing after it runs."""


@pytest.fixture
async def front(database: Database) -> AsyncIterator[Front]:
    async with open_front(database, Environment(SystemClock(), Random(7))) as opened:
        yield opened


@pytest.fixture
async def outbox(empty_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The producer's own database, with an outbox."""
    await create_outbox(empty_url)
    await create_outbox(empty_url)
    connection = await asyncpg.connect(empty_url)
    yield connection
    await connection.close()


@contextlib.asynccontextmanager
async def a_relay(front: Front, url: str, **more: Any) -> AsyncIterator[Relay]:
    key = more.pop("key", front.producer)
    async with AsyncClient(front.url, key, timeout_s=5, tries=1) as client:
        yield Relay(url, client, **more)


async def write(
    outbox: asyncpg.Connection, kind: str = "email.send", *, payload: Any = None, **options: Any
) -> None:
    await outbox.execute(
        "INSERT INTO duly_outbox (type, payload, options)"
        " VALUES ($1, $2::text::json, $3::text::jsonb)",
        kind,
        msgspec.json.encode(payload).decode(),
        msgspec.json.encode(options).decode(),
    )


async def rows(outbox: asyncpg.Connection, table: str = "duly_outbox") -> int:
    found: int = await outbox.fetchval(f"SELECT count(*) FROM {table}")
    return found


async def test_a_row_becomes_a_task_and_is_gone(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """All that the row says must arrive: a payload as it was written, and every option."""
    await outbox.execute(
        "INSERT INTO duly_outbox (type, payload, options)"
        """ VALUES ('a.b', '{"n": 12345678901234567890.10, "u": "\\u0001"}',"""
        """ '{"pool": "mail", "priority": 9, "tags": {"a": "b"}}')"""
    )
    (row,) = await outbox.fetch("SELECT id FROM duly_outbox")
    async with a_relay(front, empty_url) as relay:
        assert await relay.drain() == Round(stored=1)
    task = await owner.fetchrow("SELECT * FROM duly.tasks")
    assert task["payload"] == '{"n": 12345678901234567890.10, "u": "\\u0001"}'
    assert (task["type"], task["priority"]) == ("a.b", 9)
    assert task["execution_key"] == f"outbox:{row['id']}"
    assert await rows(outbox) == await rows(outbox, "duly_outbox_refused") == 0


async def test_only_committed_rows_are_seen(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """Forwarded before the commit, the task of a rolled-back order runs."""
    async with a_relay(front, empty_url) as relay:
        transaction = outbox.transaction()
        await transaction.start()
        await write(outbox)
        assert await relay.drain() == Round()
        await transaction.rollback()
        async with outbox.transaction():
            await write(outbox)
        assert await relay.drain() == Round(stored=1)
    assert await count(owner, "tasks") == 1


async def test_a_delay_counts_from_the_producers_transaction(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """A relay that was down for an hour must not add that hour to every delay."""
    await write(outbox, delay_s=7200)
    await outbox.execute("UPDATE duly_outbox SET created_at = created_at - interval '1 hour'")
    written_at = await outbox.fetchval("SELECT created_at FROM duly_outbox")
    async with a_relay(front, empty_url) as relay:
        await relay.drain()
    assert await owner.fetchval("SELECT run_at FROM duly.tasks") == written_at + timedelta(hours=2)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": "NOT A TYPE"}, "invalid: type"),
    ({"priority": 10}, "invalid: priority"),
    ({"colour": "red"}, "colour"),
    ({"delay_s": "soon"}, "invalid: delay_s"),
    ({"delay_s": 1, "run_at": "2036-01-01T00:00:00Z"}, "invalid: delay_s"),
    ({"payload": "x" * 65536}, "payload is larger than 65536 bytes"),
    ({"tags": {"a": "x" * 65536}}, "options is larger than 65536 bytes"),
    ({"idempotency_key": 5}, "idempotency_key is not text"),
    ({"idempotency_key": "a\nb"}, "invalid: idempotency_key"),
    ({"target": 5, "pool": "p"}, "cannot be read"),
]


async def test_a_refused_row_stands_aside_and_the_others_go_on(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """One bad row that blocks the outbox stops a whole business."""
    for bad, _ in REFUSED:
        await write(outbox)
        await write(outbox, **bad)
    await outbox.execute(
        "INSERT INTO duly_outbox (type, payload) VALUES ('e', '{\"a\": 1, \"a\": 2}')"
    )
    await outbox.execute(
        """INSERT INTO duly_outbox (type, options) VALUES ('e', '{"payload": 1}')"""
    )
    await write(outbox)
    async with a_relay(front, empty_url) as relay:
        done = await relay.drain()
    assert done == Round(stored=len(REFUSED) + 1, refused=len(REFUSED) + 2)
    assert await count(owner, "tasks") == len(REFUSED) + 1
    assert await rows(outbox) == 0
    refused = await outbox.fetch("SELECT error FROM duly_outbox_refused ORDER BY created_at")
    for (_, reason), row in zip(REFUSED, refused, strict=False):
        assert reason in row["error"]
    assert "two members 'a'" in refused[-2]["error"]


async def test_a_refused_row_can_be_mended_and_sent_again(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """Set aside must not mean lost."""
    await write(outbox, priority=10)
    async with a_relay(front, empty_url) as relay:
        await relay.drain()
        mend = (
            "INSERT INTO duly_outbox (id, type, payload, options)"
            " SELECT id, type, payload, options - 'priority' FROM duly_outbox_refused"
        )
        await outbox.execute(mend)
        assert await relay.drain() == Round(stored=1)
    assert await count(owner, "tasks") == 1


async def test_a_type_that_the_key_may_not_submit_holds_up_no_other(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """Said of a whole batch, it would set everything aside."""
    key = await front.make_key(front.tenant, "producer", types=["email.send"])
    for kind in ("email.send", "invoice.charge", "email.send"):
        await write(outbox, kind)
    async with a_relay(front, empty_url, key=key) as relay:
        assert await relay.drain() == Round(stored=2, refused=1)
    assert await count(owner, "tasks") == 2


async def test_a_key_that_is_not_known_sets_nothing_aside(
    front: Front, outbox: asyncpg.Connection, empty_url: str
) -> None:
    """A revoked key is the operator's mistake, not the rows'."""
    await write(outbox)
    key = front.producer[:-1] + ("a" if front.producer[-1] != "a" else "b")
    async with a_relay(front, empty_url, key=key) as relay:
        done = await relay.drain()
    assert (done.stored, done.refused, done.waiting) == (0, 0, 1)
    assert "unauthenticated" in str(done.problem)
    assert await rows(outbox) == 1


@pytest.mark.parametrize("step", ["before_submit", "after_submit", "after_delete", "after_commit"])
async def test_a_relay_that_dies_at_any_step_forwards_each_row_once(
    front: Front,
    outbox: asyncpg.Connection,
    owner: asyncpg.Connection,
    empty_url: str,
    step: Step,
) -> None:
    """Between duly's commit and its own, a relay does not know what it has done."""
    for number in range(5):
        await write(outbox, payload=number)

    async def die(at: Step) -> None:
        if at == step:
            raise Killed

    async with a_relay(front, empty_url, on_step=die) as relay:
        with pytest.raises(Killed):
            await relay.drain()
    assert await rows(outbox) == (0 if step == "after_commit" else 5)
    async with a_relay(front, empty_url) as relay:
        assert await relay.drain() == Round(stored=0 if step == "after_commit" else 5)
    payloads = await owner.fetch("SELECT payload FROM duly.tasks")
    assert sorted(row["payload"] for row in payloads) == list("01234")
    assert await rows(outbox) == 0


async def test_two_relays_share_an_outbox(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """A relay that waits for the other's rows makes the second one useless."""
    for number in range(40):
        await write(outbox, payload=number)
    both = asyncio.Barrier(2)
    is_first = [True, True]

    async def meet(ordinal: int, step: Step) -> None:
        # Both hold a batch at once, or this times out.
        if step == "before_submit" and is_first[ordinal]:
            is_first[ordinal] = False
            await both.wait()

    async with (
        asyncio.timeout(WAIT_MAX_S),
        a_relay(front, empty_url, batch_max=10, on_step=lambda step: meet(0, step)) as one,
        a_relay(front, empty_url, batch_max=10, on_step=lambda step: meet(1, step)) as two,
    ):
        done = await asyncio.gather(one.drain(), two.drain())
    assert sum(each.stored for each in done) == 40
    assert min(each.stored for each in done) >= 10
    assert await count(owner, "tasks") == 40
    assert await rows(outbox) == 0


async def test_a_running_relay_hears_of_new_rows(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """With an hour between two looks, only the notification can have brought it."""
    async with running(front, empty_url, poll_s=3600) as (_, rounds):
        await until(lambda: len(rounds) >= 1)
        await write(outbox)
        await until(lambda: sum(each.stored for each in rounds) == 1)
        await write(outbox)
        await until(lambda: sum(each.stored for each in rounds) == 2)
    assert await count(owner, "tasks") == 2


async def test_a_running_relay_looks_without_being_told(
    front: Front, outbox: asyncpg.Connection, empty_url: str
) -> None:
    """Triggers are dropped and notifications are lost; rows must not be."""
    await outbox.execute("DROP TRIGGER duly_outbox_ring ON duly_outbox")
    async with running(front, empty_url, poll_s=0.05) as (_, rounds):
        await until(lambda: len(rounds) >= 1)
        await write(outbox)
        await until(lambda: sum(each.stored for each in rounds) == 1)


CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("step", ["before_submit", "after_submit", "after_delete", "after_commit"])
async def test_a_lost_connection_to_the_outbox_is_made_again(
    front: Front,
    outbox: asyncpg.Connection,
    owner: asyncpg.Connection,
    empty_url: str,
    step: Step,
) -> None:
    """A restart of the producer's database must not need one of the relay, nor double a task."""
    cuts = [step]

    async def cut(at: Step) -> None:
        if at in cuts:
            await outbox.execute(CUT)
            if at == "after_commit":
                # Between two rounds: the next one finds the connection closed, whoever is quicker.
                await until(lambda: relay.source is None or relay.source.is_closed())
            cuts.remove(at)

    async with running(front, empty_url, poll_s=0.05, on_step=cut) as (relay, rounds):
        await write(outbox)
        await until(lambda: not cuts)
        await write(outbox)
        await until(lambda: sum(each.stored for each in rounds) == 2)
    assert await count(owner, "tasks") == 2
    assert await rows(outbox) == 0
    troubled = [each for each in rounds if each.problem and "outbox's database" in each.problem]
    assert bool(troubled) == (step != "after_commit")


async def test_a_duly_at_its_limits_makes_rows_wait(
    front: Front, outbox: asyncpg.Connection, owner: asyncpg.Connection, empty_url: str
) -> None:
    """429 is not a refusal of the row."""
    await owner.execute(
        "UPDATE duly.tenants SET submit_rate = 1, submit_burst = 1 WHERE id = $1", front.tenant.id
    )
    for _ in range(3):
        await write(outbox)
    async with running(front, empty_url, poll_s=0.05, batch_max=1) as (_, rounds):
        await until(lambda: sum(each.stored for each in rounds) == 3)
    assert any(each.problem and "rate_limited" in each.problem for each in rounds)
    assert await rows(outbox, "duly_outbox_refused") == 0


async def test_a_database_without_an_outbox_is_said_so(front: Front, empty_url: str) -> None:
    """Waiting for a table that nobody will make looks like a relay that works."""
    async with a_relay(front, empty_url) as relay:
        with pytest.raises(OutboxUnfit, match="--create-table"):
            await relay.drain()


@contextlib.asynccontextmanager
async def running(front: Front, url: str, **more: Any) -> AsyncIterator[tuple[Relay, list[Round]]]:
    rounds: list[Round] = []
    async with a_relay(front, url, report=rounds.append, **more) as relay:
        work = asyncio.create_task(relay.run())
        try:
            yield relay, rounds
        finally:
            relay.stop()
            async with asyncio.timeout(WAIT_MAX_S):
                await work


async def until(is_true: Any) -> None:
    async with asyncio.timeout(WAIT_MAX_S):
        while not is_true():  # noqa: ASYNC110 (what the relay reports has no signal)
            await asyncio.sleep(0.01)
