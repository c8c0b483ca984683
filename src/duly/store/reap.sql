-- name: find_expired
-- Leases whose moment to look at has come, by their own query and outside any bound on a queue: a full
-- cap could otherwise never drain. Most sit in queue 0, found by the index that loading uses; those that
-- stayed where they were are named by expiry batches, with which they come. An expiry batch that finds none of
-- its leases comes alone: it is done. Offset and bounds keep the planner to the key.
SELECT found.id, found.fence, found.holder, found.attempt, found.losses, found.confirmed,
       found.cancel_requested, found.lease_until, found.lease_until <= duly.now() AS is_lost,
       tasks.policy, tasks.type, place.tenant, place.shard, found.expires_at, found.number,
       tasks.pool
  FROM unnest($1::integer[], $2::smallint[]) AS place(tenant, shard)
 CROSS JOIN LATERAL (
       (SELECT timers.shard, timers.id, timers.fence, timers.holder, timers.attempt, timers.losses,
               timers.confirmed, timers.cancel_requested, timers.lease_until,
               NULL::timestamptz AS expires_at, NULL::bigint AS number
          FROM duly.timers
         WHERE timers.tenant = place.tenant
           AND timers.tenant > 0
           AND timers.shard = place.shard
           AND timers.queue = 0
           AND timers.due_at <= duly.now()
         ORDER BY timers.due_at, timers.id
         LIMIT $3)
        UNION ALL
       (SELECT timers.shard, timers.id, timers.fence, timers.holder, timers.attempt, timers.losses,
               timers.confirmed, timers.cancel_requested, timers.lease_until,
               batch.expires_at, batch.number
          FROM (SELECT lease_expiry_batches.shard, lease_expiry_batches.expires_at, lease_expiry_batches.number, lease_expiry_batches.ids
                  FROM duly.lease_expiry_batches
                 WHERE lease_expiry_batches.tenant = place.tenant
                   AND lease_expiry_batches.shard = place.shard
                   AND lease_expiry_batches.expires_at <= duly.now()
                 ORDER BY lease_expiry_batches.expires_at, lease_expiry_batches.number
                 LIMIT $4) AS batch
          LEFT JOIN LATERAL (
               SELECT * FROM duly.timers
                WHERE timers.shard = batch.shard
                  AND timers.id = ANY (batch.ids)
                  AND timers.id BETWEEN batch.ids[1] AND batch.ids[cardinality(batch.ids)]
                  AND timers.holder IS NOT NULL
                  AND timers.queue <> 0
               OFFSET 0) AS timers ON true)) AS found
  LEFT JOIN duly.tasks ON tasks.shard = found.shard AND tasks.id = found.id

-- name: rearm_leases
-- A heartbeat moved the lease but not `due_at` (which would cost two index entries each time); now
-- that it is due, look again when the lease really ends.
UPDATE duly.timers
   SET queue = 0,
       due_at = timers.lease_until
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::uuid[])
       AS lease(shard, id, fence, holder)
 WHERE timers.shard = ANY (ARRAY[lease.shard])
   AND timers.id = ANY (ARRAY[lease.id])
   AND timers.fence = lease.fence
   AND timers.holder = lease.holder
RETURNING timers.id

-- name: forget_expiry_batches
-- Those that found nothing, and only these: another may have been committed late.
DELETE FROM duly.lease_expiry_batches
 USING unnest($1::integer[], $2::smallint[], $3::timestamptz[], $4::bigint[])
       AS seen(tenant, shard, expires_at, number)
 WHERE lease_expiry_batches.tenant = seen.tenant
   AND lease_expiry_batches.shard = seen.shard
   AND lease_expiry_batches.expires_at = seen.expires_at
   AND lease_expiry_batches.number = seen.number
