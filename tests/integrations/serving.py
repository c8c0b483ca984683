"""A user's program in a folder of its own, and its web server as a process."""

import contextlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.processes import Child, child, eventually

RUNNING = re.compile(r"Uvicorn running on (http://\S+)")
REQUEST_TIMEOUT_S = 20.0


class Site:
    def __init__(self, process: Child) -> None:
        self.process = process
        eventually(lambda: RUNNING.search(process.said_on_errors), "the server has its address")
        found = RUNNING.search(process.said_on_errors)
        assert found is not None
        self.url = found[1]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """The status and the JSON of the answer, if it has any."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                status, answer = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, answer = error.code, error.read()
        return status, msgspec.json.decode(answer) if answer else None


@contextlib.contextmanager
def served(folder: Path, target: str, environ: Mapping[str, str]) -> Iterator[Site]:
    """`uvicorn target`, from the modules in the folder."""
    command = ("-m", "uvicorn", target, "--app-dir", str(folder), "--port", "0")
    with child(*command, environ=environ) as process:
        yield Site(process)
