"""The command line in this process, against a front door on a real port and a real database."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

from duly.cli.main import run
from duly.environment import Environment, SystemClock
from duly.store.database import Database
from tests.api.conftest import Front, open_front


@pytest.fixture
async def front(database: Database) -> AsyncIterator[Front]:
    environment = Environment(clock=SystemClock(), random=Random(7))
    async with open_front(database, environment) as opened:
        yield opened


class CommandLine:
    """`duly ...` as its user sees it: what it answers, what it says beside, how it exits."""

    def __init__(
        self, front: Front, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.front = front
        self.capsys = capsys
        self.patch = patch
        self.said_on_errors = ""
        self.use_key(front.admin)

    def use_key(self, key: str) -> None:
        self.patch.setenv("DULY_URL", self.front.url)
        self.patch.setenv("DULY_API_KEY", key)

    async def __call__(self, *arguments: object, code: int = 0, stdin: str = "") -> str:
        """What it wrote on standard output."""
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self.capsys.readouterr()
        # In a thread: the server that it asks lives on this loop.
        ended = await asyncio.to_thread(run, [str(each) for each in arguments])
        out, self.said_on_errors = self.capsys.readouterr()
        assert ended == code, self.said_on_errors
        assert "Traceback" not in self.said_on_errors
        return out

    async def json(self, *arguments: object, code: int = 0, stdin: str = "") -> Any:
        """The one document that it wrote."""
        return msgspec.json.decode(await self(*arguments, "--json", code=code, stdin=stdin))

    async def problem(self, *arguments: object, code: int = 1) -> Any:
        """The problem it ends with: alone on standard error, and nothing on standard output."""
        assert await self(*arguments, "--json", code=code) == ""
        return msgspec.json.decode(self.said_on_errors)


@pytest.fixture
def duly(
    front: Front, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """As the admin of the installation, unless it is told to use another key."""
    return CommandLine(front, capsys, monkeypatch)
