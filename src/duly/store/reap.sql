-- name: find_expired
-- Leases whose moment to look at has come, by their own query and outside any bound on a lane: a
-- full cap could otherwise never drain. The same index as loading, since leased rows sit in lane 0.
SELECT timers.id, timers.fence, timers.holder, timers.attempt, timers.losses, timers.confirmed,
       timers.cancel_requested, timers.lease_until, timers.lease_until <= duly.now() AS is_lost,
       tasks.policy, tasks.type
  FROM unnest($1::integer[], $2::smallint[]) AS place(tenant, shard)
 CROSS JOIN LATERAL (
       SELECT * FROM duly.timers
        WHERE timers.tenant = place.tenant
          AND timers.shard = place.shard
          AND timers.lane = 0
          AND timers.due_at <= duly.now()
        ORDER BY timers.due_at, timers.id
        LIMIT $3) AS timers
  JOIN duly.tasks ON tasks.shard = timers.shard AND tasks.id = timers.id

-- name: rearm_leases
-- A heartbeat moved the lease but not `due_at` (which would cost two index entries each time); now
-- that it is due, look again when the lease really ends.
UPDATE duly.timers
   SET due_at = timers.lease_until
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::uuid[])
       AS lease(shard, id, fence, holder)
 WHERE timers.shard = lease.shard
   AND timers.id = lease.id
   AND timers.fence = lease.fence
   AND timers.holder = lease.holder
RETURNING timers.id

-- name: expire_unstarted
-- Tasks that were to start by an instant which has passed without a start. One that did start, and
-- is only waiting for its next attempt, kept its word.
WITH ended AS (
    DELETE FROM duly.timers
     USING unnest($1::smallint[], $2::uuid[], $3::integer[]) AS late(shard, id, fence)
     WHERE timers.shard = late.shard
       AND timers.id = late.id
       AND timers.fence = late.fence
       AND timers.holder IS NULL
       AND timers.start_by <= duly.now()
       AND timers.started_at IS NULL
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, timers.attempt,
           timers.priority
), recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, ended_at, outcome, state, reason)
    SELECT shard, id, fence, tenant, 0, duly.now(), 'expired', 'FAILED', 'expired' FROM ended
), dead AS (
    INSERT INTO duly.dead_letters (shard, id, tenant, pool, priority, attempts, timeout_ms,
                                   created_at, run_at, failed_at, reason, fingerprint, type,
                                   payload, policy, url, execution_key, tags, error)
    SELECT ended.shard, ended.id, ended.tenant, tasks.pool, ended.priority, ended.attempt,
           tasks.timeout_ms, tasks.created_at, tasks.run_at, duly.now(), 'expired', 'expired',
           tasks.type, tasks.payload, tasks.policy, tasks.url,
           coalesce(tasks.execution_key, tasks.id::text), tasks.tags, 'not started in time'
      FROM ended
      JOIN duly.tasks ON tasks.shard = ended.shard AND tasks.id = ended.id
)
SELECT id FROM ended
