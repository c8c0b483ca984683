-- fragment: attempt_record
-- The record of an attempt, written once with every move that ends one: each row of `ended`. The state
-- is NULL where the task goes on. The record of an attempt that never started has no start.
recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, holder, started_at, ended_at,
                               outcome, state, reason, error, result, run_at)
    SELECT shard, id, fence, tenant, charged, holder, started_at,
           greatest(duly.now(), started_at), outcome, state, reason, error, result, run_at
      FROM ended
)

-- fragment: dead_letter
-- The dead letter of every task that failed for good, and whom that is to be told. Messages about messages
-- that could not be delivered would never end.
dead AS (
    INSERT INTO duly.dead_letters (shard, id, tenant, pool, priority, attempts, timeout_ms,
                                   created_at, run_at, failed_at, reason, fingerprint, type,
                                   payload, policy, url, execution_key, tags, error)
    SELECT ended.shard, ended.id, ended.tenant, tasks.pool, ended.priority, ended.charged,
           tasks.timeout_ms, tasks.created_at, coalesce(ended.run_at, tasks.run_at), duly.now(),
           ended.reason, ended.fingerprint, tasks.type, tasks.payload, tasks.policy, tasks.url,
           coalesce(tasks.execution_key, tasks.id::text), tasks.tags, ended.error
      FROM ended
      JOIN duly.tasks ON tasks.shard = ended.shard AND tasks.id = ended.id
     WHERE ended.state = 'FAILED'
 RETURNING tenant, id, attempts, failed_at, reason, fingerprint, type
), noted AS (
    INSERT INTO duly.notification_events (tenant, at, notification, event, facts)
    SELECT dead.tenant, dead.failed_at, notifications.name, 'dead_letter',
           json_build_object('type', dead.type, 'reason', dead.reason, 'task', dead.id,
                             'attempts', dead.attempts, 'fingerprint', dead.fingerprint)
      FROM dead
      JOIN duly.notifications
        ON notifications.tenant = dead.tenant AND notifications.on_dead_letters
     WHERE dead.type <> 'duly.notification'
)

-- fragment: callbacks
-- What tells of these ends becomes due in their commit: of those whose id says that there may be
-- something to tell, and for which it was asked.
told AS (
    UPDATE duly.workflow_timers
       SET due_at = duly.now(), fence = workflow_timers.fence + 1
      FROM ended
     WHERE duly.has_callback(ended.id)
       AND workflow_timers.shard = ended.shard
       AND workflow_timers.workflow = ended.id
       AND workflow_timers.kind = 'callback'
)

-- fragment: completed
-- Settlements come in runs of neighbours that agree in everything but their ids, and each run is one
-- pass of the index; its bounds, and the array of one shard, are for planners as in lease_tasks. For
-- nodes, `allowed` takes the lock of their workflows before the first row is touched.
    DELETE FROM duly.timers
     USING (SELECT shard, fence, holder, result,
                   ($1::uuid[])[first] AS first_id, ($1)[last] AS last_id, ($1)[first:last] AS ids
              FROM unnest($2::smallint[], $3::integer[], $4::uuid[], $5::text[],
                          $6::integer[], $7::integer[])
                   AS sent(shard, fence, holder, result, first, last)) AS done
     WHERE timers.shard = ANY (ARRAY[done.shard])
       AND timers.id = ANY (done.ids)
       AND timers.id BETWEEN done.first_id AND done.last_id
       AND timers.fence = done.fence
       AND timers.holder = done.holder
       AND :allowed
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.attempt + 1 AS charged,
           timers.holder, timers.started_at, timers.run_at,
           timers.concurrency_key IS NOT NULL AS has_key, 'completed' AS outcome,
           'COMPLETED' AS state, NULL AS reason, NULL AS error, done.result

-- fragment: terminal
-- The end of a lease that is not a success; a requested cancel makes it CANCELLED.
    DELETE FROM duly.timers
     USING unnest($1::smallint[], $2::uuid[], $3::integer[], $4::uuid[], $5::text[], $6::text[],
                  $7::text[], $8::text[], $9::text[])
           AS done(shard, id, fence, holder, outcome, state, reason, error, fingerprint)
     WHERE timers.shard = ANY (ARRAY[done.shard])
       AND timers.id = ANY (ARRAY[done.id])
       AND timers.fence = done.fence
       AND timers.holder = done.holder
       AND :allowed
       AND (NOT $10::boolean OR timers.lease_until <= duly.now())
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.priority,
           CASE WHEN done.outcome IN ('released', 'snoozed') THEN 0 ELSE timers.attempt + 1 END
               AS charged,
           done.holder, timers.started_at, timers.run_at,
           timers.concurrency_key IS NOT NULL AS has_key, done.outcome,
           CASE WHEN timers.cancel_requested THEN 'CANCELLED' ELSE done.state END AS state,
           CASE WHEN NOT timers.cancel_requested THEN done.reason END AS reason, done.error,
           NULL AS result, done.fingerprint

