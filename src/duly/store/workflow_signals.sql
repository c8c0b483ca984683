-- name: read_known
-- How many signals a workflow has had, and that of an earlier call with this key; under its lock.
SELECT (SELECT coalesce(max(number), 0) FROM duly.workflow_signals WHERE shard = $1 AND workflow = $2)
           AS signals,
       earlier.number, earlier.name, earlier.sender, earlier.access, earlier.payload, earlier.received_at,
       earlier.consumed_at, earlier.idempotency_key, earlier.request_hash, node.name AS node
  FROM (VALUES ($3::text)) AS asked(key)
  LEFT JOIN duly.workflow_signals AS earlier
    ON earlier.shard = $1 AND earlier.workflow = $2 AND earlier.idempotency_key = asked.key
  LEFT JOIN duly.workflow_nodes AS node
    ON node.shard = $1 AND node.id = duly.node_id($2, earlier.consumed_by)

-- name: take_waiting
-- Of the nodes that wait for a signal of this name from such a sender, the first: its timeout is over, under
-- the lock of the workflow.
DELETE FROM duly.workflow_timers
 USING (SELECT waiting.node, node.name
          FROM duly.workflow_timers AS waiting
          JOIN duly.workflow_nodes AS node
            ON node.shard = waiting.shard AND node.id = duly.node_id(waiting.workflow, waiting.node)
         WHERE waiting.shard = $1
           AND waiting.workflow = $2
           AND waiting.kind = 'wait'
           AND waiting.cursor = $3
           AND node.spec::jsonb #>> '{wait,role}' = ANY ($4::text[])
         ORDER BY waiting.node
         LIMIT 1) AS first
 WHERE workflow_timers.shard = $1
   AND workflow_timers.workflow = $2
   AND workflow_timers.kind = 'wait'
   AND workflow_timers.node = first.node
RETURNING workflow_timers.node, first.name

-- name: read_wanted_roles
-- Which roles the nodes of a workflow want from who sends this signal.
SELECT DISTINCT node.spec::jsonb #>> '{wait,role}' AS role
  FROM duly.workflow_nodes AS node
 WHERE node.shard = $1
   AND duly.workflow_of(node.id) = $2
   AND node.kind = 2
   AND node.spec::jsonb #>> '{wait,signal}' = $3

-- name: store_signal
-- One more signal of a workflow, under its lock; with the node that got it at once, if one did.
INSERT INTO duly.workflow_signals (shard, tenant, workflow, number, name, sender, access, payload,
                                   idempotency_key, request_hash, received_at, consumed_by, consumed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, duly.now(), $11,
        CASE WHEN $11::integer IS NOT NULL THEN duly.now() END)
RETURNING received_at, consumed_at

-- name: take_signal
-- The first kept signal of that name from such a sender goes to this node, once and under the lock of the
-- workflow.
UPDATE duly.workflow_signals
   SET consumed_by = $5, consumed_at = duly.now()
 WHERE shard = $1
   AND workflow = $2
   AND number = (SELECT number FROM duly.workflow_signals
                  WHERE shard = $1
                    AND workflow = $2
                    AND name = $3
                    AND access = ANY ($4::text[])
                    AND consumed_by IS NULL
                  ORDER BY number
                  LIMIT 1)
   AND consumed_by IS NULL
RETURNING payload, sender, access, received_at

-- name: list_signals
-- What was sent to a workflow, in that order, with the node that got it.
SELECT signals.number, signals.name, signals.sender, signals.access, signals.payload, signals.received_at,
       signals.consumed_at, signals.idempotency_key, node.name AS node
  FROM duly.workflow_signals AS signals
  LEFT JOIN duly.workflow_nodes AS node
    ON node.shard = signals.shard AND node.id = duly.node_id(signals.workflow, signals.consumed_by)
 WHERE signals.shard = $2
   AND signals.workflow = $3
   AND signals.tenant + 0 = $1
   AND signals.number > $4
 ORDER BY signals.number
 LIMIT $5
