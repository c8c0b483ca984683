-- name: take_ends
-- Taken by the transaction that stores what tells of them; a second one finds another fence, or nothing.
-- What was erased, or went with its month, has nothing to tell. A task ended in its newest attempt.
WITH taken AS (
    DELETE FROM duly.workflow_timers
     USING unnest($1::smallint[], $2::uuid[], $3::integer[]) AS asked(shard, id, fence)
     WHERE workflow_timers.shard = asked.shard
       AND workflow_timers.workflow = asked.id
       AND workflow_timers.kind = 'callback'
       AND workflow_timers.node = 0
       AND workflow_timers.fence = asked.fence
       AND workflow_timers.due_at <= duly.now()
 RETURNING workflow_timers.shard, workflow_timers.workflow AS id
)
SELECT tasks.id, tasks.tenant, tasks.type, tasks.policy, tasks.traceparent, last.state, last.reason,
       last.result, last.error
  FROM taken
  JOIN duly.tasks ON tasks.shard = taken.shard AND tasks.id = taken.id
 CROSS JOIN LATERAL (
       SELECT * FROM duly.attempts
        WHERE attempts.shard = taken.shard AND attempts.id = taken.id AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last
 ORDER BY tasks.shard, tasks.id
