-- name: stop
-- Under the lock of the row itself: from now on nothing is released. The first reason stands, and one
-- that has ended stays as it is.
UPDATE duly.workflows
   SET stop_reason = coalesce(workflows.stop_reason, $4)
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NULL
RETURNING workflows.id

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

-- name: arm
-- Something to do for a workflow at an instant from now; one of a kind and node at a time.
INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at, cursor)
VALUES ($1, $2, $3, $4, $5, duly.now() + make_interval(secs => $6), $7)
    ON CONFLICT (shard, workflow, kind, node) DO UPDATE
   SET due_at = least(held.due_at, excluded.due_at),
       cursor = excluded.cursor,
       fence = held.fence + 1

-- name: find_due_timers
-- What workflows of these shards have to do by now or soon, longest overdue first, and how long until then.
SELECT shard, tenant, workflow, kind, node, fence, cursor,
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

-- name: lock
-- Before anything else of a change: the workflow's own row.
SELECT workflows.id, workflows.tenant, workflows.ended_at, workflows.stop_reason, workflows.callback,
       workflows.name, workflows.state, workflows.completed, workflows.failed, workflows.skipped,
       workflows.cancelled, workflows.nodes, workflows.created_at, workflows.paused_at,
       workflows.next_workflow
  FROM duly.workflows
 WHERE workflows.shard = $1 AND workflows.id = $2
   FOR NO KEY UPDATE OF workflows

-- name: cascade
-- The rest of a long cascade of skips: these nodes were skipped, and their children were not told.
SELECT id, tenant, shard, queue, fence, due_at, priority, type, concurrency_key,
       concurrency_limit, host
  FROM duly.release_children($1::uuid[], array_fill('SKIPPED'::text, ARRAY[cardinality($1::uuid[])]))

-- name: number_nodes
-- Numbers for nodes that come later, under the lock of the row itself: of the graph, and of those that duly
-- makes itself. All live until they end, which each of them does. An ended workflow gets none.
UPDATE duly.workflows
   SET nodes = workflows.nodes + $4 + $5,
       generated = workflows.generated + $5,
       live = workflows.live + $4 + $5,
       edges = workflows.edges + $6
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NULL
RETURNING workflows.nodes - workflows.generated - $4 + 1 AS first_node,
          workflows.generated - $5 + 1 AS first_generated
