"""Who is measured: how each is started, where it stores tasks, how those alive are counted.

The counts are the driver's own, by SQL or Redis commands: no peer is asked whether it is done.
"""

from dataclasses import dataclass

TASK_ROWS = ("single", "drain_1", "drain_2", "latency", "herd")
FLOW_ROWS = ("chain", "fan", "diamonds")


@dataclass(frozen=True)
class PeerInfo:
    name: str
    package: str
    store: str
    program: str
    # What has not ended: for PostgreSQL a FROM and WHERE, for Redis see `services.RedisWatch`.
    live: str
    durable: str
    settings: str
    # Where there is no bulk call, many callers at once share each sync of the disk.
    bulk_callers: int = 2
    rows: tuple[str, ...] = TASK_ROWS
    # Of workflows: whether these run in a process of their own.
    has_flow_worker: bool = False


FSYNC = "yes: PostgreSQL, fsync on"
AOF = "yes: Redis, appendfsync always"

DULY = PeerInfo(
    name="duly",
    package="duly",
    store="postgres",
    program="duly_peer.py",
    live="duly.timers",
    durable=FSYNC,
    settings="batches of 1,000; as `duly up` with one process, as `duly serve` with two",
)

PEERS = {
    peer.name: peer
    for peer in (
        PeerInfo(
            name="pgqueuer",
            package="pgqueuer",
            store="postgres",
            program="pgqueuer_peer.py",
            live="pgqueuer",
            durable=FSYNC,
            settings="durable tables, its autovacuum settings, batch_size 500, pool for producers",
        ),
        PeerInfo(
            name="procrastinate",
            package="procrastinate",
            store="postgres",
            program="procrastinate_peer.py",
            live="procrastinate_jobs WHERE status IN ('todo', 'doing')",
            durable=FSYNC,
            settings="concurrency 30, pool of 20, batch_defer_async, polls every 50 ms",
        ),
        PeerInfo(
            name="awa",
            package="awa-pg",
            store="postgres",
            program="awa_peer.py",
            # Its view `awa.jobs` builds every row before it answers: half a second for 10,000.
            # So from its cursors and receipts: the numbers given out, less those that have ended.
            live="(SELECT generate_series(1, (SELECT sum(awa.sequence_next_value(seq_name) - 1)"
            " FROM awa.queue_enqueue_heads) - (SELECT coalesce(sum(completed_count), 0)"
            " FROM awa.receipt_completion_batches) - (SELECT count(*) FROM awa.done_entries)"
            " - (SELECT coalesce(sum(pruned_completed_count + pruned_failed_count), 0)"
            " FROM awa.queue_terminal_rollups))) AS live",
            durable=FSYNC,
            settings="queue storage, 1,024 workers, 1 claimer, COPY, promotes every 50 ms",
        ),
        PeerInfo(
            name="graphile-worker",
            package="graphile-worker",
            store="postgres",
            program="graphile_peer.mjs",
            live="graphile_worker.jobs",
            durable=FSYNC,
            settings="24 at once, localQueue 500, completeJobBatchDelay 0, polls every 50 ms",
        ),
        PeerInfo(
            name="celery",
            package="celery",
            store="redis",
            program="celery_peer.py",
            live="celery",
            durable=AOF,
            settings="acks_late, prefork of 1 a worker, prefetch 128, results ignored",
            bulk_callers=64,
        ),
        PeerInfo(
            name="dramatiq",
            package="dramatiq",
            store="redis",
            program="dramatiq_peer.py",
            live="dramatiq",
            durable=AOF,
            settings="8 threads a process (its default)",
            bulk_callers=64,
        ),
        PeerInfo(
            name="taskiq",
            package="taskiq",
            store="redis",
            program="taskiq_peer.py",
            live="taskiq",
            durable=AOF,
            settings="Redis streams with acknowledgement, 100 asynchronous tasks",
        ),
        PeerInfo(
            name="temporal",
            package="temporalio",
            store="temporal",
            program="temporal_peer.py",
            live="",
            durable="yes: its development server, SQLite in a file",
            settings="worker in the starting process, without sandbox, 1,000 activities at once",
            rows=FLOW_ROWS,
        ),
        PeerInfo(
            name="celery-canvas",
            package="celery",
            store="redis",
            program="celery_flows.py",
            live="celery",
            durable=AOF,
            settings="as celery, with results; chain and chord",
            rows=FLOW_ROWS,
            has_flow_worker=True,
        ),
        PeerInfo(
            name="dbos",
            package="dbos",
            store="postgres",
            program="dbos_peer.py",
            live="",
            durable=FSYNC,
            settings="steps in the process of their workflow, side by side with asyncio.gather",
            rows=FLOW_ROWS,
        ),
    )
}
