"""The resources of a client beside tasks: typed, upserted by name, defined once for both."""

import asyncio
import importlib
import inspect
import itertools
import pkgutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

import duly
import duly.client
from duly import AsyncClient, Client, Context, TaskRegistry
from duly.client import namespaces, views
from duly.client.operations import Blocking, Operations
from duly.client.request import RESOURCES
from duly.domain.errors import DulyError
from tests.client.conftest import MakeWorker
from tests.story.duly_up import RunningDuly

numbers = itertools.count(1)


@pytest.fixture
def plain(duly: RunningDuly) -> Iterator[Client]:
    with Client(duly.url, duly.ready["api_key"]) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"made by a test {next(numbers)}"


def report(ctx: Context, kind: str, copies: int = 1) -> None: ...


def test_a_schedule_is_created_changed_and_left_alone_by_its_name(plain: Client, name: str) -> None:
    """A program that starts twice must not have two schedules, and one that changed must not have
    the old one."""
    write = TaskRegistry(pool="reports").task("report.write")(report)
    rule = {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}
    planned = plain.schedules.plan(name, write.call("daily"), **rule)  # type: ignore[arg-type]
    assert (planned.action, plain.schedules.find(name)) == ("create", None)
    made = plain.schedules.upsert(
        name, write.call("daily"), cron="0 9 * * MON-FRI", timezone="Europe/Berlin"
    )
    assert (made.cron, made.task["payload"], made.state) == (
        rule["cron"],
        {"kind": "daily"},
        "ACTIVE",
    )
    again = plain.schedules.upsert(name, write.call("daily"), **rule)  # type: ignore[arg-type]
    assert (again.id, again.updated_at) == (made.id, made.updated_at)
    step = plain.schedules.plan(name, write.call("weekly"), cron="0 9 * * MON", timezone="UTC")
    changed = {each.field: (each.old, each.new) for each in step.changes}
    assert step.action == "change"
    assert changed == {
        "cron": ("0 9 * * MON-FRI", "0 9 * * MON"),
        "timezone": ("Europe/Berlin", "UTC"),
        "task.payload.kind": ("daily", "weekly"),
    }
    other = plain.schedules.upsert(name, write.call("weekly"), cron="0 9 * * MON")
    assert (other.id, other.timezone, other.task["payload"]) == (made.id, "UTC", {"kind": "weekly"})
    assert [each.name for each in plain.schedules.list(name_prefix=name)] == [name]
    plain.schedules.delete(made.id)
    with pytest.raises(duly.NotFound):
        plain.schedules.get(made.id)


async def test_every_call_of_a_schedule_is_typed(client: AsyncClient, name: str) -> None:
    """Untyped dictionaries are read with the names that their reader remembers."""
    schedules = client.schedules
    preview = await schedules.preview(cron="0 9 * * *", timezone="Europe/Berlin", count=2)
    assert len(preview.fires) == 2
    made = await schedules.upsert(name, {"type": "a.b"}, cron="0 * * * *", overlap="skip")
    paused = await schedules.pause(made.id, "for a test")
    assert paused.paused is not None
    assert (paused.state, paused.paused.reason) == ("PAUSED", "for a test")
    assert (await schedules.resume(made.id)).state == "ACTIVE"
    task = await schedules.trigger(made.id)
    assert task.type == "a.b"
    verdicts = [each.verdict async for each in schedules.occurrences(made.id)]
    assert verdicts == ["TRIGGERED"]
    now = datetime.now(UTC)
    filled = await schedules.backfill(made.id, now - timedelta(hours=3), now, dry_run=True)
    assert (filled.dry_run, filled.made >= 2) == (True, True)
    await schedules.delete(made.id)
    await client.cancel(task.id)


def test_lists_go_on_over_pages(plain: Client, name: str) -> None:
    """A list that ends after a page of 200 hides the rest."""
    made = [plain.keys.create(f"{name} {n}", "producer") for n in range(3)]
    assert all(key.key and key.key.startswith("duly_") for key in made)
    assert {key.id for key in made} <= {key.id for key in plain.keys.list()}
    assert all(plain.keys.revoke(key.id).revoked_at for key in made)
    rotated = plain.keys.rotate(plain.keys.create(name, "worker").id, grace_s=0)
    assert rotated.rotated_from
    assert plain.keys.get(rotated.id).key is None


