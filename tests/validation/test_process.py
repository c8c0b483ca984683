"""The process for costly checks: what it answers, what ends it, and that nothing is left of it."""

import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from duly.domain.errors import CheckProcessUnavailable
from duly.domain.limits import Problem
from duly.validation import process as process_module
from duly.validation.child import CALL_CPU_S_MAX, Request
from duly.validation.process import UNTOLD, CheckProcess, ProcessEnd, parts_of
from tests.processes import child, eventually, is_alive

RUNAWAY = {"pattern": "((a{0,40}){0,40}){0,40}x"}
RUN = b'"' + b"a" * 60_000 + b'"'
# Its error holds those of all options at all values: over 8 GB, if it may.
ENDLESS_ERROR = {"anyOf": [{"items": {"anyOf": [{"const": f"c{n}"} for n in range(1500)]}}]}
VALUES = msgspec.json.encode(["x"] * 15_000)
PARENT = """
import sys
from duly.validation.process import CheckProcess
process = CheckProcess()
process.check("{}", [])
print(process.child.pid, flush=True)
sys.stdin.readline()
process.check(sys.argv[1], [b'"' + b"a" * 60_000 + b'"'])
"""


@pytest.fixture
def process() -> Iterator[CheckProcess]:
    made = CheckProcess()
    yield made
    made.close()


def text(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


def pid_of(process: CheckProcess) -> int:
    assert process.child is not None
    return process.child.pid


def test_each_payload_has_its_answer_in_order(process: CheckProcess) -> None:
    """An answer that slips by one lets through what it was made to stop."""
    schema = text({"type": "integer"})
    payloads = [b"1", b'"a"'] * 500
    checked = process.check(schema, payloads)
    assert checked.found == [None, Problem("/payload", '"a" is not of type "integer"')] * 500
    assert (checked.end, checked.unsound) == (None, "")
    assert process.check(schema, [b"[]"]).found[0] is not None
    assert process.check(text({"type": "nonsense"}), [b"1"]).unsound
    assert process.check(schema, []).unsound == ""


def test_a_batch_is_one_request_until_it_is_large() -> None:
    """A thousand messages for a thousand small payloads is what a batch was made to avoid."""
    assert parts_of([]) == [[]]
    assert parts_of([b"1"] * 1000) == [[b"1"] * 1000]
    large = b"1" * 600_000
    assert parts_of([large, b"2", large, large]) == [[large, b"2"], [large], [large]]


def test_a_check_that_runs_away_is_ended_by_its_processor_time(process: CheckProcess) -> None:
    """Inside the engine of a pattern no signal handler of Python is ever run."""
    first = process.check(text({}), [b"1"])
    assert first.found == [None]
    pid = pid_of(process)
    ended = process.check(text(RUNAWAY), [b'"x"', RUN, b"1"])
    assert (ended.found, ended.end) == ([None], ProcessEnd.TIME)
    assert not is_alive(pid)
    problems = ended.problems(3)
    assert problems[1] is not None
    assert "takes too long" in problems[1].reason
    assert [problems[0], problems[2]] == [None, None]
    assert process.check(text({}), [b"1"]).found == [None]


def test_what_a_call_may_take_is_not_multiplied_by_its_payloads(process: CheckProcess) -> None:
    """A thousand payloads of nearly a second each are a quarter of an hour."""
    slow = b'"' + b"a" * 20 + b'"'
    ended = process.ask(Request(text(RUNAWAY), [slow] * 100, cpu_s=0.5))
    assert ended.end is ProcessEnd.TIME
    assert len(ended.found) < 100
    left = process.check(text(RUNAWAY), [slow])
    assert (left.end, left.cpu_s < CALL_CPU_S_MAX) == (None, True)


def test_a_check_that_fills_its_memory_ends_alone(process: CheckProcess) -> None:
    """Eight gigabytes took the whole server along."""
    ended = process.check(text(ENDLESS_ERROR), [VALUES, b"[]"])
    # That it does not fit was known before the memory was gone.
    assert (ended.found, ended.end) == ([UNTOLD], ProcessEnd.MEMORY)
    assert ended.problems(2) == [UNTOLD, None]
    assert process.check(text({}), [b"1"]).found == [None]


def test_a_process_that_ended_in_between_is_replaced(process: CheckProcess) -> None:
    """It ends by itself when it was idle or has grown, at the very moment of the next request."""
    process.check(text({}), [b"1"])
    pid = pid_of(process)
    process.child.kill()  # type: ignore[union-attr]
    eventually(lambda: not is_alive(pid), "it is gone")
    assert process.check(text({}), [b"1"]).found == [None]
    assert pid_of(process) != pid


def test_a_process_that_cannot_be_started_is_said(
    process: CheckProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema must not be blamed for a broken installation."""
    monkeypatch.setattr(process_module, "COMMAND", ("-c", "raise SystemExit(3)"))
    with pytest.raises(CheckProcessUnavailable, match="ended with 3"):
        process.check(text({}), [b"1"])


@pytest.mark.parametrize("is_busy", [False, True])
def test_nothing_is_left_when_its_user_is_killed(*, is_busy: bool) -> None:
    """A process that outlives its server computes for nobody, for ever."""
    with child("-c", PARENT, text(RUNAWAY)) as parent:
        pid = int(parent.line())
        if is_busy:
            parent.say("go")
        parent.signal(signal.SIGKILL)
        parent.wait()
        eventually(lambda: not is_alive(pid), "the process ended with its user")
