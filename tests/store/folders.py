"""Folders for embedded servers in tests, and looking at who works in them."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from duly.store.embedded import processes_in
from tests.processes import kill_all


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A short path that any user may reach, unlike pytest's own; nothing runs in it afterwards."""
    root = Path(tempfile.mkdtemp(prefix="duly-test-"))
    root.chmod(0o711)
    try:
        yield root / "data"
    finally:
        kill_all(everyone_in(root))
        shutil.rmtree(root)


def everyone_in(root: Path) -> set[int]:
    """PostgreSQL's processes in any cluster below a folder."""
    clusters = [
        version.parent for version in root.rglob("PG_VERSION") if "base" not in version.parts
    ]
    return {pid for cluster in clusters for pid in processes_in(cluster)}


def is_root() -> bool:
    return os.geteuid() == 0
