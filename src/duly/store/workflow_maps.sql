-- name: open_map
-- A map begins, once and under the lock of its workflow. From now on it counts its items as a node counts
-- its parents, and one more until no item is to come. Its parents have decided; where its only parent
-- hands over items ($7), that one still runs.
WITH opened AS (
    UPDATE duly.timers
       SET started_at = duly.now(),
           run_at = least($3, duly.now()),
           wait_rule = 2,
           parents_pending = 1,
           parents_completed = 0,
           parents_failed = 0,
           parents_skipped = 0,
           items_mark = $4,
           items_failed_max = $5
     WHERE timers.shard = $1
       AND timers.id = $2
       AND timers.holder IS NULL
       AND timers.due_at IS NULL
       AND timers.held_due_at IS NULL
       AND timers.started_at IS NULL
       AND (timers.parents_pending IS NULL OR $7 AND timers.parents_pending = 1)
 RETURNING timers.shard, timers.id, timers.tenant
)
INSERT INTO duly.workflow_maps (shard, tenant, workflow, node, total, earlier)
SELECT shard, tenant, duly.workflow_of(id), duly.node_number(id), $6, $8
  FROM opened
RETURNING node

-- name: read_map
-- A map that was opened: how far it is, and how its items stand, if it has not ended.
SELECT node.id, node.tenant, node.name, node.spec, maps.made, maps.handed, maps.total, maps.reason,
       maps.detail, maps.earlier, timers.id IS NOT NULL AS is_live, timers.parents_pending,
       timers.parents_completed, timers.parents_failed, timers.parents_skipped,
       timers.items_mark IS NOT NULL AS is_open
  FROM duly.workflow_nodes AS node
  JOIN duly.workflow_maps AS maps
    ON maps.shard = node.shard
   AND maps.workflow = duly.workflow_of(node.id)
   AND maps.node = duly.node_number(node.id)
  LEFT JOIN duly.timers ON timers.shard = node.shard AND timers.id = node.id
 WHERE node.shard = $1
   AND node.id = $2