def test_what_has_a_name_is_upserted(plain: Client) -> None:
    """ "Exists already" is no answer for a program that says how things are to be."""
    number = next(numbers)
    tenant = plain.tenants.upsert(f"t{number}", weight=2, in_flight_max=7)
    assert (tenant.weight, tenant.in_flight_max) == (2, 7)
    assert plain.tenants.upsert(f"t{number}", in_flight_max=None).in_flight_max is None
    assert plain.tenants.upsert(f"t{number}").weight == 2
    assert plain.tenants.suspend(tenant.name).suspended
    assert not plain.tenants.resume(tenant.name).suspended
    assert tenant.name in {each.name for each in plain.tenants.list()}
    schema = {"type": "object", "required": ["to"]}
    for priority in (7, 8):
        made = plain.task_types.upsert("mail", schema=schema, defaults={"priority": priority})
    assert (made.schema, made.defaults) == (schema, {"priority": 8})
    assert plain.task_types.get("mail").name == "mail"
    assert [each.name for each in plain.task_types.list()] == ["mail"]
    plain.task_types.delete("mail")


def test_the_rest_answers_objects_too(plain: Client) -> None:
    """A field with another name than the server's is found when it is read, by a user."""
    paused = plain.pauses.pause("type", "a.paused", reason="for a test")
    assert (paused.kind, paused.name) == ("type", "a.paused")
    assert [each.name for each in plain.pauses.list()] == ["a.paused"]
    plain.pauses.resume("type", "a.paused")
    assert list(plain.breakers.list()) == []
    with pytest.raises(duly.NotFound, match="open breaker for pool somewhere"):
        plain.breakers.close(pool="somewhere")
    secret = plain.webhook_secrets.create()
    assert secret.secret
    assert secret.id in {each.id for each in plain.webhook_secrets.list()}
    plain.webhook_secrets.delete(secret.id)
    assert next(plain.audit.list()).action
    node = next(plain.nodes.list())
    assert (node.is_live, node.failing) == (True, {})
    assert list(plain.workers.list()) == []
    assert list(plain.workers.history()) == []


def test_dead_letters_are_read_replayed_and_purged(plain: Client) -> None:
    """What failed for good is only found again if somebody can look for it."""
    task = plain.submit(
        "a.late", {"n": 1}, pool="none", start_by=datetime.now(UTC) + timedelta(seconds=1)
    )
    assert plain.wait(task.id, 30).state == "FAILED"
    letter = next(plain.dead_letters.list(type="a.late"))
    assert (letter.id, letter.reason) == (task.id, "expired")
    assert plain.dead_letters.get(task.id).payload == {"n": 1}
    assert plain.dead_letters.groups(type="a.late")[0].count == 1
    assert plain.dead_letters.replay_many(type="a.late", dry_run=True).matched == 1
    replay = plain.dead_letters.replay(task.id)
    assert replay.replay_of == task.id
    plain.cancel(replay.id)
    assert plain.dead_letters.purge(type="a.late").done == 1


def test_many_tasks_are_changed_by_the_server(plain: Client, name: str) -> None:
    """A loop over a million tasks in a program breaks off in the middle."""
    kind = f"bulk.{next(numbers)}"
    plain.submit_many([{"type": kind, "delay_s": 3600} for _ in range(3)])
    seen = plain.bulk.preview("cancel", type=kind)
    assert (seen.matched, seen.has_more, len(seen.sample)) == (3, False, 3)
    with pytest.raises(TypeError, match="everything=True"):
        plain.bulk.start("cancel")
    operation = plain.bulk.start("cancel", type=kind, rate_per_s=1000, canary=1)
    paused = plain.bulk.wait(operation.id, 30)
    assert (paused.state, paused.done) == ("PAUSED_AFTER_CANARY", 1)
    plain.bulk.resume(operation.id)
    ended = plain.bulk.wait(operation.id, 30)
    assert (ended.state, ended.done, ended.filter) == ("DONE", 3, {"type": kind})
    assert operation.id in {each.id for each in plain.bulk.list()}
    with pytest.raises(duly.Conflict):
        plain.bulk.stop(operation.id)
    assert plain.bulk.get(operation.id).state == "DONE"
    found = [task.id for task in plain.search(kind)]
    assert len(found) == 3
    assert plain.erasures.erase(task=found[0]).erased == 1
    assert plain.erasures.erase(type=kind, dry_run=True).matched == 2
    assert plain.erasures.erase(type=kind).erased == 2
    with pytest.raises(duly.Invalid, match="tenant"):
        plain.erasures.erase(tenant="another")


async def test_a_bulk_operation_that_goes_on_is_said(client: AsyncClient) -> None:
    """A wait without an end hangs a deployment."""
    kind = f"bulk.{next(numbers)}"
    await client.submit_many([{"type": kind, "delay_s": 3600} for _ in range(3)])
    operation = await client.bulk.start("cancel", type=kind, rate_per_s=0.01)
    with pytest.raises(duly.WaitTimedOut, match=r"bulk operation .* it is RUNNING"):
        await client.bulk.wait(operation.id, timeout_s=0)
    assert (await client.bulk.stop(operation.id)).state == "STOPPED"
    await client.erasures.erase(type=kind)
    assert [task.type async for task in client.search(type=kind)]


