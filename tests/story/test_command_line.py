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

from duly import __version__
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
        screen.shows(r"waiting: nothing")
        duly(environ, "tasks", "submit", "watched", "--priority", "1", "--delay", "1h")
        screen.shows(r"default +low +0 +1 ")
        screen.shows(r"the last \d+ looks, one each 200ms")
        screen.shows(r"in flight +0 +·+")
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
        assert "5,000/5,000" in screen.text
        assert "5,000 tasks stored" in screen.text


def test_what_takes_over_a_second_says_that_it_is_waited_for(environ: dict[str, str]) -> None:
    """A cursor that only blinks is taken for a program that hangs."""
    task = json.loads(duly(environ, "tasks", "submit", "later", "--delay", "1h", "--json"))["id"]
    with terminal("tasks", "wait", task, "--timeout", "2s", environ=environ, columns=80) as screen:
        screen.shows(rf"waiting for task {task}  1s")
        assert screen.wait() == 1
        last = screen.raw.rpartition("\x1b[K")[2]
        assert last.startswith(f"duly: task {task} has not ended"), "the notice is gone"


def test_a_start_shows_that_it_starts_and_takes_it_away_when_it_is_ready(tmp_path: Path) -> None:
    """The first start makes a database for seconds, and an empty terminal looks like a hang."""
    given = {"DULY_DATA_DIR": str(tmp_path / "data"), "DULY_DATABASE_URL": ""}
    with terminal("up", "--port", "0", environ=given, columns=80) as screen:
        screen.shows(r"starting PostgreSQL and duly  \d+s")
        screen.shows(r"Ctrl-C stops it\.")
        ready = screen.raw.index("is ready")
        assert screen.raw[:ready].rpartition("\x1b[K")[2] == f"duly {__version__} "
        screen.type(CTRL_C)
        assert screen.wait() == 0, screen.text


def test_ctrl_c_in_a_bulk_submit_says_how_to_go_on(environ: dict[str, str], tmp_path: Path) -> None:
    """An interrupted bulk submit must say what is stored and what is not."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with terminal("tasks", "submit", "--from", str(pipe), environ=environ) as screen:
        with pipe.open("w") as writing:
            # A batch is sent when the first line of the next one is there.
            feeding = threading.Thread(target=feed, args=[writing])
            feeding.start()
            screen.shows("500 done")
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


# To be copied whole.
CURSOR = "there is more to look at: --cursor "
NAME = "a-rather-long-name-that-a-person-would-give"
LISTS = (
    ("tasks", "list"),
    ("tasks", "show", "ID"),
    ("tasks", "explain", "ID"),
    ("schedules", "list"),
    ("schedules", "show", NAME),
    ("dead-letters", "list"),
    ("types", "list"),
    ("tenants", "list"),
    ("tenants", "show", "default"),
    ("keys", "list"),
    ("pauses", "list"),
    ("nodes", "list"),
    ("nodes", "slots"),
    ("workers", "list"),
    ("breakers", "list"),
    ("forecast",),
    ("status",),
    ("stats",),
    ("audit",),
    ("webhook-secrets", "list"),
    ("notifications", "list"),
    ("workflows", "list"),
    ("bulk", "list"),
    ("config",),
)


def test_every_table_fits_eighty_columns(environ: dict[str, str]) -> None:
    """A line that wraps takes the columns of the whole table with it."""
    task = json.loads(duly(environ, "tasks", "submit", NAME, "--pool", NAME, "--json"))
    duly(environ, "schedules", "create", NAME, NAME, "--every", "1h")
    duly(environ, "types", "set", NAME, "--defaults", '{"priority": 3, "timeout_s": 20}')
    duly(environ, "pauses", "pause", "type", NAME, "--reason", "the provider is down " * 6)
    try:
        for command in LISTS:
            arguments = [task["id"] if each == "ID" else each for each in command]
            with terminal(*arguments, environ=environ, columns=80) as screen:
                assert screen.wait() == 0, command
                lines = screen.text.replace("\r", "").split("\n")
                wide = [line for line in lines if len(line) > 80 and CURSOR not in line]
                assert not wide, f"{' '.join(command)}: {wide[0]}"
                assert "Traceback" not in screen.text
    finally:
        duly(environ, "pauses", "resume", "type", NAME)


def test_a_table_is_whole_with_wide_and_without_colours_when_asked(
    environ: dict[str, str],
) -> None:
    """What was left out must be one flag away, and colours go where a person turned them off."""
    duly(environ, "tasks", "submit", NAME, "--delay", "1h")
    with terminal("tasks", "list", "--type", NAME, environ=environ, columns=80) as screen:
        assert screen.wait() == 0
        assert "left out: " in screen.text
        assert "\x1b[1m" in screen.raw
    uncoloured = {**environ, "NO_COLOR": "1"}
    with terminal(
        "tasks", "list", "--wide", "--type", NAME, environ=uncoloured, columns=80
    ) as screen:
        assert screen.wait() == 0
        assert NAME in screen.text
        assert "left out" not in screen.text
        assert "\x1b" not in screen.raw