-- name: find_earlier
-- Of a map in a resumed workflow: the map of an earlier one whose completed items stand for its own, also
-- over a chain of resumes. What it is given must be as it was: none of its parents runs again, and its
-- payload is no new one. A map of which every item completed runs again as a whole; and one over pages, whose
-- parent hands them over again.
SELECT earlier.id
  FROM duly.workflows
  JOIN duly.workflow_nodes AS node ON node.shard = $1 AND node.id = $2
  JOIN duly.tasks ON tasks.shard = node.shard AND tasks.id = node.id
  JOIN duly.workflow_nodes AS resumed
    ON resumed.shard = $1
   AND resumed.id = duly.node_id(workflows.resumed_from, duly.node_number($2))
 CROSS JOIN LATERAL (SELECT coalesce(resumed.source, resumed.id) AS id) AS earlier
  JOIN duly.tasks AS given
    ON given.shard = $1 AND given.id = earlier.id AND given.payload = tasks.payload
  JOIN duly.workflow_maps AS maps
    ON maps.shard = $1
   AND maps.workflow = duly.workflow_of(earlier.id)
   AND maps.node = duly.node_number($2)
  LEFT JOIN LATERAL (
       SELECT attempts.result::jsonb AS counts
         FROM duly.attempts
        WHERE attempts.shard = $1 AND attempts.id = earlier.id AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 WHERE workflows.shard = $1
   AND workflows.id = duly.workflow_of($2)
   AND (last.counts IS NULL OR last.counts ->> 'completed' <> last.counts ->> 'items')
   AND NOT EXISTS (SELECT FROM unnest(node.parents) AS edge(number)
                     JOIN duly.workflow_nodes AS parent
                       ON parent.shard = $1 AND parent.id = duly.node_id($2, edge.number)
                    WHERE parent.source IS NULL)

-- name: read_earlier_items
-- Of the map that is reused, the next items that completed: whose run stands for each.
SELECT item.map_index, ran.id AS source
  FROM duly.workflow_nodes AS item
 CROSS JOIN LATERAL (SELECT coalesce(item.source, item.id) AS id) AS ran
  JOIN LATERAL (
       SELECT attempts.state
         FROM duly.attempts
        WHERE attempts.shard = $1 AND attempts.id = ran.id AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON last.state = 'COMPLETED'
 WHERE item.shard = $1
   AND duly.workflow_of(item.id) = duly.workflow_of($2)
   AND item.map_number = duly.node_number($2)
   AND item.map_index >= $3
   AND item.map_index < $4

-- name: make_items
-- The next items of a map, all due at once: their nodes, tasks and timers, made after the task of the map.
-- The map counts them, and is so far. Each item is its task's payload, or beside the map's own payload in
-- it; without contents, its place is the item. Those with a source ($7, so many: $8) have completed in an
-- earlier workflow, and get no task. An expander that is late finds the map further.
WITH map AS (
    SELECT node.shard, node.id, node.tenant, node.name, tasks.pool, tasks.priority, tasks.timeout_ms,
           tasks.type, tasks.policy, tasks.url, tasks.execution_key, tasks.tags, tasks.traceparent,
           CASE WHEN tasks.payload = 'null' THEN ''
                WHEN tasks.payload ~ '^\s*\{\s*\}\s*$' THEN '{"item":'
                ELSE left(rtrim(tasks.payload, E' \n\r\t'), -1) || ',"item":' END AS before_item,
           CASE WHEN tasks.payload = 'null' THEN '' ELSE '}' END AS after_item
      FROM duly.workflow_nodes AS node
      JOIN duly.tasks ON tasks.shard = node.shard AND tasks.id = node.id
     WHERE node.shard = $1
       AND node.id = $2
), noted AS (
    UPDATE duly.workflow_maps
       SET made = workflow_maps.made + $5
     WHERE workflow_maps.shard = $1
       AND workflow_maps.workflow = duly.workflow_of($2)
       AND workflow_maps.node = duly.node_number($2)
       AND workflow_maps.made = $3
       AND workflow_maps.reason IS NULL
 RETURNING workflow_maps.node
), counted AS (
    UPDATE duly.timers
       SET parents_pending = timers.parents_pending + $5 - $8,
           parents_completed = timers.parents_completed + $8
      FROM noted
     WHERE timers.shard = $1
       AND timers.id = $2
       AND timers.started_at IS NOT NULL
       AND timers.parents_pending IS NOT NULL
       AND timers.items_mark IS NOT NULL
 RETURNING timers.id
), item AS (
    SELECT duly.node_id($2, $4 + place.number - 1) AS id, $3 + place.number - 1 AS map_index,
           coalesce(place.content, ($3 + place.number - 1)::text) AS content, place.source
      FROM counted,
           ROWS FROM (generate_series(1, $5), unnest($6::text[]), unnest($7::uuid[]))
               AS place(number, content, source)
), graphed AS (
    INSERT INTO duly.workflow_nodes (shard, id, tenant, name, wait_rule, delay_ms, parents, children,
                                     map_number, map_index, source)
    SELECT map.shard, item.id, map.tenant, map.name || '[' || item.map_index || ']', 0, 0, '{}',
           ARRAY[duly.node_number($2)], duly.node_number($2), item.map_index, item.source
      FROM map, item
), arriving AS (
    SELECT map.shard, item.id, map.tenant, map.pool, map.priority, map.timeout_ms,
           duly.now() AS run_at, NULL::timestamptz AS start_by, map.type,
           map.before_item || item.content || map.after_item AS payload, map.policy, map.url,
           map.execution_key || ':' || item.map_index AS execution_key, map.tags,
           NULL::uuid AS replay_of, map.traceparent
      FROM map, item
     WHERE item.source IS NULL
),
-- include: insert.task_and_timer holder=NULL::uuid lease_s=0 host=NULL::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
SELECT map.tenant, duly.timer_queue(map.pool, map.priority) AS queue, duly.now() AS now, map.priority,
       map.type, duly.concurrency_key_of(map.policy) AS concurrency_key,
       duly.concurrency_limit_of(map.policy) AS concurrency_limit, duly.host_of(map.url) AS host
  FROM map, counted

-- name: know_total
-- No more items are handed over: how many there are, and how many of them may fail.
WITH known AS (
    UPDATE duly.workflow_maps
       SET total = workflow_maps.handed
     WHERE workflow_maps.shard = $1
       AND workflow_maps.workflow = duly.workflow_of($2)
       AND workflow_maps.node = duly.node_number($2)
       AND workflow_maps.total IS NULL
 RETURNING workflow_maps.node
)
UPDATE duly.timers
   SET items_failed_max = $3
  FROM known
 WHERE timers.shard = $1
   AND timers.id = $2
   AND timers.started_at IS NOT NULL
   AND timers.parents_pending IS NOT NULL
RETURNING timers.id

-- name: close_map
-- No more items are made: the map ends with the last that is open. With no such item, nothing is pending.
UPDATE duly.timers
   SET parents_pending = nullif(timers.parents_pending - 1, 0),
       items_mark = NULL
 WHERE timers.shard = $1
   AND timers.id = $2
   AND timers.started_at IS NOT NULL
   AND timers.parents_pending IS NOT NULL
   AND timers.items_mark IS NOT NULL
RETURNING timers.parents_pending

-- name: note_failure
-- A map will fail, for the first reason that was found: its items that do not run are cancelled, and no
-- more are made.
WITH noted AS (
    UPDATE duly.workflow_maps
       SET reason = $3, detail = $4
     WHERE workflow_maps.shard = $1
       AND workflow_maps.workflow = duly.workflow_of($2)
       AND workflow_maps.node = duly.node_number($2)
       AND workflow_maps.reason IS NULL
 RETURNING workflow_maps.node
)
UPDATE duly.timers
   SET items_failed_max = NULL
  FROM noted
 WHERE timers.shard = $1
   AND timers.id = $2
   AND timers.started_at IS NOT NULL
RETURNING timers.id

-- name: list_open_items
-- The next items of a map that a cancel has not reached: few are open at a time, of all maps of a workflow.
SELECT timers.id
  FROM duly.timers
  JOIN duly.workflow_nodes AS node ON node.shard = timers.shard AND node.id = timers.id
 WHERE timers.shard = $1
   AND timers.id > duly.node_id($2, 10000)
   AND timers.id <= duly.node_id($2, 16777215)
   AND NOT timers.cancel_requested
   AND node.map_number = duly.node_number($2)
 ORDER BY timers.shard, timers.id
 LIMIT $3

-- name: read_pages
-- Items that were handed over, from the next one that has no task.
SELECT first_index, items, content
  FROM duly.workflow_map_pages
 WHERE shard = $1
   AND workflow = duly.workflow_of($2)
   AND node = duly.node_number($2)
   AND first_index < $3
 ORDER BY first_index

-- name: drop_pages
-- All of their items have tasks.
DELETE FROM duly.workflow_map_pages
 WHERE shard = $1
   AND workflow = duly.workflow_of($2)
   AND node = duly.node_number($2)
   AND first_index + items <= $3
