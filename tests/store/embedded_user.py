"""A process that uses an embedded server: `python -m tests.store.embedded_user FOLDER [UID]`.

It says one JSON line when attached, waits for a line on its input, leaves, and says so.
"""

import json
import os
import sys
from pathlib import Path

from duly.domain.errors import DulyError
from duly.environment import system_environment
from duly.store.embedded import EmbeddedPostgres


def become(uid: int) -> None:
    """From root to an ordinary user, for good; after the imports, as our Python may be root's."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main() -> None:
    if len(sys.argv) > 2:
        become(int(sys.argv[2]))
    embedded = EmbeddedPostgres(Path(sys.argv[1]), system_environment())
    try:
        server = embedded.attach()
    except DulyError as error:
        say({"error": str(error), "kind": type(error).__name__})
        return
    say({"pid": server.pid, "url": server.url("postgres"), "uid": os.geteuid()})
    sys.stdin.readline()
    embedded.leave()
    say({"left": True})


def say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
