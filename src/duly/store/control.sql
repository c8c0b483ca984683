-- name: reschedule_tasks
-- Another instant or priority for a task without a holder. The fence rises, so tickets that were
-- written for the old instant or queue are void. The new fire time stands beside `due_at`, which
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
           queue = duly.timer_queue(timers.pool, coalesce(asked.priority, timers.priority))
      FROM unnest($2::smallint[], $3::uuid[], $4::boolean[], $5::timestamptz[],
                  $6::double precision[], $7::smallint[])
           AS asked(shard, id, keeps_due, run_at, delay_s, priority)
     WHERE timers.shard = asked.shard
       AND timers.id = asked.id
       AND timers.tenant + 0 = $1
       AND timers.holder IS NULL
       AND timers.due_at IS NOT NULL
 RETURNING timers.tenant, timers.shard, timers.queue, timers.id, timers.fence, timers.due_at
), placed AS (
    INSERT INTO duly.placements (tenant, shard, queue)
    SELECT DISTINCT tenant, shard, queue FROM moved
        ON CONFLICT DO NOTHING
)
SELECT id, tenant, shard, queue, due_at FROM moved

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
