-- name: read_tasks
-- Task, timer and final record in one statement: read apart, a task that ends in between would seem
-- to be neither live nor ended. The sum keeps the planner off the tenant's index, by which it would
-- read all of a tenant's tasks.
SELECT tasks.id, tasks.tenant, tasks.type, tasks.payload, tasks.policy, tasks.url, tasks.pool,
       pools.name AS pool_name, tasks.tags, tasks.created_at,
       coalesce(timers.run_at, last.run_at, tasks.run_at) AS run_at,
       tasks.execution_key, tasks.replay_of,
       coalesce(timers.priority, tasks.priority) AS priority,
       timers.id IS NOT NULL AS is_live,
       timers.due_at, timers.holder, timers.lease_until, timers.attempt, timers.cancel_requested,
       timers.progress,
       coalesce(timers.fence, last.fence) AS fence,
       last.state AS final_state, last.outcome, last.reason, last.result, last.error,
       last.ended_at,
       (SELECT count(*) FROM duly.attempts
         WHERE attempts.shard = asked.shard AND attempts.id = asked.id AND attempts.charged > 0)
           AS charged,
       EXISTS (SELECT FROM duly.tombstones
                WHERE tombstones.shard = asked.shard AND tombstones.id = asked.id) AS is_purged,
       duly.now() AS now
  FROM unnest($1::integer[], $2::smallint[], $3::uuid[]) AS asked(tenant, shard, id)
  JOIN duly.tasks
    ON tasks.shard = asked.shard AND tasks.id = asked.id AND tasks.tenant + 0 = asked.tenant
  LEFT JOIN duly.pools ON pools.tenant = tasks.tenant AND pools.number = tasks.pool
  LEFT JOIN duly.timers ON timers.shard = asked.shard AND timers.id = asked.id
  LEFT JOIN LATERAL (
       SELECT * FROM duly.attempts
        WHERE attempts.shard = asked.shard AND attempts.id = asked.id
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true

-- name: read_attempts
-- The record of one task, oldest first, and the attempt that runs: its lease is the only record of it
-- until it ends. One statement, so that an attempt that ends meanwhile is seen once.
SELECT fence, charged, holder, started_at, ended_at, outcome, state, reason, result, error,
       NULL::timestamptz AS lease_until
  FROM duly.attempts
 WHERE shard = $2 AND id = $3 AND tenant = $1 AND fence > $4
 UNION ALL
SELECT fence, attempt + 1, holder, started_at, NULL, 'running', NULL, NULL, NULL, NULL, lease_until
  FROM duly.timers
 WHERE shard = $2 AND id = $3 AND tenant + 0 = $1 AND fence > $4 AND holder IS NOT NULL
 ORDER BY fence
 LIMIT $5

-- name: read_ended
-- Which of these have ended; asked for many waiting callers at once, each of whom then reads its own.
SELECT asked.id
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
 WHERE NOT EXISTS (SELECT FROM duly.timers
                    WHERE timers.shard = asked.shard AND timers.id = asked.id)

-- name: list_created
-- A bounded stretch of one tenant's tasks, newest created first: those that match what never changes
-- about a task, and the last one that was looked at, from which the next stretch goes on.
WITH looked AS MATERIALIZED (
    SELECT id, created_at, type, tags
      FROM duly.tasks
     WHERE tenant = $1
       AND (created_at, id) < ($2, $3::uuid)
       AND created_at > $4
     ORDER BY created_at DESC, id DESC
     LIMIT $8
), numbered AS (
    SELECT id, created_at,
           ($5::text IS NULL OR type = $5) AND ($6::text IS NULL OR tags ->> $6 = $7) AS is_match,
           row_number() OVER (ORDER BY created_at DESC, id DESC) AS place,
           count(*) OVER () AS looked_at
      FROM looked
)
SELECT id, created_at, coalesce(is_match, false) AS is_match, looked_at
  FROM numbered
 WHERE is_match OR place = looked_at
 ORDER BY place

-- name: narrow_tasks
-- Which of these match what never changes about a task; read in full are only those.
SELECT asked.id
  FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
  JOIN duly.tasks
    ON tasks.shard = asked.shard AND tasks.id = asked.id AND tasks.tenant + 0 = $1
 WHERE ($4::text IS NULL OR tasks.type = $4)
   AND ($5::text IS NULL OR tasks.tags ->> $5 = $6)
   AND ($7::timestamptz IS NULL OR tasks.created_at > $7)

-- name: list_live
-- Tasks that wait for an instant, soonest first, by place: the index holds them in this order already.
-- What is wanted of them (what is due, or what is not yet) is where the scan begins and ends, and no
-- filter, which would read all that is due to find what is not. The instant is asked for once, because
-- under row-level security the planner takes the time function for leaky.
WITH span AS MATERIALIZED (
    SELECT CASE WHEN NOT $4::boolean THEN greatest($2, duly.now()) ELSE $2 END AS after_at,
           CASE WHEN NOT $4::boolean AND $2 < duly.now()
                THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid ELSE $3 END AS after_id,
           CASE WHEN $4::boolean THEN duly.now() ELSE 'infinity' END AS until_at
)
SELECT timers.id, timers.due_at
  FROM duly.placements
 CROSS JOIN LATERAL (
       SELECT id, due_at FROM duly.timers
        WHERE timers.tenant = $1
          AND timers.tenant > 0
          AND timers.shard = placements.shard
          AND timers.queue = placements.queue
          AND (timers.due_at, timers.id) > ((SELECT after_at FROM span), (SELECT after_id FROM span))
          AND timers.due_at <= (SELECT until_at FROM span)
          AND timers.holder IS NULL
        ORDER BY timers.due_at, timers.id
        LIMIT $5) AS timers
 WHERE placements.tenant = $1
 GROUP BY timers.id, timers.due_at
 ORDER BY timers.due_at, timers.id
 LIMIT $5

-- name: list_running
-- Tasks that are leased, in the order in which they will be looked at: in queue 0 of the tenant's
-- shards, and, where they were leased in place a moment ago, those that the newest expiry batches name. Offset
-- and bounds keep the planner from reading a whole shard for each of these.
SELECT timers.id, timers.due_at
  FROM (SELECT DISTINCT placements.shard FROM duly.placements WHERE placements.tenant = $1) AS place
 CROSS JOIN LATERAL (
       (SELECT timers.id, timers.due_at
          FROM duly.timers
         WHERE timers.tenant = $1
           AND timers.tenant > 0
           AND timers.shard = place.shard
           AND timers.queue = 0
           AND (timers.due_at, timers.id) > ($2, $3::uuid)
         ORDER BY timers.due_at, timers.id
         LIMIT $4)
        UNION ALL
       (SELECT timers.id, batch.expires_at
          FROM (SELECT lease_expiry_batches.expires_at, lease_expiry_batches.ids
                  FROM duly.lease_expiry_batches
                 WHERE lease_expiry_batches.tenant = $1 AND lease_expiry_batches.shard = place.shard
                 ORDER BY lease_expiry_batches.expires_at DESC, lease_expiry_batches.number DESC
                 LIMIT $5) AS batch
         CROSS JOIN LATERAL (
               SELECT timers.id
                 FROM duly.timers
                WHERE timers.shard = place.shard
                  AND timers.id = ANY (batch.ids)
                  AND timers.id BETWEEN batch.ids[1] AND batch.ids[cardinality(batch.ids)]
                  AND timers.holder IS NOT NULL
                  AND timers.lease_until = batch.expires_at
                  AND timers.queue <> 0
               OFFSET 0) AS timers
         WHERE (batch.expires_at, timers.id) > ($2, $3::uuid))) AS timers
 GROUP BY timers.id, timers.due_at
 ORDER BY timers.due_at, timers.id
 LIMIT $4

-- name: list_waiting
-- Workflow nodes whose parents are not finished: no instant yet, so they come in id order. Each place
-- is asked for the order of its index: for that of the ids alone, the planner reads whole shards.
SELECT timers.id
  FROM duly.placements
 CROSS JOIN LATERAL (
       SELECT id FROM duly.timers
        WHERE timers.tenant = $1
          AND timers.tenant > 0
          AND timers.shard = placements.shard
          AND timers.queue = placements.queue
          AND timers.due_at IS NULL
          AND timers.id > $2
        ORDER BY timers.due_at, timers.id
        LIMIT $3) AS timers
 WHERE placements.tenant = $1
 ORDER BY timers.id
 LIMIT $3

-- name: list_by_address
-- A tenant's unfinished tasks of one shard in the order of their ids: what walks them while it moves
-- them meets each one once.
SELECT timers.id
  FROM duly.timers
 WHERE timers.shard = $2
   AND timers.id > $3
   AND timers.tenant + 0 = $1
 ORDER BY timers.shard, timers.id
 LIMIT $4

-- name: find_next_shard
-- Where the walk by address goes on.
SELECT placements.shard
  FROM duly.placements
 WHERE placements.tenant = $1 AND placements.shard > $2
 ORDER BY placements.shard
 LIMIT 1
