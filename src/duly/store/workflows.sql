-- fragment: nodes
-- The rows of nodes whose workflow `stands`. Plain nodes need no kind; a step without parents is armed at
-- once.
graphs AS (
    INSERT INTO duly.workflow_nodes (shard, id, tenant, name, wait_rule, delay_ms, parents, children,
                                     kind, is_step, spec)
    SELECT shard, id, tenant, name, wait_rule, delay_ms, parents::integer[], children::integer[],
           coalesce(kind, 0), coalesce(is_step, false), spec
      FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::text[], $5::smallint[],
                  $6::bigint[], $7::text[], $8::text[], $9::smallint[], $10::boolean[], $11::text[])
           AS sent(shard, id, tenant, name, wait_rule, delay_ms, parents, children, kind, is_step, spec)
     WHERE :stands
), steps AS (
    INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, node, due_at)
    SELECT shard, tenant, duly.workflow_of(id), 'step', duly.node_number(id),
           duly.now() + delay_ms * interval '1 millisecond'
      FROM unnest($12::smallint[], $13::uuid[], $14::integer[], $15::bigint[])
           AS sent(shard, id, tenant, delay_ms)
     WHERE :stands
)

-- fragment: workflows
-- The rows of new workflows whose id `stands`. A workflow of another with the same id is refused as a
-- whole.
begun AS (
    INSERT INTO duly.workflows (shard, id, tenant, name, nodes, live, edges, created_at, deadline_at,
                                on_failure, callback, tags, type, type_version, parent_node, depth)
    SELECT shard, id, tenant, name, nodes, nodes, edges, duly.now(),
           duly.now() + make_interval(secs => deadline_s), on_failure, callback, tags::jsonb, type,
           type_version, parent_node, depth
      FROM unnest($16::smallint[], $17::uuid[], $18::integer[], $19::text[], $20::integer[],
                  $21::integer[], $22::double precision[], $23::text[], $24::text[], $25::text[],
                  $26::text[], $27::integer[], $28::uuid[], $29::smallint[])
           AS sent(shard, id, tenant, name, nodes, edges, deadline_s, on_failure, callback, tags, type,
                   type_version, parent_node, depth)
     WHERE :stands
    RETURNING shard, id, tenant, deadline_at
), deadlines AS (
    INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
    SELECT shard, tenant, id, 'deadline', deadline_at FROM begun WHERE deadline_at IS NOT NULL
)

-- name: start
-- Workflows with their graphs, many callers' in one commit; their tasks follow in the same transaction.
WITH
-- include: workflows.nodes stands=true
,
-- include: workflows.workflows stands=true
SELECT NULL::uuid AS id WHERE false

-- name: start_keyed
-- The same where some have an idempotency key: the row that wins it decides which request becomes the
-- workflow. Answers those that lost.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', '1s', true)
),
-- include: insert.claimed_keys shards=$30 tenants=$31 keys=$32 hashes=$33 ids=$34 ttls=$35
, lost AS (
    SELECT unnest($34::uuid[]) AS id EXCEPT SELECT task_id FROM claimed
),
-- include: workflows.nodes stands="duly.workflow_of(sent.id) NOT IN (SELECT lost.id FROM lost)"
,
-- include: workflows.workflows stands="sent.id NOT IN (SELECT lost.id FROM lost)"
SELECT lost.id FROM lost

-- name: read_known
-- What the keys that were not free stand for; a second statement, to see what the winner committed.
SELECT held.key, held.request_hash, held.task_id
  FROM unnest($1::smallint[], $2::integer[], $3::text[]) AS asked(shard, tenant, key)
  JOIN duly.idempotency_keys held
    ON held.shard = asked.shard AND held.tenant = asked.tenant AND held.key = asked.key

