"""The system user of the embedded server: ours, or for root an unprivileged one. Starts nothing."""

import contextlib
import os
import pwd
import sys
from dataclasses import dataclass
from pathlib import Path

from duly.domain.errors import EmbeddedServerFailed
from duly.store import drop_privileges

# Users that root switches to for the server; the first that exists.
UNPRIVILEGED_USERS = ("duly", "postgres", "nobody")
CAP_SETPCAP = 8


@dataclass(frozen=True)
class ServerUser:
    """The user that the server runs as. PostgreSQL refuses root, so root switches to another
    user."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    @classmethod
    def choose(cls, data_dir: Path, *others: Path) -> "ServerUser":
        """`others` are what the server must reach besides its data."""
        if os.geteuid() != 0:
            return cls()
        user = unprivileged_user(data_dir)
        closed = first_closed([data_dir, *others], user.pw_uid, user.pw_gid)
        if closed is not None and not can_grant_passage():
            problem = f"runs as user {user.pw_name}, who may not enter {closed}; put it elsewhere"
            problem += " (DULY_DATA_DIR for the data), or allow this process CAP_DAC_READ_SEARCH"
            raise EmbeddedServerFailed(data_dir=data_dir, problem=f"{problem} and CAP_SETPCAP")
        # A folder under /root or a private temporary one: the server may pass through it
        # (one capability), instead of us opening it to everybody.
        mode = "plain" if closed is None else "pass"
        launcher = [sys.executable, "-I", "-S", drop_privileges.__file__]
        prefix = (*launcher, str(user.pw_uid), str(user.pw_gid), mode)
        return cls(user.pw_uid, user.pw_gid, prefix)

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def unprivileged_user(data_dir: Path) -> pwd.struct_passwd:
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    names = ", ".join(UNPRIVILEGED_USERS)
    problem = f"may not run as root, and none of the users {names} exists; add one of them"
    raise EmbeddedServerFailed(data_dir=data_dir, problem=problem)


def first_closed(paths: list[Path], uid: int, gid: int) -> Path | None:
    """The outermost folder on the way to one of them that the user may not enter."""
    for path in paths:
        # A symbolic link can lead into a private folder, and can itself lie in one.
        for way in (path.absolute(), path.resolve()):
            for folder in (*reversed(way.parents), way):
                if not may_enter(folder, uid, gid):
                    return folder
    return None


def may_enter(folder: Path, uid: int, gid: int) -> bool:
    facts = folder.stat()
    bits = 0o100 if facts.st_uid == uid else 0o010 if facts.st_gid == gid else 0o001
    return bool(facts.st_mode & bits)


def can_grant_passage() -> bool:
    """Root of a container often lacks a capability."""
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("CapEff:")[2].split()[0], 16)
    needed = 1 << drop_privileges.CAP_DAC_READ_SEARCH | 1 << CAP_SETPCAP
    return effective & needed == needed