-- fragment: cancelled
-- Unleased tasks end if they `stand` alone, and leased ones are asked to end.
locked AS MATERIALIZED (
    SELECT timers.shard, timers.id
      FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
      JOIN duly.timers
        ON timers.shard = asked.shard AND timers.id = asked.id AND timers.tenant + 0 = $1
     WHERE :allowed
     ORDER BY timers.shard + 0, timers.id
       FOR UPDATE OF timers
), ended AS (
    DELETE FROM duly.timers
     USING locked
     WHERE timers.shard = locked.shard
       AND timers.id = locked.id
       AND timers.tenant + 0 = $1
       AND timers.holder IS NULL
       AND :stand
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, 0 AS charged,
           NULL::uuid AS holder, NULL::timestamptz AS started_at, timers.run_at,
           'cancelled' AS outcome, 'CANCELLED' AS state, NULL AS reason, NULL AS error,
           NULL AS result
),
-- include: finish.attempt_record
, requested AS (
    UPDATE duly.timers
       SET cancel_requested = true
      FROM locked
     WHERE timers.shard = locked.shard
       AND timers.id = locked.id
       AND timers.tenant + 0 = $1
       AND timers.holder IS NOT NULL
 RETURNING timers.id
)

-- fragment: unleased
-- The end of a node that no holder runs. Its parents have decided, or it is a map that has begun; one that
-- is due, held or leased ends otherwise.
    DELETE FROM duly.timers
     WHERE timers.shard = $1
       AND timers.id = $2
       AND timers.holder IS NULL
       AND timers.due_at IS NULL
       AND timers.held_due_at IS NULL
       AND (timers.parents_pending IS NULL OR timers.started_at IS NOT NULL)
       AND (SELECT is_locked FROM locked)
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, timers.priority,
           0 AS charged, NULL::uuid AS holder, timers.started_at,
           coalesce(timers.run_at, timers.started_at) AS run_at, false AS has_key,
           $3::text AS outcome, $4::text AS state, $5::text AS reason, $6::text AS error,
           $7::text AS result, coalesce($5, '') AS fingerprint

-- fragment: node_ends
-- The ended nodes, and in the same commit what became due because of them.
SELECT true AS is_end, id, fence, tenant, state, reason, has_key, NULL::smallint AS shard,
       NULL::smallint AS queue, NULL::timestamptz AS due_at, NULL::smallint AS priority,
       NULL::text AS type, NULL::text AS concurrency_key, NULL::integer AS concurrency_limit,
       NULL::text AS host
  FROM ended
 UNION ALL
SELECT false, id, fence, tenant, NULL, NULL, false, shard, queue, due_at, priority, type,
       concurrency_key, concurrency_limit, host
  FROM duly.release_children((SELECT array_agg(ended.id) FROM ended),
                             (SELECT array_agg(ended.state) FROM ended))

-- name: finish_completed
-- Only the lease that holds the task may finish it; a late worker deletes no timer and learns that
-- it is stale. A requested cancel came too late: completed stays completed. Which of them ended is
-- said unless all did. Apart from finish_terminal: the usual end pays for no dead letter.
WITH ended AS (
-- include: finish.completed allowed=true
),
-- include: finish.attempt_record
SELECT tenant, has_key, count(*) AS ended,
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids,
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(fence) END AS fences
  FROM ended
 GROUP BY tenant, has_key

-- name: finish_completed_with_callbacks
-- The same where the ends of some may have to be told. Apart, so that no other batch pays for it.
WITH ended AS (
-- include: finish.completed allowed=true
),
-- include: finish.attempt_record
,
-- include: finish.callbacks
SELECT tenant, has_key, count(*) AS ended,
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids,
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(fence) END AS fences
  FROM ended
 GROUP BY tenant, has_key

-- name: finish_completed_nodes
-- The same for nodes of workflows, which never share a commit with plain tasks: under the lock of their
-- workflows they end, and their children count it.
WITH locked AS MATERIALIZED (
    SELECT duly.lock_workflows($1) AS is_locked
), ended AS (
-- include: finish.completed allowed="(SELECT is_locked FROM locked)"
),
-- include: finish.attempt_record
-- include: finish.node_ends

-- name: finish_terminal
-- The end of a lease that is not a success: FAILED with a dead letter, or CANCELLED if that was asked
-- for. The reaper comes through here too, and then the lease must have run out on the row itself.
WITH ended AS (
-- include: finish.terminal allowed=true
),
-- include: finish.attempt_record
,
-- include: finish.dead_letter
,
-- include: finish.callbacks
SELECT id, fence, state, tenant, has_key, reason FROM ended

