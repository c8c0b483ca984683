"""duly over HTTPS with a certificate of one's own: trusted when it is named, refused when not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.api.certificates import Pair
from tests.processes import PROJECT
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up

WAIT_S = 60.0
SUBMIT = """
import asyncio, duly
async def main():
    async with duly.AsyncClient() as client:
        print((await client.submit("mail.send", {"to": "a"}, delay_s=3600)).state)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def secure(server: ServerOfTheRun, pair: Pair) -> Iterator[RunningDuly]:
    with server.database() as name:
        environ = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
            "DULY_TLS_CERTIFICATE_FILE": str(pair.certificate),
            "DULY_TLS_KEY_FILE": str(pair.key),
        }
        with duly_up(environ=environ) as running:
            yield running


def run(
    running: RunningDuly, *arguments: str, trusted: Path | None
) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DULY_URL": running.url, "DULY_API_KEY": running.ready["api_key"]}
    environ.pop("SSL_CERT_FILE", None)
    if trusted is not None:
        environ["SSL_CERT_FILE"] = str(trusted)
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_command_line_trusts_the_authority_it_is_told_of(
    secure: RunningDuly, pair: Pair
) -> None:
    """Without a way to name it, people turn the check off, or send their key in the clear."""
    assert secure.url.startswith("https://")
    ended = run(secure, "-m", "duly", "tasks", "list", "--json", trusted=pair.certificate)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert msgspec.json.decode(ended.stdout)["items"] == []


def test_the_command_line_refuses_a_stranger_in_one_line(secure: RunningDuly) -> None:
    """A key sent to whoever answers is a key lost; and a page of traceback tells nobody why."""
    ended = run(secure, "-m", "duly", "tasks", "list", trusted=None)
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert "its certificate is not trusted: self" in line
    assert "SSL_CERT_FILE" in line


def test_the_client_trusts_the_authority_it_is_told_of(secure: RunningDuly, pair: Pair) -> None:
    """What works from the command line must work from the program beside it."""
    ended = run(secure, "-c", SUBMIT, trusted=pair.certificate)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "SCHEDULED\n", "")


def test_the_client_refuses_a_stranger_and_says_why(secure: RunningDuly) -> None:
    """The same refusal in both, so that the same line in the docs helps."""
    ended = run(secure, "-c", SUBMIT, trusted=None)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("duly.client.errors.Unreachable: ")
    assert "its certificate is not trusted: self" in last
    assert "SSL_CERT_FILE" in last
