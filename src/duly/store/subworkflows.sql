-- name: read_start
-- What a node needs that starts a workflow.
SELECT tasks.payload
  FROM duly.tasks
 WHERE tasks.shard = $1 AND tasks.id = $2 AND tasks.tenant + 0 = $3

-- name: begin_inner
-- Once and under the lock of the workflow: from now on it counts the workflow inside, as a node counts its
-- parents, and ends with it.
UPDATE duly.timers
   SET started_at = duly.now(),
       run_at = least($3, duly.now()),
       wait_rule = 2,
       parents_pending = 1,
       parents_completed = 0,
       parents_failed = 0,
       parents_skipped = 0
 WHERE timers.shard = $1
   AND timers.id = $2
   AND timers.holder IS NULL
   AND timers.due_at IS NULL
   AND timers.held_due_at IS NULL
   AND timers.parents_pending IS NULL
   AND timers.started_at IS NULL
RETURNING timers.id

-- name: find_earlier
-- What a node started that runs again: the last workflow that stood for it in a chain of resumes, whose
-- nodes have the same numbers.
SELECT inside.id, inside.state
  FROM (SELECT chain.id
          FROM duly.workflows AS chain
         WHERE chain.shard = $1 AND chain.id = $2
         UNION ALL
        SELECT chain.id
          FROM duly.workflows AS chain
         WHERE chain.shard = $1 AND chain.root = $2) AS chain
  JOIN duly.workflows AS inside
    ON inside.shard = $1
   AND inside.parent_node = duly.node_id(chain.id, $3)
   AND inside.tenant + 0 = $4
 ORDER BY inside.id DESC
 LIMIT 1

-- name: read_inside
-- The workflow that a node stands for, as it ended.
SELECT workflows.id, workflows.state, workflows.stop_reason, workflows.completed, workflows.failed,
       workflows.skipped, workflows.cancelled
  FROM duly.workflows
 WHERE workflows.shard = $1
   AND workflows.parent_node = $2
   AND workflows.ended_at IS NOT NULL

-- name: read_results
-- What the last nodes of a graph answered, those after which nothing comes: so many, of so many bytes in
-- all, and one more that says that there are others.
SELECT found.name, found.result
  FROM (SELECT node.id, node.name, last.result,
               sum(octet_length(last.result)) OVER (ORDER BY node.id) - octet_length(last.result)
                   AS bytes_before
          FROM duly.workflow_nodes AS node
          JOIN LATERAL (
               SELECT attempts.result, attempts.state
                 FROM duly.attempts
                WHERE attempts.shard = node.shard
                  AND attempts.id = coalesce(node.source, node.id)
                  AND attempts.state IS NOT NULL
                ORDER BY attempts.fence DESC
                LIMIT 1) AS last ON true
         WHERE node.shard = $1
           AND node.id > $2
           AND node.id <= duly.node_id($2, 10000)
           AND cardinality(node.children) = 0
           AND last.state = 'COMPLETED'
           AND last.result IS NOT NULL) AS found
 WHERE found.bytes_before <= $4
 ORDER BY found.id
 LIMIT $3
