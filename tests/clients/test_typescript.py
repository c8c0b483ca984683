"""The TypeScript client: packed as for npm, installed into a program of its own, run on Node."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duly import Client
from tests.processes import PROJECT, eventually
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up
from tests.typescript_types import TYPES, make_types

PACKAGE = PROJECT / "clients" / "typescript"
PROGRAMS = Path(__file__).parent / "node"
INSTALL_S_MAX = 120
RUN_S_MAX = 60


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None and os.environ.get("CI") != "true":
        pytest.skip(f"{name} is not installed")
    assert found is not None, f"{name} is missing on CI"
    return found


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's folder that has the packed client in it, and the compiler."""
    npm, _ = program("npm"), program("node")
    source = tmp_path_factory.mktemp("package") / "typescript"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("node_modules", "dist"))
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    fetched = run(npm, "install", *quiet, cwd=source)
    if fetched.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"npm cannot install here: {fetched.stderr[-300:]}")
    assert fetched.returncode == 0, fetched.stderr
    packed = run(npm, "pack", "--silent", cwd=source)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    (archive,) = source.glob("*.tgz")
    folder = tmp_path_factory.mktemp("program")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    added = run(npm, "install", *quiet, str(archive), cwd=folder)
    assert added.returncode == 0, added.stderr
    (folder / "tsc").symlink_to(source / "node_modules" / "typescript" / "bin" / "tsc")
    (folder / "types").symlink_to(source / "node_modules" / "@types")
    return folder


@pytest.fixture(scope="module")
def duly(server: ServerOfTheRun) -> Iterator[RunningDuly]:
    with server.database() as name:
        urls = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=urls) as running:
            yield running


@pytest.fixture(scope="module")
def client(duly: RunningDuly) -> Iterator[Client]:
    with Client(duly.url, duly.ready["api_key"]) as opened:
        yield opened


