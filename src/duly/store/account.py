"""Whom the embedded server runs as: ourselves, or for root somebody unprivileged. Starts none."""

import contextlib
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from duly.domain.errors import EmbeddedServerFailed

# Whom root becomes for the server, the first that exists.
UNPRIVILEGED_USERS = ("duly", "postgres", "nobody")


@dataclass(frozen=True)
class ServerAccount:
    """Whom the server runs as. PostgreSQL refuses root, so root hands it to somebody else."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()

    @classmethod
    def choose(cls, needed: list[Path]) -> "ServerAccount":
        if os.geteuid() != 0:
            return cls()
        entry = unprivileged_user()
        prefix = ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        if not all(is_reachable(path, entry.pw_uid, entry.pw_gid) for path in needed):
            # A folder under /root or a private temporary one: the server may pass through it
            # (one capability), instead of us opening it to everybody.
            prefix += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        return cls(entry.pw_uid, entry.pw_gid, tuple(prefix))

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def unprivileged_user() -> pwd.struct_passwd:
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedServerFailed(
        data_dir="", problem=f"needs one of the users {', '.join(UNPRIVILEGED_USERS)} to run as"
    )


def is_reachable(path: Path, uid: int, gid: int) -> bool:
    for folder in (path, *path.parents):
        facts = folder.stat()
        bits = 0o100 if facts.st_uid == uid else 0o010 if facts.st_gid == gid else 0o001
        if not facts.st_mode & bits:
            return False
    return True
