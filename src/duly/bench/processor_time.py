"""What work costs in processor time: of this process, and of its PostgreSQL.

A rate depends on what else the machine is doing; this depends on it far less, so that a change can
be judged on a machine that is not idle.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of the fields after the command's name, from zero: whose child it is; user, system, and the same
# of children that have ended.
PARENT, OWN, ENDED = 1, slice(11, 13), slice(11, 15)


class Costs:
    """Counted from the moment it is made."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.began = (own_s(), server_s(server))

    def figures(self, count: int) -> dict[str, float]:
        """For each of so many tasks."""
        python_s, postgres_s = own_s() - self.began[0], server_s(self.server) - self.began[1]
        return {
            "python_us_per_task": python_s / max(count, 1) * 1e6,
            "postgresql_us_per_task": postgres_s / max(count, 1) * 1e6,
        }


def own_s() -> float:
    times = os.times()
    return times.user + times.system


def server_s(server: int) -> float:
    """The postmaster with all that it ever started."""
    ticks = 0
    for process, fields in processes():
        if process == server:
            ticks += sum(int(field) for field in fields[ENDED])
        elif int(fields[PARENT]) == server:
            ticks += sum(int(field) for field in fields[OWN])
    return ticks / TICKS_PER_S


def processes() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # One that ends while we look is not there to be counted.
            with contextlib.suppress(OSError):
                text = (folder / "stat").read_text()
                yield int(folder.name), text.rpartition(")")[2].split()
