-- name: find_expired
-- Leases whose moment to look at has come, by their own query and outside any bound on a lane: a full
-- cap could otherwise never drain. Most sit in lane 0, found by the index that loading uses; those that
-- stayed where they were are named by lookouts, with which they come. A lookout that finds none of
-- its leases comes alone: it is done. Offset and bounds keep the planner to the key.
SELECT found.id, found.fence, found.holder, found.attempt, found.losses, found.confirmed,
       found.cancel_requested, found.lease_until, found.lease_until <= duly.now() AS is_lost,
       tasks.policy, tasks.type, place.tenant, place.shard, found.look_at, found.number,
       tasks.pool
  FROM unnest($1::integer[], $2::smallint[]) AS place(tenant, shard)
 CROSS JOIN LATERAL (
       (SELECT timers.shard, timers.id, timers.fence, timers.holder, timers.attempt, timers.losses,
               timers.confirmed, timers.cancel_requested, timers.lease_until,
               NULL::timestamptz AS look_at, NULL::bigint AS number
          FROM duly.timers
         WHERE timers.tenant = place.tenant
           AND timers.tenant > 0
           AND timers.shard = place.shard
           AND timers.lane = 0
           AND timers.due_at <= duly.now()
         ORDER BY timers.due_at, timers.id
         LIMIT $3)
        UNION ALL
       (SELECT timers.shard, timers.id, timers.fence, timers.holder, timers.attempt, timers.losses,
               timers.confirmed, timers.cancel_requested, timers.lease_until,
               lookout.look_at, lookout.number
          FROM (SELECT lookouts.shard, lookouts.look_at, lookouts.number, lookouts.ids
                  FROM duly.lookouts
                 WHERE lookouts.tenant = place.tenant
                   AND lookouts.shard = place.shard
                   AND lookouts.look_at <= duly.now()
                 ORDER BY lookouts.look_at, lookouts.number
                 LIMIT $4) AS lookout
          LEFT JOIN LATERAL (
               SELECT * FROM duly.timers
                WHERE timers.shard = lookout.shard
                  AND timers.id = ANY (lookout.ids)
                  AND timers.id BETWEEN lookout.ids[1] AND lookout.ids[cardinality(lookout.ids)]
                  AND timers.holder IS NOT NULL
                  AND timers.lane <> 0
               OFFSET 0) AS timers ON true)) AS found
  LEFT JOIN duly.tasks ON tasks.shard = found.shard AND tasks.id = found.id

-- name: rearm_leases
-- A heartbeat moved the lease but not `due_at` (which would cost two index entries each time); now
-- that it is due, look again when the lease really ends.
UPDATE duly.timers
   SET lane = 0,
       due_at = timers.lease_until
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::uuid[])
       AS lease(shard, id, fence, holder)
 WHERE timers.shard = ANY (ARRAY[lease.shard])
   AND timers.id = ANY (ARRAY[lease.id])
   AND timers.fence = lease.fence
   AND timers.holder = lease.holder
RETURNING timers.id

-- name: forget_lookouts
-- Those that found nothing, and only these: another may have been committed late.
DELETE FROM duly.lookouts
 USING unnest($1::integer[], $2::smallint[], $3::timestamptz[], $4::bigint[])
       AS seen(tenant, shard, look_at, number)
 WHERE lookouts.tenant = seen.tenant
   AND lookouts.shard = seen.shard
   AND lookouts.look_at = seen.look_at
   AND lookouts.number = seen.number

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
           timers.priority, timers.run_at
), recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, ended_at, outcome, state, reason,
                               run_at)
    SELECT shard, id, fence, tenant, 0, duly.now(), 'expired', 'FAILED', 'expired', run_at FROM ended
), dead AS (
    INSERT INTO duly.dead_letters (shard, id, tenant, pool, priority, attempts, timeout_ms,
                                   created_at, run_at, failed_at, reason, fingerprint, type,
                                   payload, policy, url, execution_key, tags, error)
    SELECT ended.shard, ended.id, ended.tenant, tasks.pool, ended.priority, ended.attempt,
           tasks.timeout_ms, tasks.created_at, coalesce(ended.run_at, tasks.run_at), duly.now(),
           'expired', 'expired',
           tasks.type, tasks.payload, tasks.policy, tasks.url,
           coalesce(tasks.execution_key, tasks.id::text), tasks.tags, 'not started in time'
      FROM ended
      JOIN duly.tasks ON tasks.shard = ended.shard AND tasks.id = ended.id
)
SELECT id FROM ended
