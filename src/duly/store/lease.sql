-- name: lease_tasks
-- A ticket becomes a lease only if nothing has happened to the task since the ticket was written
-- (fence), nobody holds it, and it is due by the database's clock. All three stand on the row being
-- updated: a statement that waited for it checks them again, and only them. A ticket past its
-- deadline is void: its scheduler may have been replaced. A column that is the same for all of them
-- has one element.
WITH leased AS (
    UPDATE duly.timers
       SET fence = timers.fence + 1,
           holder = $4,
           lane = 0,
           started_at = duly.now(),
           lease_until = duly.now() + least(make_interval(secs => $5),
                                            timers.timeout_ms * interval '1 millisecond'),
           due_at = duly.now() + least(make_interval(secs => $5),
                                       timers.timeout_ms * interval '1 millisecond'),
           confirmed = false
      FROM (SELECT id, coalesce(shard, ($1)[1]) AS shard, coalesce(fence, ($3)[1]) AS fence,
                   coalesce(deadline, ($6)[1]) AS deadline
              FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $6::timestamptz[])
                   AS sent(shard, id, fence, deadline)) AS ticket
     WHERE timers.shard = ticket.shard
       AND timers.id = ticket.id
       AND timers.fence = ticket.fence
       AND timers.holder IS NULL
       AND timers.due_at <= duly.now()
       AND ticket.deadline > duly.now()
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.attempt, timers.priority,
           timers.losses, timers.started_at, timers.lease_until, timers.progress
)
SELECT leased.id, leased.tenant, leased.fence, leased.attempt + 1 AS attempt, leased.losses,
       leased.started_at, leased.lease_until, leased.progress,
       tasks.run_at, tasks.type, tasks.payload, tasks.policy, tasks.url, tasks.execution_key
  FROM leased
  JOIN duly.tasks ON tasks.shard = leased.shard AND tasks.id = leased.id

-- name: read_held
-- After a lease of unknown outcome: which of my tickets did become my leases?
SELECT timers.id, timers.tenant, timers.fence, timers.attempt + 1 AS attempt, timers.losses,
       timers.started_at, timers.lease_until, timers.progress,
       tasks.run_at, tasks.type, tasks.payload, tasks.policy, tasks.url, tasks.execution_key
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[]) AS ticket(shard, id, fence)
  JOIN duly.timers
    ON timers.shard = ticket.shard AND timers.id = ticket.id AND timers.fence = ticket.fence + 1
  JOIN duly.tasks ON tasks.shard = timers.shard AND tasks.id = timers.id
 WHERE timers.holder = $4

-- name: read_held_by
-- After an answer that got lost: leases of this holder whose start nobody has confirmed yet. Leased
-- rows sit in lane 0 of the shards that the tenant was placed on.
SELECT timers.id, timers.tenant, timers.fence, timers.attempt + 1 AS attempt, timers.losses,
       timers.started_at, timers.lease_until, timers.progress,
       tasks.run_at, tasks.type, tasks.payload, tasks.policy, tasks.url, tasks.execution_key
  FROM (SELECT DISTINCT placements.shard FROM duly.placements WHERE placements.tenant = $1) AS place
 CROSS JOIN LATERAL (
       SELECT * FROM duly.timers
        WHERE timers.tenant = $1
          AND timers.shard = place.shard
          AND timers.lane = 0
          AND timers.holder = $2
          AND NOT timers.confirmed
          AND timers.lease_until > duly.now()
        LIMIT $3) AS timers
  JOIN duly.tasks ON tasks.shard = timers.shard AND tasks.id = timers.id
 LIMIT $3

-- name: extend_leases
-- Only the holder of this very lease may extend it, and never past the attempt's time limit. Touches
-- no indexed column, so the row stays where it is.
UPDATE duly.timers
   SET lease_until = least(duly.now() + make_interval(secs => $5),
                           timers.started_at + timers.timeout_ms * interval '1 millisecond'),
       confirmed = true,
       progress = coalesce(beat.progress, timers.progress)
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $6::text[])
       AS beat(shard, id, fence, progress)
 WHERE timers.shard = beat.shard
   AND timers.id = beat.id
   AND timers.fence = beat.fence
   AND timers.holder = $4
   AND duly.now() < timers.started_at + timers.timeout_ms * interval '1 millisecond'
RETURNING timers.id, timers.fence, timers.lease_until, timers.cancel_requested
