-- name: cancel_tasks
-- Unleased: ended at once, with a record that says so and a fence that voids every ticket. Leased:
-- only asked for, and the fence stays, so that the holder can still finish. A task that is leased or
-- released at this very moment matches neither part and is asked about again. All rows are locked
-- first, in the order of their addresses whatever their state: two of these that took the unleased
-- before the leased, and saw a lease between them, would wait for each other. The lock decides
-- nothing: the guards stand on the rows that change. The sums keep the planner from finding a
-- key by the tenant's index, which on a small table looks as good, and from walking all keys in order.
WITH locked AS MATERIALIZED (
    SELECT timers.shard, timers.id
      FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
      JOIN duly.timers
        ON timers.shard = asked.shard AND timers.id = asked.id AND timers.tenant + 0 = $1
     ORDER BY timers.shard + 0, timers.id
       FOR UPDATE OF timers
), ended AS (
    DELETE FROM duly.timers
     USING locked
     WHERE timers.shard = locked.shard
       AND timers.id = locked.id
       AND timers.tenant + 0 = $1
       AND timers.holder IS NULL
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, timers.run_at
), recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, ended_at, outcome, state,
                               run_at)
    SELECT shard, id, fence, tenant, 0, duly.now(), 'cancelled', 'CANCELLED', run_at FROM ended
), requested AS (
    UPDATE duly.timers
       SET cancel_requested = true
      FROM locked
     WHERE timers.shard = locked.shard
       AND timers.id = locked.id
       AND timers.tenant + 0 = $1
       AND timers.holder IS NOT NULL
 RETURNING timers.id
)
SELECT id, 'cancelled' AS answer FROM ended
 UNION ALL
SELECT id, 'cancel_requested' FROM requested

-- name: move_tasks
-- Another instant or another urgency for a task that nobody holds. The fence rises, so tickets that
-- were written for the old instant or lane are void. The new fire time stands beside `due_at`, which
-- retries and leases move too.
WITH moved AS (
    UPDATE duly.timers
       SET fence = timers.fence + 1,
           due_at = CASE WHEN asked.keeps_due THEN timers.due_at
                         ELSE greatest(coalesce(asked.run_at,
                                                duly.now() + make_interval(secs => asked.delay_s)),
                                       duly.now())
                    END,
           run_at = CASE WHEN asked.keeps_due THEN timers.run_at
                         ELSE coalesce(asked.run_at,
                                       duly.now() + make_interval(secs => asked.delay_s))
                    END,
           priority = coalesce(asked.priority, timers.priority),
           lane = duly.lane_of(timers.pool, coalesce(asked.priority, timers.priority))
      FROM unnest($2::smallint[], $3::uuid[], $4::boolean[], $5::timestamptz[],
                  $6::double precision[], $7::smallint[])
           AS asked(shard, id, keeps_due, run_at, delay_s, priority)
     WHERE timers.shard = asked.shard
       AND timers.id = asked.id
       AND timers.tenant + 0 = $1
       AND timers.holder IS NULL
       AND timers.due_at IS NOT NULL
 RETURNING timers.tenant, timers.shard, timers.lane, timers.id, timers.fence, timers.due_at
), placed AS (
    INSERT INTO duly.placements (tenant, shard, lane)
    SELECT DISTINCT tenant, shard, lane FROM moved
        ON CONFLICT DO NOTHING
)
SELECT id, tenant, shard, lane, due_at FROM moved

-- name: classify_tasks
-- Why did a change not happen? Timer, record and task seen at one instant, of this tenant only.
SELECT asked.id,
       tasks.id IS NOT NULL OR letter.id IS NOT NULL AS is_known,
       timers.id IS NOT NULL AS is_live,
       timers.holder IS NOT NULL AS is_held,
       timers.id IS NOT NULL AND timers.due_at IS NULL AS is_waiting,
       (SELECT attempts.state
          FROM duly.attempts
         WHERE attempts.shard = asked.shard
           AND attempts.id = asked.id
           AND attempts.tenant = $1
         ORDER BY attempts.fence DESC
         LIMIT 1) AS final_state
  FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
  LEFT JOIN duly.tasks
    ON tasks.shard = asked.shard AND tasks.id = asked.id AND tasks.tenant + 0 = $1
  LEFT JOIN duly.timers
    ON timers.shard = asked.shard AND timers.id = asked.id AND timers.tenant + 0 = $1
  LEFT JOIN duly.dead_letters letter
    ON letter.shard = asked.shard AND letter.id = asked.id AND letter.tenant + 0 = $1
