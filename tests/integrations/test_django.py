"""A Django project in a folder of its own, run as processes against a real duly, in whose
PostgreSQL its tables are."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from psycopg.conninfo import conninfo_to_dict

from duly import Client
from tests.processes import child, eventually
from tests.servers import ServerOfTheRun
from tests.story.duly_up import duly_up
from tests.story.test_duly_up import external

SETTINGS = """
INSTALLED_APPS = ["duly.integrations.django", "shop"]
DATABASES = {{
    "default": {{"ENGINE": "django.db.backends.postgresql", **{database}}},
    "other": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "other.sqlite3"}},
}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "of a test"
USE_TZ = True
DULY = {duly}
"""
MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
if __name__ == "__main__":
    execute_from_command_line(sys.argv)
"""
MODELS = """
from django.db import models

class Order(models.Model):
    number = models.IntegerField(unique=True)
    state = models.TextField(default="new")
"""
TASKS = """
from duly import Context, Worker
from django.db import connection
from shop.models import Order

worker = Worker(pools=["shop"])

@worker.task("order.confirm")
def confirm(ctx: Context, number: int) -> str:
    Order.objects.filter(number=number).update(state="confirmed")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
    return Order.objects.get(number=number).state

@worker.task("order.count")
async def count(ctx: Context) -> int:
    return await Order.objects.acount()

@worker.task("order.charge")
def charge(ctx: Context, number: int) -> bool:
    from django.db import transaction
    with transaction.atomic(), ctx.once(connection, step="charge") as first:
        if first:
            Order.objects.filter(number=number).update(state="charged")
        return bool(first)
"""
SCRIPT = """
import json, os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from django.db import transaction
from duly import DulyError
from duly.integrations.django import get_client, submit_in_transaction, submit_on_commit
from shop.models import Order
from shop.tasks import charge, confirm, count

def rolled_back(function):
    try:
        with transaction.atomic():
            function()
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass

def refused(function):
    try:
        function()
    except DulyError as error:
        return f"{type(error).__name__}: {error}"

rolled_back(lambda: submit_on_commit(confirm.call(1), idempotency_key="never"))
rolled_back(lambda: submit_in_transaction(confirm.call(1)))
with transaction.atomic():
    Order.objects.create(number=1)
    stored = submit_in_transaction(confirm.call(1))
    early = [task.id for task in get_client().tasks()]
with transaction.atomic():
    Order.objects.create(number=2)
    submit_on_commit(confirm.call(2), tags={"by": "commit"})
    submit_on_commit("order.charge", {"number": 2}, pool="shop", delay_s=0)
    later = [task.tags for task in get_client().tasks()]

def invalid():
    with transaction.atomic():
        submit_in_transaction(confirm.call(1), priority=10)

def on_sqlite():
    with transaction.atomic(using="other"):
        submit_in_transaction(confirm.call(1), using="other")

print(json.dumps({
    "stored": str(stored),
    "early": early,
    "later": later,
    "all": sorted(task.type for task in get_client().tasks()),
    "counted": count.submit().id,
    "invalid": refused(invalid),
    "sqlite": refused(on_sqlite),
    "autocommit": refused(lambda: submit_in_transaction(confirm.call(1))),
}))
"""


class Project(NamedTuple):
    folder: Path
    client: Client

    def environ(self) -> dict[str, str]:
        """Of a program that knows only the project's settings."""
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def project(server: ServerOfTheRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "shop").mkdir()
    with server.database() as name:
        parts = conninfo_to_dict(server.url(name))
        words = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST"}
        words |= {"port": "PORT"}
        database = {words[key]: str(value) for key, value in parts.items() if key in words}
        with duly_up(environ=external(server.url(name), server.engine_url(name))) as duly:
            key = duly.ready["api_key"]
            options = {"URL": duly.url + "/", "API_KEY": key, "WORKER": "shop.tasks:worker"}
            files = {
                "settings.py": SETTINGS.format(database=database, duly=options),
                "manage.py": MANAGE,
                "script.py": SCRIPT,
                "shop/__init__.py": "",
                "shop/models.py": MODELS,
                "shop/tasks.py": TASKS,
            }
            for path, text in files.items():
                (folder / path).write_text(text)
            with Client(duly.url, key) as client:
                made = Project(folder, client)
                migrated = made.run("manage.py", "migrate", "--run-syncdb", "-v", "0")
                assert migrated.returncode == 0, migrated.stderr
                yield made


def test_tasks_go_with_djangos_transactions_and_its_worker_runs_them(project: Project) -> None:
    """A task of an order that was rolled back confirms what is not there; one that is forgotten
    confirms nothing."""
    done = project.run("script.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # Neither before the commit.
    assert said["early"] == []
    assert said["later"] == [None]
    assert said["all"] == ["order.charge", "order.confirm", "order.confirm"]
    assert said["invalid"].startswith("Invalid:")
    assert "use submit_on_commit" in said["sqlite"]
    assert "inside of atomic()" in said["autocommit"]
    command = (str(project.folder / "manage.py"), "duly_worker", "--concurrency", "4")
    with child(*command, environ=project.environ()) as worker:
        assert project.client.wait(said["stored"], 30).output == "confirmed"
        assert project.client.wait(said["counted"], 30).output == 2
        eventually(
            lambda: all(task.is_terminal for task in project.client.tasks()), "all have ended"
        )
        (charged,) = project.client.tasks(type="order.charge")
        assert project.client.get(charged.id).output is True
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.said_on_errors


def test_wrong_settings_and_workers_are_refused_with_their_names(project: Project) -> None:
    """A key with a typing error is found when the first task is lost."""
    settings = project.folder / "settings.py"
    right = settings.read_text()
    try:
        settings.write_text(right + "DULY['API_KEI'] = 'x'\n")
        refused = project.run("manage.py", "check")
        assert "ImproperlyConfigured: DULY has 'API_KEI'" in refused.stderr
    finally:
        settings.write_text(right)
    missing = project.run("manage.py", "duly_worker", "shop.tasks:none")
    assert "CommandError: there is no 'none' in shop.tasks; it has" in missing.stderr
    planned = project.run("manage.py", "duly_worker", "--plan")
    assert (planned.stdout, planned.returncode) == ("no schedules in the worker's code\n", 0)
