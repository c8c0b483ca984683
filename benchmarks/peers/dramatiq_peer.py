"""dramatiq with Redis: threads in one process; it acknowledges after the task, by design."""

import threading
import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.contract import Payload, note_start, read_order, run_blocking

ORDER = read_order()
# Eight threads are its command's default for each process; one process for each consumer here.
THREADS = 8
# The command adds Prometheus to the defaults, which nobody reads here.
broker = RedisBroker(url=ORDER.url)
dramatiq.set_broker(broker)


def noop(**_payload: object) -> None:
    """Nothing: what is left is the queue's own cost."""


def timed(at: float, **_payload: object) -> None:
    note_start(at)


ACTORS: dict[str, Any] = {
    "noop": dramatiq.actor(noop, actor_name="noop"),
    "timed": dramatiq.actor(timed, actor_name="timed"),
}


class DramatiqPeer:
    def setup(self) -> None:
        """Redis needs none."""

    def connect(self, callers: int) -> None:
        """Connections are pooled by the client."""

    def submit_one(self, kind: str, payload: Payload) -> None:
        ACTORS[kind].send(**payload)

    def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        """It has no bulk call: sends from many threads are its fastest way."""
        for payload in payloads:
            if run_at:
                delay_ms = max(0, int((run_at - time.time()) * 1000))
                ACTORS[kind].send_with_options(kwargs=payload, delay=delay_ms)
            else:
                ACTORS[kind].send(**payload)

    def consume(self, _processes: int) -> None:
        dramatiq.Worker(broker, worker_threads=THREADS).start()
        threading.Event().wait()


if __name__ == "__main__":
    run_blocking(DramatiqPeer, ORDER)
