"""Server discovery: explicit, from the environment, or the `duly up` of this machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from duly.client.errors import ServerNotFound
from duly.domain.folders import default_data_folder

# Written by `duly up`, readable by its user alone.
LOCAL_FILE = "client.json"


class Server(NamedTuple):
    url: str
    api_key: str


class Configured:
    """What the settings of a framework say: after arguments and environment, before the local
    duly. Either can be missing."""

    url: str | None = None
    api_key: str | None = None


class InlineServer(Protocol):
    """What stands in for a server in inline mode."""

    def submit(self, call: Any) -> bytes: ...

    async def asubmit(self, call: Any) -> bytes: ...

    def answer(self, method: str, path: str) -> bytes: ...


class Current:
    """The inline mode that this process is in; then its clients need no server."""

    inline: InlineServer | None = None


class LocalServer(msgspec.Struct, frozen=True):
    """`api_key` is empty where this duly found keys that were made elsewhere. `keys` remembers the
    first key of each database that a duly of this folder has used, the newest last."""

    url: str
    api_key: str
    keys: dict[str, str] = {}


def find_server(
    url: str | None = None, api_key: str | None = None, environ: Mapping[str, str] = os.environ
) -> Server:
    """What is given wins, then DULY_URL and DULY_API_KEY, then a framework's settings, then the
    local `duly up`."""
    if Current.inline is not None:
        return Server("inline:", "")
    url = url or environ.get("DULY_URL") or Configured.url
    api_key = api_key or environ.get("DULY_API_KEY")
    if url and not url.startswith(("http://", "https://")):
        raise ServerNotFound(problem=f"{url!r} is no address such as http://127.0.0.1:3859")
    # A key goes to the server that it was written beside, and to no other.
    if not api_key and url == Configured.url:
        api_key = Configured.api_key
    if url and api_key:
        return Server(url.rstrip("/"), api_key)
    path = local_path(environ)
    local = read_local(path)
    if url and (local is None or url.rstrip("/") != local.url):
        problem = f"the key for {url} is missing; set DULY_API_KEY"
        raise ServerNotFound(problem=problem)
    if local is None:
        missing = "DULY_URL is" if api_key else "DULY_URL and DULY_API_KEY are"
        problem = f"{missing} not set, and no `duly up` has left its address in {path}"
        raise ServerNotFound(problem=problem)
    if not (api_key or local.api_key):
        problem = f"one is at {local.url}, but its key is missing in {path}; set DULY_API_KEY"
        raise ServerNotFound(problem=problem)
    return Server(local.url, api_key or local.api_key)


def local_path(environ: Mapping[str, str]) -> Path:
    named = environ.get("DULY_DATA_DIR")
    return (Path(named) if named else default_data_folder(environ)) / LOCAL_FILE


def read_local(path: Path) -> LocalServer | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LocalServer)
    except (OSError, msgspec.DecodeError):
        return None
