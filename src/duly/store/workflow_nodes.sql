-- fragment: unstarted
-- A node whose parents have let it run, and that neither waits for an instant, nor runs, nor has begun.
 WHERE timers.shard = $1
   AND timers.id = $2
   AND timers.holder IS NULL
   AND timers.due_at IS NULL
   AND timers.held_due_at IS NULL
   AND timers.parents_pending IS NULL
   AND timers.started_at IS NULL

-- name: read_live_node
-- A node that has not ended, for what is done about it under the lock of its workflow.
SELECT node.id, node.tenant, node.name, node.spec, timers.run_at, timers.started_at
  FROM duly.workflow_nodes AS node
  JOIN duly.timers ON timers.shard = node.shard AND timers.id = node.id
 WHERE node.shard = $1
   AND node.id = $2
   AND timers.holder IS NULL

-- name: read_named_parents
-- How those parents of a node ended that its `if` names.
SELECT parent.name, last.state, last.result
  FROM duly.workflow_nodes AS node
 CROSS JOIN LATERAL unnest(node.parents) AS edge(number)
  JOIN duly.workflow_nodes AS parent
    ON parent.shard = node.shard AND parent.id = duly.node_id(node.id, edge.number)
  JOIN LATERAL (
       SELECT * FROM duly.attempts
        WHERE attempts.shard = parent.shard AND attempts.id = coalesce(parent.source, parent.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 WHERE node.shard = $1
   AND node.id = $2
   AND parent.name = ANY ($3::text[])

-- name: release_node
-- A node whose step has decided is due, once and under the lock of its workflow. It was to run at $3:
-- neither its parents' time nor that of a pause counts for its lag.
UPDATE duly.timers
   SET due_at = duly.now(),
       run_at = least($3, duly.now())
-- include: workflow_nodes.unstarted
RETURNING timers.id, timers.tenant, timers.shard, timers.queue, timers.fence, timers.due_at,
          timers.priority, timers.type, timers.concurrency_key, timers.concurrency_limit, timers.host

-- name: begin_node
-- A node that no handler runs begins, once and under the lock of its workflow.
UPDATE duly.timers
   SET started_at = duly.now(),
       run_at = least($3, duly.now())
-- include: workflow_nodes.unstarted
RETURNING timers.id

-- name: lock
-- Before anything else of a change: the workflow's own row.
SELECT workflows.id, workflows.tenant, workflows.ended_at, workflows.stop_reason, workflows.callback,
       workflows.name, workflows.state, workflows.completed, workflows.failed, workflows.skipped,
       workflows.cancelled, workflows.nodes, workflows.generated, workflows.edges, workflows.live,
       workflows.created_at, workflows.paused_at, workflows.compensating_at, workflows.next_workflow,
       workflows.on_failure, workflows.compensated, workflows.compensations_failed,
       workflows.depth, workflows.root, duly.now() AS now
  FROM duly.workflows
 WHERE workflows.shard = $1 AND workflows.id = $2
   FOR NO KEY UPDATE OF workflows

-- name: number_nodes
-- Numbers for nodes that come later, under the lock of the row itself: of the graph, and of those that duly
-- makes itself. All live until they end, which each of them does, but for those ($7) that have completed in
-- an earlier workflow. An ended workflow gets none.
UPDATE duly.workflows
   SET nodes = workflows.nodes + $4 + $5,
       generated = workflows.generated + $5,
       live = workflows.live + $4 + $5 - $7,
       completed = workflows.completed + $7,
       edges = workflows.edges + $6
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NULL
RETURNING workflows.nodes - workflows.generated - $4 + 1 AS first_node,
          workflows.generated - $5 + 1 AS first_generated