-- name: read_workflows
-- As their tenant sees them; of a live one, what its nodes that have not ended do at this instant.
SELECT workflows.id, workflows.tenant, workflows.name, workflows.state, workflows.nodes,
       workflows.generated, workflows.edges, workflows.live, workflows.completed, workflows.failed, workflows.skipped,
       workflows.cancelled, workflows.created_at, workflows.deadline_at, workflows.ended_at,
       workflows.on_failure, workflows.stop_reason, workflows.tags, workflows.callback,
       workflows.type, workflows.type_version, workflows.paused_at, workflows.paused_by,
       workflows.resumed_from, workflows.parent_node, around.name AS parent_name,
       workflows.compensating_at, workflows.compensated, workflows.compensations_failed,
       alive.waiting, alive.scheduled, alive.ready, alive.running, duly.now() AS now
  FROM unnest($2::smallint[], $3::uuid[], $4::uuid[]) AS asked(shard, id, last_id)
  JOIN duly.workflows
    ON workflows.shard = asked.shard AND workflows.id = asked.id AND workflows.tenant + 0 = $1
  LEFT JOIN duly.workflow_nodes AS around
    ON around.shard = duly.shard_of(workflows.parent_node) AND around.id = workflows.parent_node
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE timers.due_at IS NULL AND (timers.parents_pending IS NULL
                                                                OR timers.started_at IS NULL)) AS waiting,
              count(*) FILTER (WHERE timers.holder IS NOT NULL
                                  OR timers.parents_pending IS NOT NULL
                                     AND timers.started_at IS NOT NULL) AS running,
              count(*) FILTER (WHERE timers.holder IS NULL AND timers.due_at > duly.now())
                  AS scheduled,
              count(*) FILTER (WHERE timers.holder IS NULL AND timers.due_at <= duly.now()) AS ready
         FROM duly.timers
        WHERE workflows.live > 0
          AND timers.shard = asked.shard
          AND timers.id > asked.id
          AND timers.id <= asked.last_id) AS alive

-- name: list_workflows
-- A page of one tenant's workflows, newest first, of a bounded stretch that is looked at.
SELECT id, looked_at, is_match
  FROM (SELECT id, count(*) OVER () AS looked_at,
               row_number() OVER (ORDER BY id DESC) AS place,
               ($3::text IS NULL OR coalesce(state, 'RUNNING') = $3)
               AND ($4::text IS NULL OR name = $4)
               AND ($5::text IS NULL OR tags ->> $5 = $6)
               AND ($7::timestamptz IS NULL OR created_at > $7) AS is_match
          FROM (SELECT id, state, name, tags, created_at
                  FROM duly.workflows
                 WHERE tenant = $1 AND id < $2
                 ORDER BY tenant DESC, id DESC
                 LIMIT $8) AS stretch) AS numbered
 WHERE is_match OR place = looked_at
 ORDER BY id DESC

