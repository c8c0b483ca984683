-- name: list_dead_letters
-- One tenant's failures, newest first; filters are columns of the same rows. A page of payloads could
-- be megabytes, so they are left to `read_dead_letter`.
SELECT letter.id, letter.tenant, letter.type, letter.reason, letter.fingerprint, letter.error,
       letter.attempts, letter.priority, letter.created_at, letter.run_at, letter.failed_at,
       letter.execution_key, letter.replayed_as, letter.url, pools.name AS pool, letter.tags,
       letter.policy
  FROM duly.dead_letters letter
  LEFT JOIN duly.pools ON pools.tenant = letter.tenant AND pools.number = letter.pool
 WHERE letter.tenant = $1
   AND (letter.failed_at, letter.id) < ($2, $3)
   AND ($4::text IS NULL OR letter.type = $4)
   AND ($5::text IS NULL OR letter.reason = $5)
   AND ($6::text IS NULL OR letter.fingerprint = $6)
   AND ($7::boolean IS NULL OR (letter.replayed_as IS NOT NULL) = $7)
 ORDER BY letter.failed_at DESC, letter.id DESC
 LIMIT $8

-- name: read_dead_letter
-- One letter as a whole. The sum keeps the planner off the tenant's index, by which it would read all
-- letters of a tenant.
SELECT letter.id, letter.tenant, letter.type, letter.reason, letter.fingerprint, letter.error,
       letter.attempts, letter.priority, letter.created_at, letter.run_at, letter.failed_at,
       letter.execution_key, letter.replayed_as, letter.url, pools.name AS pool, letter.tags,
       letter.policy, letter.payload
  FROM duly.dead_letters letter
  LEFT JOIN duly.pools ON pools.tenant = letter.tenant AND pools.number = letter.pool
 WHERE letter.shard = $2 AND letter.id = $3 AND letter.tenant + 0 = $1

-- name: match_dead_letters
-- Which letters a filter means, oldest first and no more than a batch: what is replayed or purged is
-- not matched again, so a caller that repeats until nothing is left terminates. One that goes on from
-- a position looks at each letter once, and with an instant at none that failed after it.
SELECT id, type, failed_at
  FROM duly.dead_letters
 WHERE tenant = $1
   AND ($2::text IS NULL OR type = $2)
   AND ($3::text IS NULL OR reason = $3)
   AND ($4::text IS NULL OR fingerprint = $4)
   AND ($5::boolean IS NULL OR (replayed_as IS NOT NULL) = $5)
   AND ($7::boolean OR NOT duly.is_node(id))
   AND (failed_at, id) > ($8, $9)
   AND failed_at <= $10
   AND ($11::text IS NULL OR tags ->> $11 = $12)
 ORDER BY failed_at, id
 LIMIT $6

-- name: find_dead_letters
-- Which of these ids are letters of this tenant, in the order of the ids.
SELECT letter.id, letter.type
  FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
  JOIN duly.dead_letters letter
    ON letter.shard = asked.shard AND letter.id = asked.id AND letter.tenant + 0 = $1
 WHERE $4::boolean IS NULL OR (letter.replayed_as IS NOT NULL) = $4
 ORDER BY letter.id

-- name: group_dead_letters
-- The same cause, counted: what to look at first. Of a bounded number of the newest failures.
SELECT fingerprint, type, reason, letters, first_at, last_at, example
  FROM (SELECT fingerprint, type, reason, count(*) AS letters, min(failed_at) AS first_at,
               max(failed_at) AS last_at, max(error) AS example
          FROM (SELECT fingerprint, type, reason, failed_at, error
                  FROM duly.dead_letters
                 WHERE tenant = $1
                   AND ($2::text IS NULL OR type = $2)
                   AND ($3::text IS NULL OR reason = $3)
                   AND ($4::text IS NULL OR fingerprint = $4)
                   AND ($5::boolean IS NULL OR (replayed_as IS NOT NULL) = $5)
                 ORDER BY failed_at DESC, id DESC
                 LIMIT $6) AS recent
         GROUP BY fingerprint, type, reason) AS groups
 WHERE (-letters, fingerprint, type, reason) > (-$7::bigint, $8, $9, $10)
 ORDER BY letters DESC, fingerprint, type, reason
 LIMIT $11

-- name: replay_dead_letters
-- A new task that points to the old one and keeps its execution key. The letter's own row decides
-- who replays it: two replays of one letter make one task. One of a workflow node is not replayed: its
-- children were told of its end, which never changes. Each is due its own delay after the start,
-- by the database's clock, so that many of them do not come at once.
WITH chosen AS (
    UPDATE duly.dead_letters
       SET replayed_as = asked.new_id
      FROM unnest($2::smallint[], $3::uuid[], $4::uuid[], $5::double precision[])
           AS asked(shard, id, new_id, delay_s)
     WHERE dead_letters.shard = asked.shard
       AND dead_letters.id = asked.id
       AND dead_letters.tenant + 0 = $1
       AND dead_letters.replayed_as IS NULL
       AND NOT duly.is_node(dead_letters.id)
 RETURNING dead_letters.*, asked.delay_s
), arriving AS (
    SELECT shard, replayed_as AS id, tenant, pool, priority, timeout_ms,
           greatest($6::timestamptz, duly.now()) + make_interval(secs => delay_s) AS run_at,
           NULL::timestamptz AS start_by, type, payload, policy, url, execution_key, tags,
           id AS replay_of,
           -- A replay goes on with the trace of what it repeats, as long as that is kept.
           (SELECT tasks.traceparent FROM duly.tasks
             WHERE tasks.shard = chosen.shard AND tasks.id = chosen.id) AS traceparent
      FROM chosen
),
-- include: insert.task_and_timer holder=NULL::uuid lease_s=0 host=NULL::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
,
-- include: insert.callbacks
, placed AS (
    INSERT INTO duly.placements (tenant, shard, queue)
    SELECT DISTINCT tenant, shard, duly.timer_queue(pool, priority) AS queue
      FROM stored
     ORDER BY tenant, shard, queue
        ON CONFLICT DO NOTHING
)
SELECT replay_of AS id, id AS new_id, tenant, shard, duly.timer_queue(pool, priority) AS queue,
       run_at
  FROM stored
