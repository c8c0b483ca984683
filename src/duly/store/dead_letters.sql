-- name: list_dead_letters
-- One tenant's failures, newest first; filters are columns of the same rows.
SELECT id, tenant, type, reason, fingerprint, error, attempts, created_at, run_at, failed_at,
       payload, execution_key, replayed_as
  FROM duly.dead_letters
 WHERE tenant = $1
   AND (failed_at, id) < ($2, $3)
   AND ($4::text IS NULL OR type = $4)
   AND ($5::text IS NULL OR reason = $5)
   AND ($6::text IS NULL OR fingerprint = $6)
   AND ($7::boolean IS NULL OR (replayed_as IS NOT NULL) = $7)
 ORDER BY failed_at DESC, id DESC
 LIMIT $8

-- name: group_dead_letters
-- The same cause, counted: what to look at first.
SELECT fingerprint, type, reason, count(*) AS letters, min(failed_at) AS first_at,
       max(failed_at) AS last_at, max(error) AS example
  FROM (SELECT * FROM duly.dead_letters
         WHERE tenant = $1 AND replayed_as IS NULL
         ORDER BY failed_at DESC, id DESC
         LIMIT $2) AS recent
 GROUP BY fingerprint, type, reason
 ORDER BY count(*) DESC, fingerprint
 LIMIT $3

-- name: replay_dead_letters
-- A new task that points to the old one and keeps its execution key. The letter's own row decides
-- who replays it: two replays of one letter make one task.
WITH chosen AS (
    UPDATE duly.dead_letters
       SET replayed_as = asked.new_id
      FROM unnest($2::smallint[], $3::uuid[], $4::uuid[]) AS asked(shard, id, new_id)
     WHERE dead_letters.shard = asked.shard
       AND dead_letters.id = asked.id
       AND dead_letters.tenant = $1
       AND dead_letters.replayed_as IS NULL
 RETURNING dead_letters.*
), stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, type,
                            payload, policy, url, execution_key, tags, replay_of)
    SELECT shard, replayed_as, tenant, pool, priority, timeout_ms, duly.now(), duly.now(), type,
           payload, policy, url, execution_key, tags, id
      FROM chosen
 RETURNING shard, id, tenant, pool, priority, timeout_ms, run_at, replay_of, type, policy, url
), armed AS (
    INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms, due_at, type,
                             concurrency_key, concurrency_limit, host)
    SELECT shard, id, tenant, duly.lane_of(pool, priority), pool, priority, timeout_ms, run_at,
           type, duly.concurrency_key_of(policy), duly.concurrency_limit_of(policy),
           duly.host_of(url)
      FROM stored
), placed AS (
    INSERT INTO duly.placements (tenant, shard, lane)
    SELECT DISTINCT tenant, shard, duly.lane_of(pool, priority) FROM stored
        ON CONFLICT DO NOTHING
)
SELECT replay_of AS id, id AS new_id, tenant, shard, duly.lane_of(pool, priority) AS lane,
       run_at
  FROM stored

-- name: purge_dead_letters
-- The letters go; the tasks stay FAILED by their final attempts.
DELETE FROM duly.dead_letters
 USING unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
 WHERE dead_letters.shard = asked.shard
   AND dead_letters.id = asked.id
   AND dead_letters.tenant = $1
RETURNING dead_letters.id
