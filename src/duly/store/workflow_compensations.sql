-- name: read_position
-- How far a workflow is undone: the node whose compensation was made last, when it ended, and of a map
-- which item. Nothing, if none was made yet.
SELECT duly.node_number(node.id) AS number, node.kind, node.spec, last.ended_at, undone.map_index
  FROM duly.workflow_nodes AS made
  JOIN duly.workflow_nodes AS undone
    ON undone.shard = made.shard AND undone.id = duly.node_id(made.id, made.compensates)
  JOIN duly.workflow_nodes AS node
    ON node.shard = made.shard
   AND node.id = duly.node_id(made.id, coalesce(undone.map_number, made.compensates))
  JOIN LATERAL (
       SELECT attempts.ended_at
         FROM duly.attempts
        WHERE attempts.shard = node.shard AND attempts.id = coalesce(node.source, node.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 WHERE made.shard = $1
   AND made.id = $2

-- name: list_ended
-- The next nodes of a graph that can be undone, the last that completed first. Maps are among them however
-- they ended: their items are asked about apart.
SELECT duly.node_number(node.id) AS number, node.kind, node.spec, last.ended_at, NULL::integer AS map_index
  FROM duly.workflow_nodes AS node
  JOIN LATERAL (
       SELECT attempts.state, attempts.ended_at
         FROM duly.attempts
        WHERE attempts.shard = node.shard AND attempts.id = coalesce(node.source, node.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 WHERE node.shard = $1
   AND node.id > $2
   AND node.id <= duly.node_id($2, 10000)
   AND (node.spec::jsonb ->> 'compensate') IS NOT NULL
   AND (node.kind = 1 OR last.state = 'COMPLETED')
   AND ($3::timestamptz IS NULL OR (last.ended_at, duly.node_number(node.id)) < ($3, $4))
 ORDER BY last.ended_at DESC, duly.node_number(node.id) DESC
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
SELECT coalesce(undone.map_number, made.compensates) AS number, count(timers.id) AS live,
       bool_or(timers.holder IS NOT NULL) AS is_running, bool_or(timers.due_at IS NOT NULL) AS is_due,
       count(*) FILTER (WHERE last.state IN ('FAILED', 'CANCELLED')) AS failed
  FROM (SELECT node.shard, node.id, node.compensates
          FROM duly.workflow_nodes AS node
         WHERE node.shard = $2
           AND duly.workflow_of(node.id) = $3
           AND node.compensates IS NOT NULL
           AND node.tenant + 0 = $1
         ORDER BY node.compensates
         LIMIT $4) AS made
  JOIN duly.workflow_nodes AS undone
    ON undone.shard = made.shard AND undone.id = duly.node_id($3, made.compensates)
  LEFT JOIN duly.timers ON timers.shard = made.shard AND timers.id = made.id
  LEFT JOIN LATERAL (
       SELECT attempts.state
         FROM duly.attempts
        WHERE attempts.shard = made.shard AND attempts.id = made.id AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 GROUP BY 1

-- name: read_not_undone
-- What stays done, though it could have been undone: what undoes it failed or was cancelled; or it was
-- never made, because the workflow was cancelled. Of a map that was not reached, only the map. The first,
-- as far as so many nodes are looked at.
WITH made AS (
    SELECT node.shard, node.id, node.compensates
      FROM duly.workflow_nodes AS node
     WHERE node.shard = $2
       AND duly.workflow_of(node.id) = $3
       AND node.compensates IS NOT NULL
       AND node.tenant + 0 = $1
     ORDER BY node.compensates
     LIMIT $4
), failed AS (
    SELECT duly.node_id($3, made.compensates) AS id
      FROM made
      JOIN LATERAL (
           SELECT attempts.state
             FROM duly.attempts
            WHERE attempts.shard = made.shard AND attempts.id = made.id
              AND attempts.state IS NOT NULL
            ORDER BY attempts.fence DESC
            LIMIT 1) AS last ON last.state IN ('FAILED', 'CANCELLED')
), left_over AS (
    SELECT node.id
      FROM duly.workflow_nodes AS node
      JOIN LATERAL (
           SELECT attempts.state
             FROM duly.attempts
            WHERE attempts.shard = node.shard AND attempts.id = coalesce(node.source, node.id)
              AND attempts.state IS NOT NULL
            ORDER BY attempts.fence DESC
            LIMIT 1) AS last ON true
     WHERE $6
       AND node.shard = $2
       AND node.id > $3
       AND node.id <= duly.node_id($3, 10000)
       AND node.tenant + 0 = $1
       AND (node.spec::jsonb ->> 'compensate') IS NOT NULL
       AND CASE WHEN node.kind = 1
                THEN EXISTS (
                     SELECT FROM (SELECT item.shard, item.id, coalesce(item.source, item.id) AS ran
                                    FROM duly.workflow_nodes AS item
                                   WHERE item.shard = node.shard
                                     AND duly.workflow_of(item.id) = $3
                                     AND item.map_number = duly.node_number(node.id)
                                   ORDER BY item.map_index
                                   LIMIT $4) AS item
                      WHERE EXISTS (SELECT FROM duly.attempts
                                     WHERE attempts.shard = item.shard AND attempts.id = item.ran
                                       AND attempts.state = 'COMPLETED')
                        AND NOT EXISTS (SELECT FROM duly.workflow_nodes AS found
                                         WHERE found.shard = item.shard
                                           AND duly.workflow_of(found.id) = $3
                                           AND found.compensates = duly.node_number(item.id)))
                ELSE last.state = 'COMPLETED'
                     AND NOT EXISTS (SELECT FROM duly.workflow_nodes AS found
                                      WHERE found.shard = node.shard
                                        AND duly.workflow_of(found.id) = $3
                                        AND found.compensates = duly.node_number(node.id)) END
)
SELECT node.name
  FROM (SELECT id FROM failed UNION ALL SELECT id FROM left_over) AS kept
  JOIN duly.workflow_nodes AS node ON node.shard = $2 AND node.id = kept.id
 ORDER BY node.id
 LIMIT $5

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
