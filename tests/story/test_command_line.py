"""The command line as a person meets it: a real duly, a real terminal, real keys."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.cli.terminal import CTRL_C, terminal
from tests.processes import PROJECT
from tests.servers import ServerOfTheRun
from tests.story.duly_up import duly_up

TASK = json.dumps({"type": "bulk", "delay_s": 3600}) + "\n"
LEAVES_THE_SCREEN = "\x1b[?1049l"


@pytest.fixture(scope="module")
def environ(server: ServerOfTheRun) -> Iterator[dict[str, str]]:
    """What a shell needs to reach a running duly."""
    with server.database() as name:
        urls = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=urls) as running:
            yield {"DULY_URL": running.url, "DULY_API_KEY": running.ready["api_key"]}


def duly(environ: dict[str, str], *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "duly", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_a_watched_status_follows_what_happens_until_ctrl_c(environ: dict[str, str]) -> None:
    """A watch that shows the past, or leaves the terminal broken, is worse than none."""
    with terminal("status", "--watch", "--interval", "0.2s", environ=environ) as screen:
        screen.shows(r"slots: 64 of 64 owned")
        screen.shows(r"default +low +0 +0 ")
        duly(environ, "tasks", "submit", "watched", "--priority", "1", "--delay", "1h")
        screen.shows(r"default +low +0 +1 ")
        screen.type(CTRL_C)
        assert screen.wait() == 0
        assert LEAVES_THE_SCREEN in screen.raw
        assert "Traceback" not in screen.text


def test_a_watched_status_in_a_pipe_is_a_document_on_each_line(environ: dict[str, str]) -> None:
    """A program that follows it reads lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "duly", "status", "--watch", "--json", "--interval", "0.2"],
        cwd=PROJECT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.terminate()
    assert [look["slots"]["owned"] for look in looks] == [64, 64]


def test_a_bulk_submit_shows_its_progress(environ: dict[str, str], tmp_path: Path) -> None:
    """Minutes without a sign of life are ended with Ctrl-C, in the middle."""
    path = tmp_path / "tasks.ndjson"
    path.write_text(TASK * 5000)
    with terminal("tasks", "submit", "--from", str(path), environ=environ) as screen:
        assert screen.wait() == 0, screen.text
        assert "5000/5000" in screen.text
        assert "5,000 tasks stored" in screen.text


def test_ctrl_c_in_a_bulk_submit_says_how_to_go_on(environ: dict[str, str], tmp_path: Path) -> None:
    """An interrupted bulk submit must say what is stored and what is not."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with terminal("tasks", "submit", "--from", str(pipe), environ=environ) as screen:
        with pipe.open("w") as writing:
            # A batch is sent when the first line of the next one is there.
            feeding = threading.Thread(target=feed, args=[writing])
            feeding.start()
            screen.shows(r"500/\?")
            screen.type(CTRL_C)
            assert screen.wait() == 1
            feeding.join()
        assert "500 tasks are stored; go on with --skip 500" in screen.text
        assert "duly: interrupted" in screen.text
        assert "Traceback" not in screen.text


def feed(writing: TextIO) -> None:
    writing.write(TASK * 501)
    writing.flush()


def test_a_person_is_asked_before_many_are_cancelled(environ: dict[str, str]) -> None:
    """One wrong filter, and the work of a week is gone without a question."""
    for _ in range(2):
        duly(environ, "tasks", "submit", "doomed", "--delay", "1h")
    with terminal("tasks", "cancel", "--type", "doomed", environ=environ) as screen:
        screen.shows(r"cancel 2 tasks\? \[y/N\]")
        screen.type("n\r")
        assert screen.wait() == 1
        assert "duly: not confirmed, nothing was changed" in screen.text
        assert "interrupted" not in screen.text
    with terminal("tasks", "cancel", "--type", "doomed", environ=environ) as screen:
        screen.shows(r"cancel 2 tasks\? \[y/N\]")
        screen.type("y\r")
        assert screen.wait() == 0
        assert "2 cancelled, 0 running" in screen.text


def test_a_reader_who_has_seen_enough_is_no_error(environ: dict[str, str]) -> None:
    """`duly tasks list | head -1` is typed every day."""
    command = f"{sys.executable} -m duly tasks list --limit 100000 --json | head -c 1"
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=PROJECT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == "{"
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
