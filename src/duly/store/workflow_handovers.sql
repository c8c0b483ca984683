-- name: lock_own
-- Before anything else of a page: the workflow's own row, if it is this tenant's.
SELECT workflows.ended_at, workflows.stop_reason
  FROM duly.workflows
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   FOR NO KEY UPDATE OF workflows

-- name: find_paged_map
-- The map to which a node hands over items, while it runs with this fence: what the lock of its workflow
-- was taken for.
SELECT map.id, map.name, map.spec, maps.node IS NOT NULL AS is_opened, maps.handed, maps.reason,
       maps.detail, timers.id IS NOT NULL AS is_live,
       EXISTS (SELECT FROM duly.timers AS source
                WHERE source.shard = $2 AND source.id = $3
                  AND source.fence = $4
                  AND source.holder IS NOT NULL) AS is_held
  FROM duly.workflow_nodes AS parent
 CROSS JOIN LATERAL unnest(parent.children) AS edge(number)
  JOIN duly.workflow_nodes AS map
    ON map.shard = parent.shard AND map.id = duly.node_id(parent.id, edge.number)
  LEFT JOIN duly.workflow_maps AS maps
    ON maps.shard = map.shard
   AND maps.workflow = duly.workflow_of(map.id)
   AND maps.node = duly.node_number(map.id)
  LEFT JOIN duly.timers ON timers.shard = map.shard AND timers.id = map.id
 WHERE parent.tenant + 0 = $1
   AND parent.shard = $2
   AND parent.id = $3
   AND map.name = $5
   AND map.kind = 1

-- name: hand_over
-- A page behind those that are there, under the lock of the workflow.
WITH noted AS (
    UPDATE duly.workflow_maps
       SET handed = workflow_maps.handed + $4
     WHERE workflow_maps.shard = $1
       AND workflow_maps.workflow = duly.workflow_of($2)
       AND workflow_maps.node = duly.node_number($2)
       AND workflow_maps.handed = $3
       AND workflow_maps.total IS NULL
       AND workflow_maps.reason IS NULL
 RETURNING workflow_maps.shard, workflow_maps.tenant, workflow_maps.workflow, workflow_maps.node,
           workflow_maps.handed
), stored AS (
    INSERT INTO duly.workflow_map_pages (shard, tenant, workflow, node, first_index, items, content)
    SELECT shard, tenant, workflow, node, $3, $4, $5
      FROM noted
)
SELECT handed FROM noted
