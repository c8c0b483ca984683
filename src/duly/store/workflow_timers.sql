-- name: arm
-- Something to do for a workflow at an instant from now, or never; one of a kind and node at a time.
INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at, cursor)
VALUES ($1, $2, $3, $4, $5, coalesce($8, duly.now() + make_interval(secs => $6), 'infinity'), $7)
    ON CONFLICT (shard, workflow, kind, node) DO UPDATE
   SET due_at = least(held.due_at, excluded.due_at),
       cursor = excluded.cursor,
       fence = held.fence + 1

-- name: find_due_timers
-- What workflows of these shards have to do by now or soon, longest overdue first, and how long until then.
SELECT shard, tenant, workflow, kind, node, fence, cursor, due_at,
       greatest(0, extract(epoch FROM due_at - duly.now()))::double precision AS wait_s
  FROM duly.workflow_timers
 WHERE due_at <= duly.now() + make_interval(secs => $3)
   AND shard = ANY ($1::smallint[])
 ORDER BY due_at, shard
 LIMIT $2

-- name: take_timer
-- Done by the transaction that deletes it; a second one finds another fence, or nothing.
DELETE FROM duly.workflow_timers
 WHERE shard = $1 AND workflow = $2 AND kind = $3 AND node = $4 AND fence = $5
   AND due_at <= duly.now()
RETURNING workflow

-- name: postpone_timer
-- One that could not be done goes behind what is due: a look finds the longest overdue first, and would
-- find nothing but those that fail.
UPDATE duly.workflow_timers
   SET due_at = duly.now() + make_interval(secs => least($6 * 2 ^ tries, $7)),
       tries = least(tries + 1, 100),
       fence = fence + 1
 WHERE shard = $1 AND workflow = $2 AND kind = $3 AND node = $4 AND fence = $5
   AND due_at <= duly.now()
RETURNING workflow
