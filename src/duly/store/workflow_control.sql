-- name: stop
-- Under the lock of the row itself: from now on nothing is released. The first reason stands, and one
-- that has ended stays as it is. Where a failure is undone, a cancel forbids that, also when it has begun.
UPDATE duly.workflows
   SET stop_reason = CASE WHEN $4 = 'cancelled' AND workflows.on_failure = 'compensate' THEN $4
                          ELSE coalesce(workflows.stop_reason, $4) END
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NULL
RETURNING workflows.live

-- name: list_live
-- For a cancel: the next nodes of a workflow that have not ended, in the order of their numbers.
SELECT timers.id
  FROM duly.timers
 WHERE timers.shard = $1
   AND timers.id > $2
   AND timers.id <= $3
   AND timers.tenant + 0 = $4
 ORDER BY timers.shard, timers.id
 LIMIT $5

-- name: cascade
-- The rest of a long cascade of skips: these nodes were skipped, and their children were not told.
SELECT id, tenant, shard, queue, fence, due_at, priority, type, concurrency_key,
       concurrency_limit, host
  FROM duly.release_children($1::uuid[], array_fill('SKIPPED'::text, ARRAY[cardinality($1::uuid[])]))
