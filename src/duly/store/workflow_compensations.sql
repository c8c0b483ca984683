-- fragment: before_first
-- The id before the first compensation of a workflow: these are its last nodes. By their ids, because a
-- tenant's session finds rows by columns alone; without one, there is nothing behind it.
            SELECT duly.node_id(workflows.id, 10000 + workflows.generated - workflows.compensated
                                              - workflows.compensations_failed
                                              - CASE WHEN workflows.compensating_at IS NULL THEN 0
                                                     ELSE workflows.live END)
              FROM duly.workflows
             WHERE workflows.shard = :shard AND workflows.id = :workflow

-- fragment: made
-- The compensations of a workflow, as many as a reader looks at, and what each of them undoes.
made AS MATERIALIZED (
    SELECT node.shard, node.id, node.compensates, duly.node_id(node.id, node.compensates) AS undone_id
      FROM duly.workflow_nodes AS node
     WHERE node.shard = $2
       AND node.id > (
-- include: workflow_compensations.before_first shard=$2 workflow=$3
           )
       AND node.id <= duly.node_id($3, 16777215)
       AND node.compensates IS NOT NULL
       AND node.tenant + 0 = $1
     ORDER BY node.shard, node.id
     LIMIT $4
)

-- name: read_position
-- How far a workflow is undone: the node whose compensation was made last, when it ended, and of a map
-- which item. Nothing, if none was made yet.
WITH made AS MATERIALIZED (
    SELECT workflow_nodes.shard, workflow_nodes.id,
           duly.node_id(workflow_nodes.id, workflow_nodes.compensates) AS undone_id
      FROM duly.workflow_nodes
     WHERE workflow_nodes.shard = $1
       AND workflow_nodes.id = $2
       AND workflow_nodes.compensates IS NOT NULL
), undone AS MATERIALIZED (
    SELECT made.shard, undone.map_index, made.undone_id,
           CASE WHEN undone.map_number IS NULL THEN made.undone_id
                ELSE duly.node_id(made.id, undone.map_number) END AS node_id
      FROM made
      JOIN duly.workflow_nodes AS undone
        ON undone.shard = made.shard AND undone.id = made.undone_id
), node AS MATERIALIZED (
    SELECT node.shard, node.name, node.kind, node.spec, duly.node_number(node.id) AS number,
           coalesce(node.source, node.id) AS ran, undone.map_index, undone.undone_id
      FROM undone
      JOIN duly.workflow_nodes AS node ON node.shard = undone.shard AND node.id = undone.node_id
)
SELECT node.number, node.name, node.kind, node.spec, last.ended_at, node.map_index, node.undone_id
  FROM node
  JOIN LATERAL (
       SELECT attempts.ended_at
         FROM duly.attempts
        WHERE attempts.shard = node.shard AND attempts.id = node.ran AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true

-- name: list_ended
-- The next nodes of a graph that can be undone, the last that completed first. Maps are among them however
-- they ended: their items are asked about apart.
WITH node AS MATERIALIZED (
    SELECT workflow_nodes.shard, workflow_nodes.name, workflow_nodes.kind, workflow_nodes.spec,
           duly.node_number(workflow_nodes.id) AS number,
           coalesce(workflow_nodes.source, workflow_nodes.id) AS ran
      FROM duly.workflow_nodes
     WHERE workflow_nodes.shard = $1
       AND workflow_nodes.id > $2
       AND workflow_nodes.id <= duly.node_id($2, 10000)
       AND (workflow_nodes.spec::jsonb ->> 'compensate') IS NOT NULL
)
SELECT node.number, node.name, node.kind, node.spec, last.ended_at, NULL::integer AS map_index,
       NULL::uuid AS undone_id
  FROM node
  JOIN LATERAL (
       SELECT attempts.state, attempts.ended_at
         FROM duly.attempts
        WHERE attempts.shard = node.shard AND attempts.id = node.ran AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 WHERE (node.kind = 1 OR last.state = 'COMPLETED')
   AND ($3::timestamptz IS NULL OR (last.ended_at, node.number) < ($3, $4))
 ORDER BY last.ended_at DESC, node.number DESC
 LIMIT $5

-- name: list_items
-- The next items of a map that completed, from the last place to the first.
SELECT duly.node_number(node.id) AS number
  FROM duly.workflow_nodes AS node
  JOIN LATERAL (
       SELECT attempts.state
         FROM duly.attempts
        WHERE attempts.shard = node.shard AND attempts.id = coalesce(node.source, node.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON last.state = 'COMPLETED'
 WHERE node.shard = $1
   AND duly.workflow_of(node.id) = $2
   AND node.map_number = $3
   AND ($4::integer IS NULL OR node.map_index < $4)
 ORDER BY node.map_index DESC
 LIMIT $5

-- name: make_compensations
-- What undoes the given nodes, in that order: their nodes, tasks and timers. In a chain ($5) each waits for
-- the end of the one before it, however that ended; else all are due. A task without a payload of its own
-- gets that of the one that it undoes, if that was not erased. Answers those that are due.
WITH undone AS (
    SELECT node.shard, node.tenant, node.name, sent.number, sent.place,
           duly.node_id($2, ($3 + sent.place - 1)::integer) AS id,
           tasks.payload, tasks.execution_key, tasks.traceparent,
           definition.spec::jsonb -> 'compensate' AS asked
      FROM unnest($4::integer[]) WITH ORDINALITY AS sent(number, place)
      JOIN duly.workflow_nodes AS node
        ON node.shard = $1 AND node.id = duly.node_id($2, sent.number)
      JOIN duly.workflow_nodes AS definition
        ON definition.shard = $1
       AND definition.id = duly.node_id($2, coalesce(node.map_number, sent.number))
      JOIN duly.tasks ON tasks.shard = node.shard AND tasks.id = coalesce(node.source, node.id)
), graphed AS (
    INSERT INTO duly.workflow_nodes (shard, id, tenant, name, wait_rule, delay_ms, parents, children,
                                     compensates)
    SELECT shard, id, tenant, name || ':compensate', 2, 0,
           CASE WHEN $5 AND place > 1 THEN ARRAY[duly.node_number(id) - 1] ELSE '{}' END,
           CASE WHEN $5 AND place < cardinality($4) THEN ARRAY[duly.node_number(id) + 1] ELSE '{}' END,
           number
      FROM undone
), arriving AS (
    SELECT undone.shard, undone.id, undone.tenant,
           CASE WHEN asked ->> 'url' IS NULL THEN pools.number ELSE 0 END AS pool,
           (asked ->> 'priority')::smallint AS priority, (asked ->> 'timeout_ms')::integer AS timeout_ms,
           duly.now() AS run_at, NULL::timestamptz AS start_by, asked ->> 'type' AS type,
           coalesce(asked ->> 'payload', undone.payload, 'null') AS payload, asked ->> 'policy' AS policy,
           asked ->> 'url' AS url, undone.execution_key || ':compensate' AS execution_key,
           nullif(asked -> 'tags', 'null') AS tags, NULL::uuid AS replay_of, undone.traceparent
      FROM undone
      LEFT JOIN duly.pools ON pools.tenant = undone.tenant AND pools.name = asked ->> 'pool'
),
-- include: insert.task_and_timer holder=NULL::uuid lease_s=0 host=NULL::text rows=stored rule="CASE WHEN $5 AND duly.node_number(id) > $3 THEN 2::smallint END" pending="CASE WHEN $5 AND duly.node_number(id) > $3 THEN 1 END" is_step=false
, placed AS (
    INSERT INTO duly.placements (tenant, shard, queue)
    SELECT DISTINCT tenant, shard, duly.timer_queue(pool, priority) AS queue
      FROM stored
     ORDER BY tenant, shard, queue
        ON CONFLICT DO NOTHING
)
SELECT id, tenant, shard, duly.timer_queue(pool, priority) AS queue, 0 AS fence, run_at AS due_at, priority,
       type, duly.concurrency_key_of(policy) AS concurrency_key,
       duly.concurrency_limit_of(policy) AS concurrency_limit, duly.host_of(url) AS host
  FROM stored
 WHERE NOT $5 OR duly.node_number(id) = $3
 ORDER BY id

-- name: read_undone
-- Of each node of a graph how far it is undone; of a map, its items added up, as far as so many
-- compensations are looked at.
WITH
-- include: workflow_compensations.made
SELECT coalesce(undone.map_number, made.compensates) AS number, count(timers.id) AS live,
       bool_or(timers.holder IS NOT NULL) AS is_running, bool_or(timers.due_at IS NOT NULL) AS is_due,
       count(*) FILTER (WHERE last.state IN ('FAILED', 'CANCELLED')) AS failed
  FROM made
  JOIN duly.workflow_nodes AS undone ON undone.shard = made.shard AND undone.id = made.undone_id
  LEFT JOIN duly.timers ON timers.shard = made.shard AND timers.id = made.id
  LEFT JOIN LATERAL (
       SELECT attempts.state
         FROM duly.attempts
        WHERE attempts.shard = made.shard AND attempts.id = made.id AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 GROUP BY 1

-- name: read_not_undone
-- What stays done because what undoes it failed or was cancelled: the first, as far as so many
-- compensations are looked at.
WITH
-- include: workflow_compensations.made
SELECT undone.name
  FROM made
  JOIN LATERAL (
       SELECT attempts.state
         FROM duly.attempts
        WHERE attempts.shard = made.shard AND attempts.id = made.id AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON last.state IN ('FAILED', 'CANCELLED')
  JOIN duly.workflow_nodes AS undone ON undone.shard = made.shard AND undone.id = made.undone_id
 ORDER BY made.id
 LIMIT $5

-- name: has_completed_items
-- Whether an item of a map completed that comes before a node, as far as so many are looked at.
WITH item AS MATERIALIZED (
    SELECT node.shard, coalesce(node.source, node.id) AS ran
      FROM duly.workflow_nodes AS node
     WHERE node.shard = $1
       AND node.id > duly.node_id($2, 10000)
       AND node.id < $4
       AND node.map_number = $3
     ORDER BY node.shard DESC, node.id DESC
     LIMIT $5
)
SELECT EXISTS (SELECT
                 FROM item
                 JOIN duly.attempts
                   ON attempts.shard = item.shard AND attempts.id = item.ran
                  AND attempts.state = 'COMPLETED') AS has_any

-- name: end_compensated
-- The end of a workflow of which nothing more is undone; its last node ended before.
UPDATE duly.workflows
   SET ended_at = duly.now(),
       state = duly.workflow_end(workflows.stop_reason, workflows.failed - workflows.items_failed,
                                 workflows.cancelled - workflows.items_cancelled, workflows.skipped)
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.compensating_at IS NOT NULL
   AND workflows.live = 0
   AND workflows.ended_at IS NULL
RETURNING workflows.id

-- name: tell_end
-- What follows that end.
SELECT id, tenant, shard, queue, fence, due_at, priority, type, concurrency_key, concurrency_limit, host
  FROM duly.workflow_ended(ARRAY[$1::uuid])
