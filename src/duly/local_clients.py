"""The file by which programs of the same user find a `duly up`, and the lock that admits one
`duly up` to a data directory."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from duly.client.server import LOCAL_FILE, LocalServer, read_local
from duly.domain.errors import AlreadyRunning, DataDirectoryUnusable
from duly.settings import Settings
from duly.store.bootstrap import DatabaseTarget
from duly.store.database import address_of
from duly.store.embedded import open_lock, prepare_folder
from duly.telemetry import get_logger

log = get_logger("duly.local_clients")

# Held by a `duly up` for as long as it runs.
UP_LOCK = "up.lock"
KEYS_REMEMBERED_MAX = 20


class LocalClients:
    """The file by which programs of the same user find this duly, and the key it once made."""

    def __init__(self, path: Path | None, *, is_cluster: bool = False) -> None:
        self.path = path
        self.is_cluster = is_cluster

    def write(self, url: str, first_key: str | None, target: DatabaseTarget) -> str | None:
        """The key of local clients, if it is known. A process of a cluster leaves no address: its
        clients are mostly elsewhere."""
        if self.is_cluster:
            return None
        if self.path is None:
            log.warning("clients of this user find another duly or none: set DULY_URL", url=url)
            return None
        known = read_local(self.path)
        keys = {} if known is None else dict(known.keys)
        database = "embedded" if target.embedded is not None else address_of(target.engine_url)
        # A file without `keys` is from before they were remembered, and has one key.
        oldest = known.api_key if known is not None and not keys else ""
        api_key = first_key or keys.get(database, oldest)
        if api_key:
            keys.pop(database, None)
            keys[database] = api_key
        newest = dict(list(keys.items())[-KEYS_REMEMBERED_MAX:])
        # Unreadable for others before anything is in it, and replaced whole.
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_bytes(msgspec.json.encode(LocalServer(url, api_key, newest)))
        fresh.rename(self.path)
        return api_key or None


@contextlib.contextmanager
def local_clients(settings: Settings, *, is_alone: bool) -> Iterator[LocalClients]:
    """The lock lasts as long as this process. A second one on the same data is refused: each keeps
    its ready queue in memory, where the workers of the other do not look. One that shares only the
    folder, beside a database of its own, leaves the first its clients."""
    if not is_alone:
        yield LocalClients(None, is_cluster=True)
        return
    data_dir = Path(settings.data_dir).absolute()
    try:
        prepare_folder(data_dir)
    except DataDirectoryUnusable:
        if not settings.database_url:
            raise
        yield LocalClients(None)
        return
    with contextlib.ExitStack() as stack:
        lock = open_lock(data_dir / UP_LOCK)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not settings.database_url:
                known = read_local(data_dir / LOCAL_FILE)
                url = "an unknown address" if known is None else known.url
                raise AlreadyRunning(data_dir=data_dir, url=url) from None
            yield LocalClients(None)
        else:
            yield LocalClients(data_dir / LOCAL_FILE)
