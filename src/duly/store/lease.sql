-- fragment: granted
-- What a lease writes on the timer, wherever it is granted. It ends with the attempt's time limit.
           fence = timers.fence + 1,
           holder = :holder,
           started_at = duly.now(),
           lease_until = duly.now() + least(make_interval(secs => :lease_s),
                                            timers.timeout_ms * interval '1 millisecond'),
           confirmed = false

-- fragment: guard
-- A ticket becomes a lease only if nothing has happened to the task since the ticket was written
-- (fence), it has no holder, and it is due by the database's clock. All three stand on the row being
-- updated: a statement that waited for it checks them again, and only them. A ticket past its
-- deadline is void: its scheduler may have been replaced.
       AND timers.fence = ticket.fence
       AND timers.holder IS NULL
       AND timers.due_at <= duly.now()
       AND ticket.deadline > duly.now()

-- fragment: columns
-- The columns of a Lease, in the order and with the names of its fields. The attempt is the one that
-- runs now.
:timer.id, :timer.tenant, :timer.fence, :timer.attempt + 1 AS attempt,
       :timer.started_at, :timer.lease_until, :timer.progress,
       tasks.run_at, tasks.type, tasks.payload, tasks.policy AS policy_text, tasks.url,
       tasks.execution_key AS given_execution_key, :timer.run_at AS moved_to, :timer.priority,
       tasks.traceparent

-- name: lease_tasks
-- Tickets come in runs of neighbours that agree in everything but their ids, and each run is one pass
-- of the index; its bounds are for PostgreSQL before 17, which may take the ids for a filter. The shard
-- is an array of one: with a plain equality the planner may walk all keys instead, of a table that
-- seems empty. Where a ticket allows it, the row stays where it is and no index is touched; an expiry batch
-- remembers when to look at it. A lease that ends sooner than most, with its attempt, is not worth that.
WITH leased AS (
    UPDATE duly.timers
       SET queue = CASE WHEN ticket.in_place AND timers.timeout_ms >= ticket.lease_ms THEN timers.queue
                       ELSE 0 END,
           due_at = CASE WHEN ticket.in_place AND timers.timeout_ms >= ticket.lease_ms THEN timers.due_at
                         ELSE duly.now() + least(make_interval(secs => $9),
                                                 timers.timeout_ms * interval '1 millisecond') END,
-- include: lease.granted holder=$8 lease_s=$9
      FROM (SELECT shard, fence, deadline, in_place, $9::double precision * 1000 AS lease_ms,
                   ($1::uuid[])[first] AS first_id, ($1)[last] AS last_id, ($1)[first:last] AS ids
              FROM unnest($2::smallint[], $3::integer[], $4::timestamptz[], $5::boolean[],
                          $6::integer[], $7::integer[])
                   AS sent(shard, fence, deadline, in_place, first, last)) AS ticket
     WHERE timers.shard = ANY (ARRAY[ticket.shard])
       AND timers.id = ANY (ticket.ids)
       AND timers.id BETWEEN ticket.first_id AND ticket.last_id
-- include: lease.guard
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.attempt,
           timers.started_at, timers.lease_until, timers.progress, timers.queue, timers.run_at,
           timers.priority
), noted AS (
    INSERT INTO duly.lease_expiry_batches (tenant, shard, expires_at, ids)
    SELECT tenant, shard, lease_until, array_agg(id ORDER BY id)
      FROM leased
     WHERE queue <> 0
     GROUP BY tenant, shard, lease_until
)
SELECT
-- include: lease.columns timer=leased
  FROM leased
  JOIN duly.tasks ON tasks.shard = leased.shard AND tasks.id = leased.id

-- name: read_held
-- After a lease of unknown outcome: which of my tickets did become my leases?
SELECT
-- include: lease.columns timer=timers
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[]) AS ticket(shard, id, fence)
  JOIN duly.timers
    ON timers.shard = ticket.shard AND timers.id = ticket.id AND timers.fence = ticket.fence + 1
  JOIN duly.tasks ON tasks.shard = timers.shard AND tasks.id = timers.id
 WHERE timers.holder = $4

-- name: read_held_by
-- After an answer that got lost: leases of this holder whose start was not confirmed yet. What
-- workers hold sits in queue 0 of the shards that the tenant was placed on.
SELECT
-- include: lease.columns timer=timers
  FROM (SELECT DISTINCT placements.shard FROM duly.placements WHERE placements.tenant = $1) AS place
 CROSS JOIN LATERAL (
       SELECT * FROM duly.timers
        WHERE timers.tenant = $1
          AND timers.tenant > 0
          AND timers.shard = place.shard
          AND timers.queue = 0
          AND timers.holder = $2
          AND NOT timers.confirmed
          AND timers.lease_until > duly.now()
        LIMIT $3) AS timers
  JOIN duly.tasks ON tasks.shard = timers.shard AND tasks.id = timers.id
 LIMIT $3

-- name: extend_leases
-- Only the holder of this very lease may extend it, and never past the attempt's time limit. A lease
-- that was made in place moves to queue 0, where the others are; after that no indexed column changes.
UPDATE duly.timers
   SET lease_until = least(duly.now() + make_interval(secs => $5),
                           timers.started_at + timers.timeout_ms * interval '1 millisecond'),
       queue = 0,
       due_at = CASE WHEN timers.queue = 0 THEN timers.due_at ELSE timers.lease_until END,
       confirmed = true,
       progress = coalesce(beat.progress, timers.progress)
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $6::text[])
       AS beat(shard, id, fence, progress)
 WHERE timers.shard = ANY (ARRAY[beat.shard])
   AND timers.id = ANY (ARRAY[beat.id])
   AND timers.fence = beat.fence
   AND timers.holder = $4
   AND duly.now() < timers.started_at + timers.timeout_ms * interval '1 millisecond'
RETURNING timers.id, timers.fence, timers.lease_until, timers.cancel_requested
