"""celery with Redis: a prefork worker that acknowledges late, so that a crash loses nothing."""

from datetime import UTC, datetime
from typing import Any

from celery import Celery

from benchmarks.peers.contract import Payload, note_start, read_order, run_blocking

ORDER = read_order()
app = Celery("peers", broker=ORDER.url)
app.conf.update(
    # Without these two a task that a killed worker had taken is gone.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    # Its optimizing guide: a large prefetch for many short tasks, and no results if nobody asks.
    worker_prefetch_multiplier=128,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=64,
    worker_hijack_root_logger=False,
    enable_utc=True,
)


def noop(**_payload: object) -> None:
    """Nothing: what is left is the queue's own cost."""


def timed(at: float, **_payload: object) -> None:
    note_start(at)


TASKS: dict[str, Any] = {
    "noop": app.task(name="noop")(noop),
    "timed": app.task(name="timed")(timed),
}


class CeleryPeer:
    def setup(self) -> None:
        """Redis needs none."""

    def connect(self, callers: int) -> None:
        """Connections are pooled by the application."""

    def submit_one(self, kind: str, payload: Payload) -> None:
        TASKS[kind].apply_async(kwargs=payload)

    def submit_many(self, kind: str, payloads: list[Payload], run_at: float) -> None:
        """It has no bulk call: producers that are kept, from many threads, are its fastest way."""
        due = datetime.fromtimestamp(run_at, UTC) if run_at else None
        with app.producer_pool.acquire(block=True) as producer:
            for payload in payloads:
                TASKS[kind].apply_async(kwargs=payload, eta=due, producer=producer)

    def consume(self, _processes: int) -> None:
        """One worker process under one parent; without the chatter that a lone node does not need
        (its guide names these flags)."""
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.worker_main(["worker", "--pool=prefork", "--concurrency=1", "-l", "ERROR", *quiet])


if __name__ == "__main__":
    run_blocking(CeleryPeer, ORDER)
