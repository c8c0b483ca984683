-- name: append_logs
-- Lines are taken from the worker that holds the attempt, or held it: its last lines come after its
-- settlement. The key makes a chunk that is sent twice one chunk.
INSERT INTO duly.task_logs (shard, tenant, fence, seq, id, at, lines)
SELECT sent.shard, $6, sent.fence, sent.seq, sent.id, duly.now(), sent.lines
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::smallint[], $5::text[])
       AS sent(shard, id, fence, seq, lines)
 WHERE EXISTS (SELECT FROM duly.timers
                WHERE timers.shard = sent.shard AND timers.id = sent.id
                  AND timers.fence = sent.fence AND timers.holder = $7)
    OR EXISTS (SELECT FROM duly.attempts
                WHERE attempts.shard = sent.shard AND attempts.id = sent.id
                  AND attempts.fence = sent.fence AND attempts.holder = $7)
 ORDER BY sent.shard, sent.id, sent.fence, sent.seq
    ON CONFLICT DO NOTHING
RETURNING id

-- name: read_logs
-- A page of chunks of one task, oldest attempt first.
SELECT fence, seq, lines
  FROM duly.task_logs
 WHERE shard = $1 AND id = $2 AND tenant + 0 = $3 AND (fence, seq) > ($4, $5)
 ORDER BY fence, seq
 LIMIT $6

-- name: delete_old_logs
-- A bounded batch of chunks past their retention.
DELETE FROM duly.task_logs
 WHERE (shard, id, fence, seq) IN (
       SELECT shard, id, fence, seq FROM duly.task_logs
        WHERE at < duly.now() - make_interval(secs => $1)
        LIMIT $2)
RETURNING id

-- name: add_log_usage
-- What this process stored for tenants since it last said so; every process adds its part of a day (UTC).
-- The answer is that of all processes together.
INSERT INTO duly.log_usage AS kept (tenant, day, bytes)
VALUES ($1, (duly.now() AT TIME ZONE 'UTC')::date, $2)
    ON CONFLICT (tenant, day) DO UPDATE
   SET bytes = kept.bytes + excluded.bytes
RETURNING bytes

-- name: delete_old_log_usage
-- A day that is over decides nothing.
DELETE FROM duly.log_usage
 WHERE (tenant, day) IN (
       SELECT tenant, day FROM duly.log_usage
        WHERE day < (duly.now() AT TIME ZONE 'UTC')::date
        LIMIT $1)
RETURNING tenant
