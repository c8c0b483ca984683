-- fragment: retried
-- For nodes, `allowed` takes the lock of their workflows first, and those of a paused one are held.
    UPDATE duly.timers
       SET fence = timers.fence + 1,
           holder = NULL,
           lease_until = NULL,
           queue = duly.timer_queue(timers.pool, timers.priority),
           :due,
           attempt = timers.attempt + done.charge,
           losses = done.losses,
           confirmed = false
      FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::uuid[], $5::text[],
                  $6::double precision[], $7::smallint[], $8::smallint[], $9::text[])
           AS done(shard, id, fence, holder, outcome, delay_s, charge, losses, error)
     WHERE timers.shard = ANY (ARRAY[done.shard])
       AND timers.id = ANY (ARRAY[done.id])
       AND timers.fence = done.fence
       AND timers.holder = done.holder
       AND NOT timers.cancel_requested
       AND :allowed
       AND (NOT $10::boolean OR timers.lease_until <= duly.now())
 RETURNING timers.shard, timers.id, timers.tenant, timers.queue, done.fence, timers.due_at,
           timers.attempt * done.charge AS charged, done.holder, timers.started_at, timers.run_at,
           timers.concurrency_key IS NOT NULL AS has_key, done.outcome, NULL AS state,
           NULL AS reason, done.error, NULL AS result

-- name: retry_tasks
-- The attempt is over and the task goes on: the fence rises, so that nothing of this lease counts
-- any more. A requested cancel forbids another attempt; then this changes nothing.
WITH ended AS (
-- include: retry.retried allowed=true due="due_at = duly.now() + make_interval(secs => done.delay_s)"
),
-- include: finish.attempt_record
SELECT id, fence, due_at, tenant, shard, queue, has_key FROM ended

-- name: retry_nodes
-- The same for nodes of workflows: like every change of theirs, under the lock of these.
WITH locked AS MATERIALIZED (
    SELECT duly.lock_workflows($2) AS is_locked
), ended AS (
-- include: retry.retried allowed="(SELECT is_locked FROM locked)" due="(due_at, held_due_at) = (SELECT * FROM duly.due_or_held(timers.id, duly.now() + make_interval(secs => done.delay_s)))"
),
-- include: finish.attempt_record
SELECT id, fence, due_at, tenant, shard, queue, has_key FROM ended
