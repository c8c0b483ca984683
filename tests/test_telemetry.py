"""Logs and metrics as a machine reads them."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from duly.telemetry import Metrics, configure_logs, get_logger


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    access, errors = logging.getLogger("uvicorn.access"), logging.getLogger("uvicorn.error")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    access.disabled = False
    errors.setLevel(logging.NOTSET)
    structlog.reset_defaults()


def test_off_a_terminal_each_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """A collector that meets a half-readable line drops it, or the whole file."""
    configure_logs("info", "auto")
    get_logger("duly.test").info("stopping", limit_s=3)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        get_logger("duly.test").warning("failed", exc_info=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    first, second = lines
    assert first["timestamp"].endswith("Z")
    del first["timestamp"]
    assert first == {"event": "stopping", "limit_s": 3, "level": "info", "logger": "duly.test"}
    assert "ValueError: two" in second["exception"]


def test_lines_of_libraries_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    """A warning of the driver is as much ours as our own."""
    configure_logs("info", "json")
    logging.getLogger("asyncpg").warning("lost %s", "it")
    assert json.loads(capsys.readouterr().err)["event"] == "lost it"


def test_less_severe_lines_than_asked_for_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Debug lines in production cost more than the work."""
    configure_logs("warning", "json")
    get_logger("duly.test").info("no")
    get_logger("duly.test").warning("yes")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["yes"]


def test_text_is_readable_and_not_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A person at a terminal asked for words."""
    configure_logs("info", "text")
    get_logger("duly.test").info("stopping", limit_s=3)
    line = capsys.readouterr().err
    assert "stopping" in line
    assert "limit_s=3" in line
    assert not line.startswith("{")


def test_two_applications_in_one_process_have_their_own_numbers() -> None:
    """With the global registry the second application could not even start."""
    first, second = Metrics(), Metrics()
    first.role_ticks.labels("api").inc()
    assert b'duly_role_ticks_total{role="api"} 1.0' in first.render()
    assert b'role="api"' not in second.render()
    assert b"duly_build_info{version=" in second.render()
