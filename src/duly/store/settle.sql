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
