"""Whether a payload is what its task type takes, judged here as the server judges it.

A schema that could hold this program up, or fill its memory, is run in a process of its own.
"""

import atexit
import os
import threading

import msgspec

from duly.domain.limits import PAYLOAD_BYTES_MAX, Problem
from duly.validation.process import CheckProcess
from duly.validation.schema import PayloadSchema, read_schema


class SharedProcess:
    """One for all threads of this program. A fork of it does not ask its parent's."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)
        atexit.register(self.close)

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.process = CheckProcess()

    def problem(self, schema: str, payload: bytes) -> Problem | None:
        with self.lock:
            checked = self.process.check(schema, [payload])
        (found,) = checked.problems(1)
        return found

    def close(self) -> None:
        self.process.close()


SHARED = SharedProcess()


def payload_problem(text: str, payload: bytes) -> Problem | PayloadSchema | None:
    """What is wrong first; the schema if only `costly_problem` can tell, which blocks for long."""
    # One that is too long is refused for that, and nothing is run on it.
    if len(payload) > PAYLOAD_BYTES_MAX:
        return None
    return read_schema(text).judge(msgspec.Raw(payload))


def costly_problem(schema: PayloadSchema, payload: bytes) -> Problem | None:
    return SHARED.problem(schema.text, payload)
