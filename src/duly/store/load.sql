-- fragment: ready_timers
-- Due and unleased timers of one timer queue, oldest first: one probe of the loading index, which is
-- partial (`tenant > 0`).
                   SELECT timers.due_at
                     FROM duly.timers
                    WHERE timers.tenant = :tenant
                      AND timers.tenant > 0
                      AND timers.shard = :queue.shard
                      AND timers.queue = :queue.queue
                      AND timers.due_at <= (SELECT duly.now())
                      AND timers.holder IS NULL
                    ORDER BY timers.due_at
                    LIMIT :limit

-- name: load_due
-- What is due soon and not leased, for each place from its own cursor: never from the beginning,
-- where dead rows pile up while a long transaction keeps vacuum away.
SELECT timers.tenant, timers.shard, timers.queue, timers.id, timers.fence, timers.due_at,
       timers.priority, CASE WHEN timers.started_at IS NULL THEN timers.start_by END AS start_by,
       timers.type, timers.concurrency_key, timers.concurrency_limit, timers.host
  FROM unnest($1::integer[], $2::smallint[], $3::smallint[], $4::timestamptz[], $5::uuid[])
       AS place(tenant, shard, queue, after_due_at, after_id)
 CROSS JOIN LATERAL (
       SELECT * FROM duly.timers
        WHERE timers.tenant = place.tenant
          AND timers.tenant > 0
          AND timers.shard = place.shard
          AND timers.queue = place.queue
          AND (timers.due_at, timers.id) > (place.after_due_at, place.after_id)
          AND timers.due_at <= duly.now() + make_interval(secs => $6)
          AND timers.holder IS NULL
        ORDER BY timers.due_at, timers.id
        LIMIT $7) AS timers

-- name: read_frontier
-- The instant of the last load, and of the oldest transaction that may still commit a timer behind
-- it. Only our own logins' transactions are seen; a sweep finds what others commit late.
SELECT duly.now() AS now,
       coalesce((SELECT min(xact_start) FROM pg_stat_activity
                  WHERE backend_xid IS NOT NULL AND datname = current_database()), duly.now())
           AS oldest_writer_at

-- name: list_capped_leases
-- What is leased of whatever has a cap, to correct what the scheduler was told: that is never leased in
-- place, but in queue 0. A tenant's cap counts all its leases, a key only its own.
SELECT timers.id, timers.fence, timers.tenant, timers.concurrency_key
  FROM unnest($1::integer[], $2::smallint[], $3::boolean[]) AS place(tenant, shard, is_capped)
 CROSS JOIN LATERAL (
       SELECT * FROM duly.timers
        WHERE timers.tenant = place.tenant
          AND timers.tenant > 0
          AND timers.shard = place.shard
          AND timers.queue = 0
          AND (place.is_capped OR timers.concurrency_key IS NOT NULL)
        LIMIT $4) AS timers

-- name: find_outstanding
-- Of these tickets, those that can still become a lease and those that are one: the row has their
-- fence, or the next one and a holder. The others were settled by another process.
SELECT timers.id
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[]) AS ticket(shard, id, fence)
  JOIN duly.timers ON timers.shard = ticket.shard AND timers.id = ticket.id
 WHERE timers.fence = ticket.fence
    OR (timers.fence = ticket.fence + 1 AND timers.holder IS NOT NULL)

-- name: list_placements
-- Which places can have work at all; paged, because a tenant with many keys has many.
SELECT tenant, shard, queue
  FROM duly.placements
 WHERE (tenant, shard, queue) > ($1, $2, $3)
   AND shard BETWEEN $4 AND $5
 ORDER BY tenant, shard, queue
 LIMIT $6

-- name: list_placements_of
-- Where a tenant that one node dispatches as a whole can have work, in all shards.
SELECT tenant, shard, queue
  FROM duly.placements
 WHERE tenant = ANY ($1::integer[])
   AND (tenant, shard, queue) > ($2, $3, $4)
 ORDER BY tenant, shard, queue
 LIMIT $5
