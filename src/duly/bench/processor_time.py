"""Processor time that work costs: of this process, and of its PostgreSQL.

A rate depends on what else the machine is doing; this depends on it far less, so that a change can
be judged on a machine that is not idle.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessTimes(NamedTuple):
    """Of one process, from /proc: whose child it is, and its processor time in ticks."""

    parent: int
    own: int
    # Of children that have ended, and theirs.
    ended: int

    @classmethod
    def parse(cls, stat: str) -> "ProcessTimes":
        # After the command's name, which may hold spaces: state, parent, ..., and as the 12th to
        # 15th utime, stime, cutime, cstime.
        state_and_on = stat.rpartition(")")[2].split()
        utime, stime, cutime, cstime = map(int, state_and_on[11:15])
        return cls(int(state_and_on[1]), utime + stime, cutime + cstime)


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
    for process, times in processes():
        if process == server:
            ticks += times.own + times.ended
        elif times.parent == server:
            ticks += times.own
    return ticks / TICKS_PER_S


def processes() -> Iterator[tuple[int, ProcessTimes]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # One that ends while we look is not there to be counted.
            with contextlib.suppress(OSError):
                yield int(folder.name), ProcessTimes.parse((folder / "stat").read_text())
