-- name: read_lease
-- Whether this lease holds the node; under the lock of its workflow, without which none of a node ends.
SELECT timers.id
  FROM duly.timers
 WHERE timers.shard = $1 AND timers.id = $2 AND timers.fence = $3 AND timers.holder = $4

-- name: find_named
-- Nodes of a graph by their names: those that new ones come after, and names that are taken. One that
-- was reused from an earlier workflow ended there. One that was skipped is `untold` while the rest of its
-- cascade is to come: that tells its children, also the new ones.
WITH untold AS MATERIALIZED (
    SELECT string_to_table(rest.cursor, ' ')::integer AS number
      FROM duly.workflow_timers AS rest
     WHERE rest.shard = $1 AND rest.workflow = $2 AND rest.kind = 'cascade'
)
SELECT node.id, node.name, last.state,
       timers.id IS NOT NULL
           OR duly.node_number(node.id) IN (SELECT untold.number FROM untold) AS is_live
  FROM (SELECT workflow_nodes.shard, workflow_nodes.id, workflow_nodes.name, workflow_nodes.source
          FROM duly.workflow_nodes
         WHERE workflow_nodes.shard = $1
           AND workflow_nodes.id > $2
           AND workflow_nodes.id <= $3
           AND workflow_nodes.tenant + 0 = $4
           AND workflow_nodes.name = ANY ($5::text[])) AS node
  LEFT JOIN duly.timers ON timers.shard = node.shard AND timers.id = node.id
  LEFT JOIN LATERAL (
       SELECT attempts.state FROM duly.attempts
        WHERE attempts.shard = node.shard
          AND attempts.id = coalesce(node.source, node.id)
          AND attempts.state IS NOT NULL
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true

-- name: append_nodes
-- New nodes of a graph, and to those that are their parents already, that they have more children.
WITH
-- include: workflows.nodes stands=true
, told AS (
    UPDATE duly.workflow_nodes
       SET children = workflow_nodes.children || added.children::integer[]
      FROM unnest($16::uuid[], $17::text[]) AS added(id, children)
     WHERE workflow_nodes.shard = duly.shard_of(added.id) AND workflow_nodes.id = added.id
)
SELECT NULL::uuid AS id WHERE false

-- name: count_ended
-- These nodes ended before; they count for those of their children that have come since, from that
-- number on.
SELECT id, tenant, shard, queue, fence, due_at, priority, type, concurrency_key,
       concurrency_limit, host
  FROM duly.release_children($1::uuid[], $2::text[], $3)
