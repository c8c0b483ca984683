-- name: read_earlier
-- The graph of a workflow, without what duly made for it, and how each node ended: with the record of the
-- node whose run stands for it. Types and erasures are those of that one's task.
SELECT duly.node_number(node.id) AS number, node.name, node.wait_rule, node.parents, node.children,
       node.kind, tasks.type, last.state,
       node.kind = 1 AND (node.spec::jsonb #>> '{map,path}') IS NULL
           AND (node.spec::jsonb #>> '{map,count}') IS NULL AS is_paged,
       EXISTS (SELECT FROM duly.tombstones
                WHERE tombstones.shard = node.shard
                  AND tombstones.id = coalesce(node.source, node.id)) AS is_erased
  FROM duly.workflow_nodes AS node
  LEFT JOIN duly.tasks
    ON tasks.shard = node.shard AND tasks.id = coalesce(node.source, node.id)
  LEFT JOIN LATERAL (
       SELECT attempts.state
         FROM duly.attempts
        WHERE attempts.shard = node.shard
          AND attempts.id = coalesce(node.source, node.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 WHERE node.shard = $2
   AND node.id > $3
   AND node.id <= $4
   AND node.tenant + 0 = $1
 ORDER BY node.shard, node.id

-- name: lock_earlier
-- Of what has ended nothing changes but this: since when it is reused. Under the lock of its row, which
-- retention asks about after it, so that nothing is copied from what is being deleted.
UPDATE duly.workflows
   SET resumed_at = duly.now()
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NOT NULL
   AND workflows.compensating_at IS NULL
RETURNING workflows.id

-- name: read_end
-- Why it cannot be resumed.
SELECT workflows.ended_at
  FROM duly.workflows
 WHERE workflows.shard = $1 AND workflows.id = $2 AND workflows.tenant + 0 = $3

-- name: begin_resumed
-- The new workflow with the graph of the earlier one; its deadline is as far away as that was. A node that
-- is reused says whose run stands for it, also over a chain of resumes. Nothing, if another one of that
-- chain lives.
WITH begun AS (
    INSERT INTO duly.workflows (shard, id, tenant, name, nodes, live, edges, completed, failed, skipped,
                                cancelled, created_at, deadline_at, on_failure, callback, tags, type,
                                type_version, depth, parent_node, resumed_from, root)
    SELECT earlier.shard, $4, earlier.tenant, earlier.name, $5, cardinality($6::integer[]), $7, $8, $9,
           $10, $11, duly.now(), duly.now() + (earlier.deadline_at - earlier.created_at),
           earlier.on_failure, earlier.callback, earlier.tags, earlier.type, earlier.type_version,
           earlier.depth, $12, earlier.id, coalesce(earlier.root, earlier.id)
      FROM duly.workflows AS earlier
     WHERE earlier.shard = $1 AND earlier.id = $2 AND earlier.tenant + 0 = $3
        ON CONFLICT (shard, root) WHERE root IS NOT NULL AND ended_at IS NULL DO NOTHING
 RETURNING shard, id, tenant, deadline_at
), deadlines AS (
    INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
    SELECT shard, tenant, id, 'deadline', deadline_at FROM begun WHERE deadline_at IS NOT NULL
), graph AS (
    INSERT INTO duly.workflow_nodes (shard, id, tenant, name, wait_rule, delay_ms, parents, children, kind,
                                     is_step, spec, source)
    SELECT begun.shard, duly.node_id(begun.id, duly.node_number(node.id)), begun.tenant, node.name,
           node.wait_rule, node.delay_ms, node.parents, node.children, node.kind, node.is_step, node.spec,
           CASE WHEN duly.node_number(node.id) <> ALL ($6::integer[])
                THEN coalesce(node.source, node.id) END
      FROM begun
      JOIN duly.workflow_nodes AS node
        ON node.shard = $1 AND node.id > $2 AND node.id <= duly.node_id($2, $5)
)
SELECT id FROM begun

-- name: arm_resumed
-- Those that run again, in the same transaction: their tasks as they were, but for payloads that are given
-- anew. Each waits for all of its parents; what is told of those that do not run again comes next. Answers
-- the steps of those without parents.
WITH asked AS (
    SELECT number, payload FROM unnest($4::integer[], $5::text[]) AS sent(number, payload)
), arriving AS (
    SELECT tasks.shard, duly.node_id($3, asked.number) AS id, tasks.tenant, tasks.pool, tasks.priority,
           tasks.timeout_ms, duly.now() AS run_at, NULL::timestamptz AS start_by, tasks.type,
           coalesce(asked.payload, tasks.payload) AS payload, tasks.policy, tasks.url,
           tasks.execution_key, tasks.tags, NULL::uuid AS replay_of, NULL::text AS traceparent
      FROM asked
      JOIN duly.workflow_nodes AS node
        ON node.shard = $1 AND node.id = duly.node_id($2, asked.number)
      JOIN duly.tasks
        ON tasks.shard = node.shard AND tasks.id = coalesce(node.source, node.id)
),
-- include: insert.task_and_timer holder=NULL::uuid lease_s=0 host=NULL::text rows="stored JOIN duly.workflow_nodes USING (shard, id, tenant)" rule="CASE WHEN cardinality(parents) > 0 THEN wait_rule END" pending="nullif(cardinality(parents), 0)" is_step=is_step
, placed AS (
    INSERT INTO duly.placements (tenant, shard, queue)
    SELECT DISTINCT tenant, shard, duly.timer_queue(pool, priority) AS queue
      FROM stored
     ORDER BY tenant, shard, queue
        ON CONFLICT DO NOTHING
)
INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, node, due_at)
SELECT node.shard, node.tenant, $3, 'step', duly.node_number(node.id), duly.now()
  FROM stored
  JOIN duly.workflow_nodes AS node ON node.shard = stored.shard AND node.id = stored.id
 WHERE node.is_step AND cardinality(node.parents) = 0
RETURNING workflow_timers.node

-- name: tell_resumed
-- How the parents ended that do not run again: their children count it as if it had been now.
SELECT id, tenant, shard, queue, fence, due_at, priority, type, concurrency_key, concurrency_limit, host
  FROM duly.release_children($1::uuid[], $2::text[], 1)

-- name: pace_due
-- What runs first does so at a rate, in the order of its numbers, and waits for no delay again: tasks that
-- are due, and steps that decide. No ticket names these yet.
WITH first AS (
    SELECT begun.number, row_number() OVER (ORDER BY begun.number) - 1 AS place
      FROM (SELECT duly.node_number(due.id) AS number
              FROM duly.timers AS due
             WHERE due.shard = $1
               AND due.id > $2
               AND due.id <= $3
               AND due.tenant + 0 = $4
               AND due.due_at IS NOT NULL
             UNION ALL
            SELECT step.node
              FROM duly.workflow_timers AS step
             WHERE step.shard = $1 AND step.workflow = $2 AND step.kind = 'step') AS begun
), steps AS (
    UPDATE duly.workflow_timers
       SET due_at = duly.now() + make_interval(secs => first.place * $5)
      FROM first
     WHERE workflow_timers.shard = $1
       AND workflow_timers.workflow = $2
       AND workflow_timers.kind = 'step'
       AND workflow_timers.node = first.number
       AND workflow_timers.tenant + 0 = $4
)
UPDATE duly.timers
   SET due_at = duly.now() + make_interval(secs => first.place * $5),
       run_at = duly.now() + make_interval(secs => first.place * $5)
  FROM first
 WHERE timers.shard = $1
   AND timers.id = duly.node_id($2, first.number)
   AND timers.tenant + 0 = $4
   AND timers.due_at IS NOT NULL
   AND timers.holder IS NULL
   AND timers.fence = 0
RETURNING timers.id, timers.tenant, timers.shard, timers.queue, timers.fence, timers.due_at,
          timers.priority, timers.type, timers.concurrency_key, timers.concurrency_limit, timers.host

-- name: find_living
-- The one of a chain of resumes that lives; a second statement, to see what the winner committed.
SELECT workflows.id
  FROM duly.workflows
  JOIN duly.workflows AS earlier
    ON earlier.shard = $1 AND earlier.id = $2 AND earlier.tenant + 0 = $3
 WHERE workflows.shard = earlier.shard
   AND workflows.root = coalesce(earlier.root, earlier.id)
   AND workflows.ended_at IS NULL