-- name: finish_terminal_nodes
-- The same for nodes of workflows, under the lock of these.
WITH locked AS MATERIALIZED (
    SELECT duly.lock_workflows($2) AS is_locked
), ended AS (
-- include: finish.terminal allowed="(SELECT is_locked FROM locked)"
),
-- include: finish.attempt_record
,
-- include: finish.dead_letter
-- include: finish.node_ends

-- name: finish_unstarted
-- Tasks that were to start by an instant which has passed without a start. One that did start, and
-- is only waiting for its next attempt, kept its word.
WITH ended AS (
    DELETE FROM duly.timers
     USING unnest($1::smallint[], $2::uuid[], $3::integer[]) AS late(shard, id, fence)
     WHERE timers.shard = late.shard
       AND timers.id = late.id
       AND timers.fence = late.fence
       AND timers.holder IS NULL
       AND timers.start_by <= duly.now()
       AND timers.started_at IS NULL
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, timers.priority,
           0 AS charged, NULL::uuid AS holder, timers.started_at, timers.run_at,
           'expired' AS outcome, 'FAILED' AS state, 'expired' AS reason,
           'not started in time' AS error, NULL AS result, 'expired' AS fingerprint
),
-- include: finish.attempt_record
,
-- include: finish.dead_letter
,
-- include: finish.callbacks
SELECT id FROM ended

-- name: finish_cancelled
-- Unleased: ended at once, with a record that says so and a fence that voids every ticket. Leased:
-- only asked for, and the fence stays, so that the holder can still finish. A task that is leased or
-- released at this very moment matches neither part and is asked about again. All rows are locked
-- first, in the order of their addresses whatever their state: two of these that took the unleased
-- before the leased, and saw a lease between them, would wait for each other. The lock decides
-- nothing: the guards stand on the rows that change. The sums keep the planner from finding a
-- key by the tenant's index, which on a small table looks as good, and from walking all keys in order.
WITH
-- include: finish.cancelled allowed=true stand=true
,
-- include: finish.callbacks
SELECT id, 'cancelled' AS answer FROM ended
 UNION ALL
SELECT id, 'cancel_requested' FROM requested

-- name: finish_cancelled_nodes
-- The same for nodes of workflows, under the lock of these. A cancelled node counts for its children. One
-- that stands for a workflow ends as that does, which is asked to stop.
WITH workflows_locked AS MATERIALIZED (
    SELECT duly.lock_workflows($3) AS is_locked
),
inside AS MATERIALIZED (
    SELECT node, workflow, shard
      FROM workflows_locked
     CROSS JOIN LATERAL duly.stop_workflows_of($1::integer, CASE WHEN is_locked THEN $3::uuid[] END)
),
-- include: finish.cancelled allowed="(SELECT is_locked FROM workflows_locked)" stand="timers.id <> ALL (ARRAY(SELECT node FROM inside))"
SELECT true AS is_end, id, 'cancelled' AS answer, tenant, NULL::smallint AS shard,
       NULL::smallint AS queue, NULL::integer AS fence, NULL::timestamptz AS due_at,
       NULL::smallint AS priority, NULL::text AS type, NULL::text AS concurrency_key,
       NULL::integer AS concurrency_limit, NULL::text AS host
  FROM ended
 UNION ALL
SELECT true, id, 'cancel_requested', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM requested
 UNION ALL
SELECT true, node, 'cancel_requested', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM inside
 UNION ALL
SELECT false, workflow, NULL, $1, shard, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM inside
 UNION ALL
SELECT false, id, NULL, tenant, shard, queue, fence, due_at, priority, type, concurrency_key,
       concurrency_limit, host
  FROM duly.release_children((SELECT array_agg(ended.id) FROM ended),
                             (SELECT array_agg(ended.state) FROM ended))

-- name: finish_node
-- A node that no handler runs, or that its step skips: it ends once, under the lock of its workflow.
WITH locked AS MATERIALIZED (
    SELECT duly.lock_workflows(ARRAY[$2::uuid]) AS is_locked
), ended AS (
-- include: finish.unleased
),
-- include: finish.attempt_record
-- include: finish.node_ends

-- name: finish_failed_node
-- The same where it fails, with a dead letter. Apart, because a tenant's own session writes none.
WITH locked AS MATERIALIZED (
    SELECT duly.lock_workflows(ARRAY[$2::uuid]) AS is_locked
), ended AS (
-- include: finish.unleased
),
-- include: finish.attempt_record
,
-- include: finish.dead_letter
-- include: finish.node_ends
