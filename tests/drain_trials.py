"""`python -m tests.drain_trials [--trials 100] [--postgres up|hung|down]`: SIGTERM to real workers.

Workers in the middle of handlers of every kind, and of none, are told to stop; each must be gone
within its limit, also when the PostgreSQL behind their server hangs or was killed.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

from duly import Client
from duly.store.embedded import processes_in
from tests.processes import Child, child, eventually, kill_all
from tests.story.duly_up import RunningDuly, embedded_duly

DRAIN_S = 3.0
# What a worker may take: its drain, what it allows itself after it (1.5 s), and a moment.
LIMIT_S = DRAIN_S + 2.0
# Beyond the limit a trial has failed already; how late it was is worth knowing.
GIVE_UP_S = 60.0
# None: a worker that only waits for tasks.
KINDS = ("wait", "block", "sleep.in.thread", "sleep.in.executor", None)
UP, HUNG, DOWN = "up", "hung", "down"


@dataclass(frozen=True)
class Trial:
    kind: str | None
    took_s: float
    # What became of its task; None where the database could not be told.
    outcomes: list[str] | None

    def is_good_within(self, slack_s: float = 0.0) -> bool:
        return self.took_s <= LIMIT_S + slack_s and self.outcomes in (None, ["released"])


class Stage:
    """One duly on its own PostgreSQL, and rounds of workers beside it."""

    def __init__(self, duly: RunningDuly, cluster: Path) -> None:
        self.duly = duly
        self.cluster = cluster
        self.rounds = 0

    def run_round(self, postgres: str) -> list[Trial]:
        """One worker of each kind, all told to stop at once."""
        self.rounds += 1
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(Client(self.duly.url, self.duly.ready["api_key"]))
            workers = [stack.enter_context(self.worker(number)) for number in range(len(KINDS))]
            tasks = [
                client.submit(kind, pool=self.pool(number)).id if kind else None
                for number, kind in enumerate(KINDS)
            ]
            for worker, task_id in zip(workers, tasks, strict=True):
                at_work(worker, task_id)
            with self.broken(postgres):
                took = stop_all(workers)
            told = [
                [attempt.outcome for attempt in client.attempts(task_id)]
                if postgres == UP and task_id
                else None
                for task_id in tasks
            ]
        return [Trial(*facts) for facts in zip(KINDS, took, told, strict=True)]

    def pool(self, number: int) -> str:
        return f"round-{self.rounds}-{number}"

    def worker(self, number: int) -> contextlib.AbstractContextManager[Child]:
        options = {"url": self.duly.url, "pools": [self.pool(number)], "drain_s": DRAIN_S}
        environ = {"DULY_API_KEY": self.duly.ready["api_key"]}
        return child("-m", "tests.client.worker_process", json.dumps(options), environ=environ)

    @contextlib.contextmanager
    def broken(self, postgres: str) -> Iterator[None]:
        """The database hangs, or is killed and started again by its duly; healed afterwards."""
        pids = processes_in(self.cluster)
        if postgres == HUNG:
            send(pids, signal.SIGSTOP)
        elif postgres == DOWN:
            kill_all(pids)
        try:
            yield
        finally:
            if postgres == HUNG:
                send(pids, signal.SIGCONT)
            eventually(self.duly.is_ready, "duly is ready again")


def at_work(worker: Child, task_id: str | None) -> None:
    """In its handler, or waiting for a task."""
    if task_id is not None:
        assert worker.answer()["event"] == "started"
    else:
        eventually(lambda: has_heart(worker), "it has come to its first poll")


def has_heart(worker: Child) -> bool:
    """An idle worker says nothing before its first poll ends; but its heartbeat is a thread."""
    return len(list(Path(f"/proc/{worker.pid}/task").iterdir())) > 1


def send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop_all(workers: list[Child]) -> list[float]:
    """Seconds from the signal to the end of each."""
    began = time.monotonic()
    for worker in workers:
        worker.signal(signal.SIGTERM)
    ended: dict[int, float] = {}
    while len(ended) < len(workers) and time.monotonic() - began < GIVE_UP_S:
        for number, worker in enumerate(workers):
            if number not in ended:
                with contextlib.suppress(TimeoutExpired):
                    worker.process.wait(0.005)
                    ended[number] = time.monotonic() - began
    return [ended.get(number, GIVE_UP_S) for number in range(len(workers))]


@contextlib.contextmanager
def open_stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="duly-drain-") as folder:
        data_dir = Path(folder) / "data"
        with embedded_duly(data_dir) as duly:
            yield Stage(duly, data_dir / "postgres")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.drain_trials", description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--postgres", choices=(UP, HUNG, DOWN), default=UP)
    arguments = parser.parse_args()
    trials: list[Trial] = []
    with open_stage() as stage:
        while len(trials) < arguments.trials:
            trials += stage.run_round(arguments.postgres)
    bad = [trial for trial in trials if not trial.is_good_within()]
    slowest_s = max(trial.took_s for trial in trials)
    good = len(trials) - len(bad)
    print(f"{good} of {len(trials)} within {LIMIT_S:g} s, slowest {slowest_s:.2f} s")
    for trial in bad:
        print(trial)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
