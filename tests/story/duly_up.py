"""A real `duly up` for stories: started on a free port, asked over HTTP, always ended."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.processes import Child, child

REQUEST_TIMEOUT_S = 10.0


class RunningDuly:
    def __init__(self, process: Child) -> None:
        self.process = process
        self.ready: dict[str, Any] = process.answer()
        self.url: str = self.ready["url"]

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=REQUEST_TIMEOUT_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def checks(self) -> dict[str, str]:
        checks: dict[str, str] = msgspec.json.decode(self.get("/readyz")[1])["checks"]
        return checks


@contextlib.contextmanager
def duly_up(*flags: str, environ: Mapping[str, str] | None = None) -> Iterator[RunningDuly]:
    """Ready when this yields."""
    with child("-m", "duly", "up", "--json", "--port", "0", *flags, environ=environ) as process:
        yield RunningDuly(process)


@contextlib.contextmanager
def embedded_duly(data_dir: Path) -> Iterator[RunningDuly]:
    with duly_up("--data-dir", str(data_dir)) as running:
        yield running


def announcement(process: Child) -> str:
    """What a person reads of a start."""
    lines = []
    while not (line := process.line()).startswith("Ctrl-C"):
        lines.append(line)
    return "\n".join(lines)
