"""celery's canvas on Redis: chains and chords, whose results are kept there as chords need it."""

from typing import Any

from celery import Celery, chain, chord

from benchmarks.peers.contract import read_order, run_blocking_flows, wait_for_go

ORDER = read_order()
RESULT_S = 600
app = Celery("flows", broker=ORDER.url, backend=ORDER.url)
app.conf.update(
    # As in celery_peer.py, but for results.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=128,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=64,
    worker_hijack_root_logger=False,
)


def node() -> None:
    """Nothing: what is left is the way from node to node."""


NODE: Any = app.task(name="node")(node)


class CeleryFlows:
    def connect(self, callers: int) -> None:
        """Connections are pooled by the application."""

    def run_flow(self, shape: str, width: int) -> None:
        if shape == "chain":
            canvas = chain(*(NODE.si() for _ in range(width)))
        else:
            canvas = chain(NODE.si(), chord([NODE.si() for _ in range(width)], NODE.si()))
        canvas.apply_async().get(timeout=RESULT_S)


def consume() -> None:
    wait_for_go()
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--pool=prefork", "--concurrency=1", "-l", "ERROR", *quiet])


if __name__ == "__main__":
    if ORDER.step == "consume":
        consume()
    elif ORDER.step != "setup":
        run_blocking_flows(CeleryFlows, ORDER)