-- fragment: standing
-- Nodes of the graph, or items, that were `chosen`, and how each stands at one instant; of a map, how far
-- it is; of one that stands for a workflow, how that stands. One that is reused ended as its source did.
-- What is joined by is worked out before: for a tenant's session an expression is a filter on all rows, and
-- only a column a condition of an index.
, placed AS MATERIALIZED (
    SELECT *, coalesce(chosen.source, chosen.id) AS ran, duly.workflow_of(chosen.id) AS workflow,
           duly.node_number(chosen.id) AS number,
           duly.node_id(chosen.id, chosen.compensates) AS undone_id
      FROM chosen
)
SELECT node.id, node.name, node.wait_rule, node.delay_ms, node.parents, node.children, node.spec,
       node.map_index, undone.name AS undone, timers.id IS NOT NULL AS is_live, timers.due_at,
       timers.holder, timers.attempt,
       timers.parents_pending, timers.held_due_at, timers.started_at AS live_started_at, tasks.type,
       last.state, last.outcome, last.reason, last.started_at, last.ended_at, node.source,
       coalesce(timers.run_at, last.run_at, tasks.run_at) AS run_at,
       maps.made, maps.handed, maps.total, maps.detail, timers.parents_completed,
       timers.parents_failed, timers.parents_skipped, timers.items_mark IS NOT NULL AS is_open,
       CASE WHEN node.kind = 1 THEN last.result END AS map_result, waiting.until,
       inside.id AS inside_id, inside.name AS inside_name, inside.state AS inside_state, duly.now() AS now
  FROM placed AS node
  LEFT JOIN duly.workflow_nodes AS undone
    ON undone.shard = node.shard AND undone.id = node.undone_id
  LEFT JOIN duly.tasks ON tasks.shard = node.shard AND tasks.id = node.ran
  LEFT JOIN duly.timers ON timers.shard = node.shard AND timers.id = node.id
  LEFT JOIN LATERAL (
       SELECT * FROM duly.attempts
        WHERE attempts.shard = node.shard AND attempts.id = node.ran
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
  LEFT JOIN LATERAL (
       SELECT nullif(workflow_timers.due_at, 'infinity') AS until
         FROM duly.workflow_timers
        WHERE node.kind = 2
          AND workflow_timers.shard = node.shard
          AND workflow_timers.workflow = node.workflow
          AND workflow_timers.kind = 'wait'
          AND workflow_timers.node = node.number) AS waiting ON true
  LEFT JOIN LATERAL (
       SELECT * FROM duly.workflow_maps
        WHERE node.kind = 1
          AND workflow_maps.shard = node.shard
          AND workflow_maps.workflow = node.workflow
          AND workflow_maps.node = node.number) AS maps ON true
  LEFT JOIN LATERAL (
       SELECT workflows.id, workflows.name, workflows.state
         FROM duly.workflows
        WHERE node.kind = 3
          AND workflows.shard = node.shard
          AND workflows.parent_node = node.ran) AS inside ON true

-- name: read_nodes
-- Nodes of one workflow after a number, in that order: the graph, and what undoes; no items.
WITH chosen AS (
    (SELECT * FROM duly.workflow_nodes
      WHERE workflow_nodes.shard = $2
        AND workflow_nodes.id > $3
        AND workflow_nodes.id <= duly.node_id($4, 10000)
        AND workflow_nodes.tenant + 0 = $1
      ORDER BY workflow_nodes.shard, workflow_nodes.id
      LIMIT $5)
     UNION ALL
    (SELECT * FROM duly.workflow_nodes
      WHERE workflow_nodes.shard = $2
        AND workflow_nodes.id > $3
        AND workflow_nodes.id > (
-- include: workflow_compensations.before_first shard=$2 workflow=$4
            )
        AND workflow_nodes.id <= duly.node_id($4, 16777215)
        AND workflow_nodes.compensates IS NOT NULL
        AND workflow_nodes.tenant + 0 = $1
      ORDER BY workflow_nodes.shard, workflow_nodes.id
      LIMIT $5)
)
-- include: workflows.standing
 ORDER BY node.id
 LIMIT $5

-- name: read_items
-- Items of one map behind a node, in their order, in which they were numbered.
WITH chosen AS (
    SELECT * FROM duly.workflow_nodes
     WHERE workflow_nodes.shard = $2
       AND workflow_nodes.id > $4
       AND workflow_nodes.id <= duly.node_id($3, 16777215)
       AND workflow_nodes.map_number = duly.node_number($3)
       AND workflow_nodes.tenant + 0 = $1
     ORDER BY workflow_nodes.shard, workflow_nodes.id
     LIMIT $5
)
-- include: workflows.standing
 ORDER BY node.id

-- name: read_names
-- Of which workflow these nodes are, and what they are called there.
SELECT node.id, node.name, workflows.name AS workflow_name
  FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
  JOIN duly.workflow_nodes AS node
    ON node.shard = asked.shard AND node.id = asked.id AND node.tenant + 0 = $1
  LEFT JOIN duly.workflows
    ON workflows.shard = asked.shard AND workflows.id = duly.workflow_of(asked.id)

-- name: find_source
-- Of a node that is reused, which one ran.
SELECT node.source
  FROM duly.workflow_nodes AS node
 WHERE node.shard = $2 AND node.id = $3 AND node.tenant + 0 = $1

-- name: count_parents
-- How many parents each of these nodes has. What undoes another node is handed that one instead.
SELECT node.id,
       CASE WHEN node.compensates IS NULL THEN cardinality(node.parents) ELSE 1 END AS parents
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.workflow_nodes AS node ON node.shard = asked.shard AND node.id = asked.id

-- name: read_parents
-- The parents of these nodes with their results, as far as they have ended: what a handler is given. Of
-- each node at most so many, after the given number, and none where there are more than that in all. What
-- undoes another node is handed that one.
SELECT asked.id AS node, parent.id, parent.name, last.state, last.result, last.fence,
       timers.id IS NOT NULL AS is_live, timers.parents_pending, timers.due_at, timers.holder,
       timers.started_at AS live_started_at, duly.now() AS now
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.workflow_nodes AS node
    ON node.shard = asked.shard AND node.id = asked.id
 CROSS JOIN LATERAL (
       SELECT edge.number
         FROM unnest(CASE WHEN node.compensates IS NULL THEN node.parents
                          ELSE ARRAY[node.compensates] END) AS edge(number)
        WHERE edge.number > $3
          AND ($5 OR cardinality(node.parents) <= $4)
        ORDER BY edge.number
        LIMIT $4) AS edge
  JOIN duly.workflow_nodes AS parent
    ON parent.shard = asked.shard AND parent.id = duly.node_id(asked.id, edge.number)
  LEFT JOIN duly.timers ON timers.shard = parent.shard AND timers.id = parent.id
  LEFT JOIN LATERAL (
       SELECT * FROM duly.attempts
        WHERE attempts.shard = parent.shard AND attempts.id = coalesce(parent.source, parent.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
 ORDER BY asked.id, parent.id

-- name: read_ended_workflows
-- Which of these have ended, or never were; for callers that wait.
SELECT asked.id
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
 WHERE NOT EXISTS (SELECT FROM duly.workflows
                    WHERE workflows.shard = asked.shard AND workflows.id = asked.id
                      AND workflows.ended_at IS NULL)

-- name: delete_old
-- Workflows of past months that ended longer ago than the retention, with their graphs; then their months
-- may go. As many as have so many nodes, by one workflow more at most: some have one, some 10,000. One of
-- this month stays, as tasks do, and one whose end is still to be told, however late that is. So does what
-- another one reuses: a chain of resumes goes from its end, and a workflow before those that ran within it.
-- A resume that commits at this moment is seen on the row alone, which is asked again under its lock.
WITH ended AS (
    SELECT shard, id, nodes, ended_at
      FROM duly.workflows
     WHERE ended_at < duly.now() - make_interval(secs => $1::double precision)
       AND id < duly.id_bound(date_trunc('month', duly.now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')
       AND NOT EXISTS (SELECT FROM duly.workflow_timers
                        WHERE workflow_timers.shard = workflows.shard
                          AND workflow_timers.workflow = workflows.id
                          AND workflow_timers.kind IN ('callback', 'next'))
       AND NOT EXISTS (SELECT FROM duly.workflows AS later
                        WHERE later.shard = workflows.shard
                          AND later.root = coalesce(workflows.root, workflows.id)
                          AND later.resumed_from = workflows.id)
       AND NOT EXISTS (SELECT FROM duly.workflows AS around
                        WHERE around.shard = workflows.shard
                          AND around.id = duly.workflow_of(workflows.parent_node))
     ORDER BY ended_at
     LIMIT $2::integer
), summed AS (
    SELECT shard, id, sum(nodes) OVER (ORDER BY ended_at, shard, id) - nodes AS nodes_before
      FROM ended
), old AS MATERIALIZED (
    SELECT shard, id FROM summed WHERE nodes_before < $2::integer
), gone AS (
    DELETE FROM duly.workflows
     USING old
     WHERE workflows.shard = old.shard AND workflows.id = old.id
       AND workflows.ended_at IS NOT NULL
       AND coalesce(workflows.resumed_at, workflows.ended_at)
           < duly.now() - make_interval(secs => $1::double precision)
 RETURNING workflows.shard, workflows.id, workflows.nodes
), nodes AS (
    DELETE FROM duly.workflow_nodes
     USING gone
     WHERE workflow_nodes.shard = gone.shard
       AND workflow_nodes.id > gone.id
       AND workflow_nodes.id <= duly.node_id(gone.id, 16777215)
), maps AS (
    DELETE FROM duly.workflow_maps
     USING gone
     WHERE workflow_maps.shard = gone.shard AND workflow_maps.workflow = gone.id
), pages AS (
    DELETE FROM duly.workflow_map_pages
     USING gone
     WHERE workflow_map_pages.shard = gone.shard AND workflow_map_pages.workflow = gone.id
), timers AS (
    DELETE FROM duly.workflow_timers
     USING gone
     WHERE workflow_timers.shard = gone.shard AND workflow_timers.workflow = gone.id
), signals AS (
    DELETE FROM duly.workflow_signals
     USING gone
     WHERE workflow_signals.shard = gone.shard AND workflow_signals.workflow = gone.id
)
SELECT gone.nodes FROM gone
