"""Wheel and sdist, built and installed where nothing else is: what a user of `pip` gets."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.processes import PROJECT
from tests.servers import ServerOfTheRun
from tests.story.duly_up import duly_up

CLIENT_BYTES_MAX = 15_000_000
IMPORT_S_MAX = 0.08
HELP_S_MAX = 0.1
TRIALS = 15
# On a machine that is busy or slow, Python itself starts later, too: so many of its own starts.
STARTS_MAX = 9
# What every environment has before anything is installed.
NOT_OURS = {"pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel"}
# A machine without an index cannot install; CI has one, and must.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKER = """
import asyncio, sys
from duly import AsyncClient, Client, Worker

worker = Worker(pools=["bare"])

@worker.task("add")
async def add(ctx, a: int, b: int):
    return a + b

async def main():
    async with AsyncClient() as duly:
        task = await duly.submit("add", {"a": 1, "b": 2}, pool="bare")
        serving = asyncio.create_task(worker.serve())
        done = await task.wait(timeout_s=30)
        print(done.state, done.output)
        worker.stop()
        await serving

asyncio.run(main())
with Client() as duly:
    print(duly.submit("add", {"a": 1, "b": 2}, pool="bare", delay_s=60).state)
heavy = {"aiohttp", "asyncpg", "jsonschema_rs", "uvicorn", "uvloop", "prometheus_client"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


class Environment:
    """A virtual environment with nothing in it but what a test installs."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.bin = folder / "bin"

    def install(self, *what: str) -> None:
        pins = self.folder / "pins.txt"
        pins.write_text("\n".join(pinned(PROJECT / "constraints.txt")))
        done = self.run("python", "-m", "pip", "install", "--quiet", "-c", str(pins), *what)
        if (
            done.returncode
            and not os.environ.get("CI")
            and "ResolutionImpossible" not in done.stderr
        ):
            pytest.skip(f"nothing can be installed here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr

    def run(
        self, program: str, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        clean["HOME"] = str(self.folder)
        clean.pop("PYTHONPATH", None)
        return subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.folder,
            env={**clean, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def bytes(self) -> int:
        (packages,) = self.folder.glob("lib/python*/site-packages")
        return sum(
            path.stat().st_size
            for path in packages.rglob("*")
            if path.is_file() and path.relative_to(packages).parts[0].split("-")[0] not in NOT_OURS
        )

    def starts_s(self, *commands: tuple[str, ...]) -> list[float]:
        """The least processor time of each command, as this environment's Python measures it."""
        code = (
            "import json, resource, subprocess, sys\n"
            "def best(command):\n"
            "    found = []\n"
            f"    for _ in range({TRIALS}):\n"
            "        before = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
            "        subprocess.run(command, check=True, capture_output=True)\n"
            "        after = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
            "        found.append(sum(after[:2]) - sum(before[:2]))\n"
            "    return min(found)\n"
            "print(json.dumps([best(each) for each in json.loads(sys.argv[1])]))\n"
        )
        done = self.run("python", "-c", code, json.dumps(commands))
        assert done.returncode == 0, done.stderr
        return [float(each) for each in json.loads(done.stdout)]


def pinned(lock: Path) -> Iterator[str]:
    """The lock's versions without its hashes, which pip would then want of duly itself, too."""
    for line in lock.read_text().splitlines():
        if "==" in line and not line.startswith((" ", "#")):
            yield line.rstrip("\\ ")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of this tree, and the wheel that comes out of that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), "."]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> str:
    (wheel,) = dist.glob("*.whl")
    return str(wheel)


@pytest.fixture(scope="module")
def client_only(wheel: str, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("client"))
    made.install(wheel)
    return made


def test_a_client_is_small_and_quick_to_import(client_only: Environment) -> None:
    """A service that only submits would carry a database driver and a web server with it."""
    assert client_only.bytes() < CLIENT_BYTES_MAX
    python, program = (str(client_only.bin / name) for name in ("python", "duly"))
    bare_s, sync_s, async_s, help_s = client_only.starts_s(
        (python, "-c", "pass"),
        (python, "-c", "from duly import Client, Worker"),
        (python, "-c", "from duly import AsyncClient"),
        (program, "--help"),
    )
    assert sync_s - bare_s < max(IMPORT_S_MAX, STARTS_MAX * bare_s)
    assert async_s - bare_s < max(IMPORT_S_MAX, STARTS_MAX * bare_s)
    assert help_s < max(HELP_S_MAX, STARTS_MAX * bare_s)


def test_a_client_alone_submits_works_and_commands(
    client_only: Environment, server: ServerOfTheRun
) -> None:
    """An import that only the server's packages satisfy is found by the first user of the wheel."""
    with server.database() as name:
        urls = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=urls) as running:
            environ = {"DULY_URL": running.url, "DULY_API_KEY": running.ready["api_key"]}
            done = client_only.run("python", "-c", WORKER, environ=environ)
            assert done.stdout.splitlines() == ["COMPLETED 3", "SCHEDULED"], done.stderr
            listed = client_only.run("duly", "tasks", "list", "--json", environ=environ)
            assert len(json.loads(listed.stdout)["items"]) == 2
            for command in (["status"], ["tasks", "list"], ["nodes", "list"], ["env"], ["config"]):
                told = client_only.run("duly", *command, environ=environ)
                assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["up"], "embedded"),
        (["serve"], "server"),
        (["doctor"], "server"),
        (["migrate"], "server"),
        (["verify"], "server"),
        (["keys", "create", "--first"], "server"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_command_of_the_server_says_what_to_install(
    client_only: Environment, command: list[str], extra: str
) -> None:
    """A traceback about a module that the user never heard of says nothing of extras."""
    url = {"DULY_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    told = client_only.run("duly", *command, environ=url)
    assert told.returncode == 2
    (line,) = told.stderr.splitlines()
    assert f"pip install 'duly[{extra}]'" in line


def test_a_wheel_with_postgresql_starts_with_one_command(
    wheel: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A SQL file or a migration that did not get into the wheel stops the first start."""
    made = Environment(tmp_path_factory.mktemp("embedded"))
    made.install(f"{wheel}[embedded]")
    code = (
        "import json, os, signal, subprocess, sys\n"
        "import duly\n"
        "up = subprocess.Popen([sys.argv[1], 'up', '--json', '--port', '0', '--data-dir', 'data'],"
        " stdout=subprocess.PIPE, text=True)\n"
        "ready = json.loads(up.stdout.readline())\n"
        "with duly.Client(ready['url'], ready['api_key']) as client:\n"
        "    print(client.submit('x', {'a': 1}).state)\n"
        "up.send_signal(signal.SIGTERM)\n"
        "print(up.wait(60))\n"
    )
    done = made.run("python", "-c", code, str(made.bin / "duly"))
    assert done.stdout.splitlines() == ["READY", "0"], done.stderr
