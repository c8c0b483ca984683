-- name: settle_completed
-- Only the lease that holds the task may finish it; a late worker deletes no timer and learns that
-- it is stale. A requested cancel came too late: completed stays completed. Settlements come in runs
-- of neighbours that agree in everything but their ids, and each run is one pass of the index; its
-- bounds, and the array of one shard, are for planners as in lease_tasks. Which of them ended is said
-- unless all did.
WITH ended AS (
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
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.attempt, timers.started_at,
           timers.concurrency_key IS NOT NULL AS has_key, timers.holder, timers.run_at, done.result
), recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, holder, started_at, ended_at,
                               outcome, state, result, run_at)
    SELECT shard, id, fence, tenant, attempt + 1, holder, started_at,
           greatest(duly.now(), started_at), 'completed', 'COMPLETED', result, run_at
      FROM ended
)
SELECT tenant, has_key, count(*) AS ended,
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(id) END AS ids,
       CASE WHEN count(*) < cardinality($1::uuid[]) THEN array_agg(fence) END AS fences
  FROM ended
 GROUP BY tenant, has_key

-- name: settle_final
-- An end that is not a success: FAILED with a dead letter, or CANCELLED if that was asked for. The
-- reaper comes through here too, and then the lease must have run out on the row itself.
WITH ended AS (
    DELETE FROM duly.timers
     USING unnest($1::smallint[], $2::uuid[], $3::integer[], $4::uuid[], $5::text[], $6::text[],
                  $7::text[], $8::text[], $9::text[])
           AS done(shard, id, fence, holder, outcome, state, reason, error, fingerprint)
     WHERE timers.shard = ANY (ARRAY[done.shard])
       AND timers.id = ANY (ARRAY[done.id])
       AND timers.fence = done.fence
       AND timers.holder = done.holder
       AND (NOT $10::boolean OR timers.lease_until <= duly.now())
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.attempt, timers.priority,
           timers.started_at, timers.run_at, timers.concurrency_key IS NOT NULL AS has_key,
           done.holder, done.outcome, done.error, done.fingerprint, done.reason,
           CASE WHEN timers.cancel_requested THEN 'CANCELLED' ELSE done.state END AS state,
           CASE WHEN done.outcome IN ('released', 'snoozed') THEN 0 ELSE timers.attempt + 1 END
               AS charged
), recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, holder, started_at, ended_at,
                               outcome, state, reason, error, run_at)
    SELECT shard, id, fence, tenant, charged, holder, started_at,
           greatest(duly.now(), started_at), outcome, state,
           CASE WHEN state = 'FAILED' THEN reason END, error, run_at
      FROM ended
), dead AS (
    INSERT INTO duly.dead_letters (shard, id, tenant, pool, priority, attempts, timeout_ms,
                                   created_at, run_at, failed_at, reason, fingerprint, type,
                                   payload, policy, url, execution_key, tags, error)
    SELECT ended.shard, ended.id, ended.tenant, tasks.pool, ended.priority, ended.charged,
           tasks.timeout_ms, tasks.created_at, coalesce(ended.run_at, tasks.run_at), duly.now(),
           ended.reason,
           ended.fingerprint, tasks.type, tasks.payload, tasks.policy, tasks.url,
           coalesce(tasks.execution_key, tasks.id::text), tasks.tags, ended.error
      FROM ended
      JOIN duly.tasks ON tasks.shard = ended.shard AND tasks.id = ended.id
     WHERE ended.state = 'FAILED'
)
SELECT id, fence, state, tenant, has_key, CASE WHEN state = 'FAILED' THEN reason END AS reason
  FROM ended

-- name: settle_again
-- The attempt is over and the task goes on: the fence rises, so that nothing of this lease counts
-- any more. A requested cancel forbids another attempt; then this changes nothing.
WITH again AS (
    UPDATE duly.timers
       SET fence = timers.fence + 1,
           holder = NULL,
           lease_until = NULL,
           lane = duly.lane_of(timers.pool, timers.priority),
           due_at = duly.now() + make_interval(secs => done.delay_s),
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
       AND (NOT $10::boolean OR timers.lease_until <= duly.now())
 RETURNING timers.shard, timers.id, timers.tenant, timers.lane, done.fence,
           timers.attempt * done.charge AS charged, done.holder, timers.started_at, done.outcome,
           done.error, timers.due_at, timers.run_at, timers.concurrency_key IS NOT NULL AS has_key
), recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, holder, started_at, ended_at,
                               outcome, error, run_at)
    SELECT shard, id, fence, tenant, charged, holder, started_at,
           greatest(duly.now(), started_at), outcome, error, run_at
      FROM again
)
SELECT id, fence, due_at, tenant, shard, lane, has_key FROM again

-- name: classify_settlements
-- Why did a settlement change nothing? One statement, so that the timer and the record are seen at
-- the same instant: still ours, settled before in the same words, or lost.
SELECT asked.ordinal,
       timers.id IS NOT NULL AS is_held,
       coalesce(timers.cancel_requested, false) AS cancel_requested,
       coalesce(attempts.holder = asked.holder
                AND attempts.outcome = asked.outcome
                AND attempts.result IS NOT DISTINCT FROM asked.result
                AND attempts.error IS NOT DISTINCT FROM asked.error, false) AS is_replay
  FROM unnest($1::integer[], $2::smallint[], $3::uuid[], $4::integer[], $5::uuid[], $6::text[],
              $7::text[], $8::text[])
       AS asked(ordinal, shard, id, fence, holder, outcome, result, error)
  LEFT JOIN duly.timers
    ON timers.shard = asked.shard AND timers.id = asked.id
   AND timers.fence = asked.fence AND timers.holder = asked.holder
  LEFT JOIN duly.attempts
    ON attempts.shard = asked.shard AND attempts.id = asked.id AND attempts.fence = asked.fence

-- name: read_policies
-- What decides between another attempt and the end; the fence makes a stale answer harmless.
SELECT timers.id, timers.attempt, tasks.policy, tasks.type, tasks.pool
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.timers ON timers.shard = asked.shard AND timers.id = asked.id
  JOIN duly.tasks ON tasks.shard = timers.shard AND tasks.id = timers.id
