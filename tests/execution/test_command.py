"""Programs that notifications run: what they get, and how they end."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from duly.domain.addresses import OutboundRules
from duly.domain.notifications import COMMAND_URL
from duly.domain.states import Outcome
from duly.domain.task import Policy
from duly.environment import Environment
from duly.execution.command import CommandRunner
from duly.execution.mail import Mailer
from duly.execution.targets import Targets
from duly.store.lease import Lease
from tests.execution.conftest import Senders, lease_of

KEY = "notification ops 0011223344556677"


def asked(payload: str = '{"text":"one"}', timeout_s: float = 20.0, **fields: Any) -> Lease:
    fields.setdefault("execution_key", KEY)
    return lease_of(COMMAND_URL, Policy(timeout_s=timeout_s), payload, **fields)


def runner(code: str, *arguments: str) -> CommandRunner:
    return CommandRunner([sys.executable, "-c", code, *arguments])


async def test_a_command_gets_the_message_and_its_own_arguments(tmp_path: Path) -> None:
    """A message in the arguments would be in every process list."""
    told = tmp_path / "told"
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    result = await runner(code, str(told), "$(id); x")(asked('{"text":"`id`"}'))
    assert result.outcome is Outcome.COMPLETED
    assert told.read_text() == '{"text":"`id`"}$(id); x'


async def test_a_command_does_not_see_the_servers_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of a server has the password of its database."""
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://u:secret@h/d")
    told = tmp_path / "told"
    code = "import os, sys; open(sys.argv[1], 'w').write(repr(dict(os.environ)))"
    await runner(code, str(told))(asked())
    assert "secret" not in told.read_text()


async def test_a_command_that_fails_is_tried_again_and_its_words_stay_here() -> None:
    """What it prints may be the operator's secret, and the task is its tenant's."""
    result = await runner("import sys; sys.exit('password: x')")(asked())
    assert (result.outcome, result.error) == (Outcome.FAILED, "the command ended with status 1")
    result = await CommandRunner(["/nowhere/at-all"])(asked())
    assert (result.outcome, result.error) == (Outcome.FAILED, "the command cannot be run")
    result = await CommandRunner([])(asked())
    assert result.outcome is Outcome.FAILED


async def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    """One left behind for each message fills the machine."""
    child = tmp_path / "child"
    code = (
        "import subprocess, sys, time;"
        "held = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "open(sys.argv[1], 'w').write(str(held.pid)); time.sleep(600)"
    )
    result = await runner(code, str(child))(asked(timeout_s=3))
    assert (result.outcome, result.error_kind) == (Outcome.FAILED, "timeout")
    pid = int(child.read_text())
    for _ in range(100):
        if not is_running(pid):
            break
        await asyncio.sleep(0.05)
    assert not is_running(pid)


async def test_output_without_end_is_not_kept() -> None:
    """A gigabyte of output would be a gigabyte of memory."""
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.exit(3)"
    result = await runner(code)(asked())
    assert result.error == "the command ended with status 3"


async def test_only_notifications_run_commands_and_send_mail(
    senders: Senders, tmp_path: Path
) -> None:
    """A task stored past the API, with a target of its submitter's, would run the program."""
    told = tmp_path / "told"
    command = runner("import sys; open(sys.argv[1], 'w').write('ran')", str(told))
    webhooks = senders.open(OutboundRules(allow_private=True))
    targets = Targets(webhooks, Mailer(Environment(), None), command)
    for key in (None, "notification-ops", "Notification ops"):
        result = await targets(asked(execution_key=key))
        assert (result.outcome, result.error_kind) == (Outcome.REJECTED, "address_refused")
        result = await targets(lease_of("mailto:a@example.com", execution_key=key))
        assert result.outcome is Outcome.REJECTED
    assert not told.exists()
    assert (await targets(asked())).outcome is Outcome.COMPLETED
    assert told.read_text() == "ran"
    result = await targets(lease_of("file:///etc/passwd", execution_key=KEY))
    assert result.outcome is Outcome.REJECTED


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that was killed and not yet waited for by its new parent counts as gone.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