class NodeProcess:
    def __init__(self, folder: Path, duly: RunningDuly, script: str, *arguments: str) -> None:
        shutil.copy(PROGRAMS / script, folder)
        self.process = subprocess.Popen(
            [program("node"), script, *arguments],
            cwd=folder,
            env={**os.environ, "DULY_URL": duly.url, "DULY_API_KEY": duly.ready["api_key"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        return json.loads(line)

    def __enter__(self) -> "NodeProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=RUN_S_MAX)


def test_the_types_are_those_of_the_api() -> None:
    """A field that the API renamed would be found by the user's program, at night."""
    assert TYPES.read_text() == make_types(), "run `python -m tests.typescript_types`"


def test_the_package_has_no_dependency_and_names_no_registry() -> None:
    """A client that brings a tree of packages brings their faults, too."""
    described = json.loads((PACKAGE / "package.json").read_text())
    assert "dependencies" not in described
    assert not (PACKAGE / "package-lock.json").exists()
    assert all(version[0].isdigit() for version in described["devDependencies"].values())


@pytest.mark.slow
def test_the_client_submits_reads_lists_waits_and_explains(
    installed: Path, duly: RunningDuly, client: Client
) -> None:
    """Every call that the package offers, against the server that it is for."""
    client.submit_many([{"type": "bulk", "delay_s": 3600} for _ in range(201)])
    with NodeProcess(installed, duly, "client.mjs") as node:
        out = node.answer()
        assert node.process.wait(RUN_S_MAX) == 0
    assert out["same"]
    assert out["state"] == "SCHEDULED"
    assert out["mismatch"] == "idempotency_mismatch"
    assert out["wrong"] == [True, "ApiError", 422, "/priority"]
    assert out["targets"] == [{"pool": "default"}, {"url": "https://a.example.com/"}]
    assert (out["explained"], out["rescheduled"], out["waited"]) == ("SCHEDULED", 8, True)
    assert (out["cancelled"], out["attempts"], out["payload"]) == ("CANCELLED", 1, {"to": "a"})
    assert out["schedules"] == ["s"]
    assert out["pages"] == 201
    assert out["unreachable"][0]
    assert "cannot be reached" in out["unreachable"][1]
    assert "DULY_URL" in out["none"]


@pytest.mark.slow
def test_a_workflow_is_started_signalled_and_read(
    installed: Path, duly: RunningDuly, client: Client
) -> None:
    """A language whose client knows only single tasks writes its own graphs, by polling."""
    with (
        NodeProcess(installed, duly, "worker.mjs"),
        NodeProcess(installed, duly, "workflow.mjs") as node,
    ):
        out = node.answer()
        assert node.process.wait(RUN_S_MAX) == 0
    assert (out["early"], out["explained"], out["paused"]) == (True, "ship", True)
    assert (out["signal"], out["state"], out["counts"]) == ("approved", "COMPLETED", [3, 1])
    charged = {"state": "COMPLETED", "value": "receipt 7"}
    assert out["shipped"] == {"charged": charged, "approved": {"by": "ann"}}
    assert (out["skipped"], out["unknown"], out["same"], out["listed"]) == (True,) * 4
    assert out["nodes"] == ["charge", "approved", "ship", "apologise"]
    assert (out["after"], out["cancelled"]) == (["charge", "approved"], "CANCELLED")


@pytest.mark.slow
def test_a_worker_completes_rejects_retries_snoozes_and_keeps_leases(
    installed: Path, duly: RunningDuly, client: Client
) -> None:
    """Each way in which an attempt ends, as the server records it."""
    with NodeProcess(installed, duly, "worker.mjs") as node:
        added = client.submit("add", {"a": 1, "b": 2}, pool="node").wait(30)
        assert added.state == "COMPLETED"
        assert added.output == {"sum": 3, "key": added.execution_key, "attempt": 1}
        rejected = client.submit("reject", pool="node").wait(30)
        assert (rejected.state, rejected.reason) == ("FAILED", "rejected")
        assert "not an address" in str(rejected.error)
        flaky = client.submit("flaky", pool="node").wait(30)
        assert (flaky.state, flaky.output) == ("COMPLETED", 2)
        broken = client.submit("broken", pool="node", retry={"max_attempts": 1}).wait(30)
        assert str(broken.error).startswith("TypeError: no such thing")
        snoozed = client.submit("snooze", pool="node").wait(30)
        assert (snoozed.output, snoozed.attempt) == (2, 1)
        kept = client.submit("progress", pool="node").wait(30)
        assert (kept.output, kept.attempt) == ("kept its lease", 1)
        unknown = client.submit("nobody.knows", pool="node")
        eventually(
            lambda: [each.outcome for each in client.attempts(unknown.id)] == ["snoozed"],
            "an attempt that was put off",
        )
        assert unknown.cancel().state == "CANCELLED"
        assert node.process.poll() is None


@pytest.mark.slow
def test_a_worker_stops_what_is_cancelled_and_releases_what_it_drains(
    installed: Path, duly: RunningDuly, client: Client
) -> None:
    """A deploy must not cost an attempt, and a cancel must reach the handler."""
    with NodeProcess(installed, duly, "worker.mjs", "0.3") as node:
        doomed = client.submit("long", pool="node")
        assert node.answer() == {"event": "started", "id": doomed.id}
        doomed.cancel()
        assert node.answer() == {"event": "aborted", "cancelled": True}
        assert doomed.wait(30).state == "CANCELLED"
        drained = client.submit("long", pool="node")
        assert node.answer()["event"] == "started"
        node.process.send_signal(signal.SIGTERM)
        assert node.answer() == {"event": "aborted", "cancelled": False}
        assert node.answer() == {"event": "ended"}
        assert node.process.wait(RUN_S_MAX) == 0
    (released,) = [each for each in client.attempts(drained.id) if each.outcome == "released"]
    assert client.get(drained.id).attempt == 0, released
    drained.cancel()


@pytest.mark.slow
def test_the_types_refuse_what_the_api_would(installed: Path) -> None:
    """Types that take anything find nothing."""
    tsc = (program("node"), "tsc", "--noEmit", "--strict", "--target", "es2022")
    options = ("--module", "nodenext", "--typeRoots", "types", "--types", "node")
    shutil.copy(PROGRAMS / "use.ts", installed)
    used = run(*tsc, *options, "use.ts", cwd=installed)
    assert used.returncode == 0, used.stdout
    shutil.copy(PROGRAMS / "misuse.ts", installed)
    told = run(*tsc, *options, "misuse.ts", cwd=installed).stdout
    lines = [line.partition("(")[2].partition(",")[0] for line in told.splitlines()]
    assert [line for line in lines if line.isdigit()] == ["3", "4", "5", "6", "7", "8"], told