async def test_statistics_and_logs_are_typed(
    client: AsyncClient, plain: Client, make_worker: MakeWorker, pool: str
) -> None:
    """The figures of a program's own page must not depend on how their JSON is written."""
    worker = make_worker()

    @worker.task("logs.write")
    async def write(ctx: Context) -> None:
        ctx.log.info("one line", number=7)

    serving = asyncio.create_task(worker.serve())
    task = await client.submit("logs.write", pool=pool)
    lines = [line async for line in client.logs(task.id, follow=True)]
    worker.stop()
    await serving
    assert [("one line" in line.text, line.level) for line in lines] == [(True, "info")]
    assert [line.text for line in plain.logs(task.id)] == [line.text for line in lines]
    since = datetime.now(UTC) - timedelta(hours=2)
    counted = await client.stats.over_time(since=since, step_s=600, type="logs.write")
    assert (counted.step_s, counted.since, counted.total.failed) == (600, counted.total.at, 0)
    now = await client.stats.now()
    assert {band.band for band in now.bands} == {"high", "normal", "low"}
    assert now.count_max > 0
    assert isinstance(plain.stats.tenants(), list)


async def test_an_id_is_one_segment_of_a_path_whatever_is_in_it(client: AsyncClient) -> None:
    """A service hands on ids that strangers gave it: one with a slash called another route, with
    the service's key."""
    task = await client.submit("path.test", delay_s=3600)
    other = await client.submit("path.test", delay_s=3600)
    for wrong in (f"{task.id}/attempts", f"{task.id}?a=b", f"{task.id}/../{other.id}", "x y", "é"):
        with pytest.raises(duly.NotFound):
            await client.get(wrong)
        with pytest.raises(duly.NotFound):
            await client.dead_letters.replay(wrong)
        with pytest.raises(duly.NotFound):
            await client.schedules.get(wrong)
        with pytest.raises(duly.NotFound):
            await client.workflows.get(wrong)
        with pytest.raises(duly.NotFound):
            await client.tenants.get(wrong)
    with pytest.raises(duly.NotFound):
        await client.cancel(f"{task.id}/run-now?")
    assert {each.state async for each in client.tasks(type="path.test")} == {"SCHEDULED"}


def test_explain_answers_an_object(plain: Client) -> None:
    """The first thing that a newcomer asks."""
    task = plain.submit("a.far", delay_s=3600)
    explained = plain.explain(task.id)
    assert isinstance(explained, views.Explanation)
    assert explained.summary
    assert explained.state == "SCHEDULED"
    plain.cancel(task.id)


def test_both_clients_have_the_same_resources() -> None:
    """One definition: what one can do, the other can."""
    for client in (duly.Client, duly.AsyncClient):
        assert RESOURCES.keys() <= client.__annotations__.keys()
    for kind in RESOURCES.values():
        plain_kind, kind_awaited = getattr(namespaces, kind), getattr(namespaces, f"Async{kind}")
        assert issubclass(plain_kind, Blocking)
        assert plain_kind.awaited is kind_awaited
        assert issubclass(kind_awaited, Operations)


async def test_an_unknown_resource_is_an_attribute_error(client: AsyncClient) -> None:
    """A typing error must not become a call."""
    with pytest.raises(AttributeError, match="did you mean schedules"):
        client.schedule  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean Client"):
        duly.Cleint  # noqa: B018
    assert isinstance(client.nodes.list(), AsyncIterator)


def test_every_error_can_be_imported_from_duly() -> None:
    """An `except` clause needs a name, and its writer looks in the package."""
    for module in pkgutil.iter_modules(duly.client.__path__, "duly.client."):
        if module.name == "duly.client.relay":
            continue  # a command's, which needs the server's packages
        for kind in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(kind) and issubclass(kind, DulyError) and kind is not DulyError:
                # A special case is caught by the name of what it is a case of.
                special = [base for base in kind.__mro__ if issubclass(base, DulyError)][:-1]
                assert any(getattr(duly, base.__name__, None) is base for base in special), kind


def test_a_server_that_is_away_is_one_line() -> None:
    """A traceback of thirty frames ends with the only line that matters."""
    with Client("http://127.0.0.1:9", "duly_none", tries=1) as client:
        with pytest.raises(duly.Unreachable) as failed:
            client.submit("a.b")
        assert "\n" not in str(failed.value)
        assert str(failed.value).endswith("127.0.0.1:9 cannot be reached: Connection refused")
        with pytest.raises(duly.Unreachable):
            client.schedules.find("x")


def test_an_import_of_the_client_loads_no_event_loop_and_no_http_library() -> None:
    """A command that only submits is over before these are loaded; a worker's program is not."""
    heavy = "asyncio aiohttp ssl secrets hashlib structlog"
    heavy += " duly.client.asynchronous duly.store duly.domain.limits"
    look = "import sys; from duly import Client, TaskRegistry; print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    )
    assert not set(heavy.split()) & set(answer.stdout.split())
