-- name: explain_task
-- A task and what is known around it, in one statement: read apart, a task that moves in between
-- would seem to wait for what it has already got. A suspension of the tenant comes before its pause,
-- that before one of the type and one of the pool; of two that stand, the first is told. A tenant with a cap or a
-- rate is dispatched by the owner of its home slot.
SELECT tasks.policy, tasks.pool, pools.name AS pool_name,
       timers.id IS NOT NULL AS is_live,
       timers.queue, timers.due_at, timers.holder, timers.started_at, timers.lease_until,
       timers.cancel_requested, timers.concurrency_key, timers.concurrency_limit, timers.host,
       CASE WHEN timers.started_at IS NULL THEN timers.start_by END AS start_by,
       (SELECT count(*) FROM duly.attempts
         WHERE attempts.shard = $2 AND attempts.id = $3 AND attempts.charged > 0) AS charged,
       last.outcome AS last_outcome, last.charged AS last_charged, last.ended_at AS last_ended_at,
       last.state AS last_state, last.reason AS last_reason, last.error AS last_error,
       tenants.name AS tenant_name, tenants.in_flight_max, tenants.dispatch_rate,
       tenants.dispatch_burst, tenants.weight,
       pause.kind AS pause_kind, pause.name AS pause_name, pause.actor AS pause_actor,
       pause.reason AS pause_reason, pause.paused_at,
       breaker.open_until AS breaker_open_until, breaker.host AS breaker_subject,
       ownership.number AS slot, ownership.void_at,
       coalesce(ownership.holder IS NOT NULL AND ownership.expires_at > duly.now(), false)
           AS has_owner,
       EXISTS (SELECT FROM duly.nodes
                WHERE 'executor' = ANY (nodes.roles) AND nodes.expires_at > duly.now())
           AS has_executor,
       rate_levels.tokens, rate_levels.rate, rate_levels.burst, rate_levels.told_at,
       worker.id AS holder_name,
       duly.now() AS now
  FROM duly.tasks
  LEFT JOIN duly.timers ON timers.shard = $2 AND timers.id = $3
  LEFT JOIN duly.pools ON pools.tenant = $1 AND pools.number = tasks.pool
  LEFT JOIN duly.tenants ON tenants.id = $1
  LEFT JOIN LATERAL (
       SELECT breakers.host, breakers.open_until
         FROM duly.breakers
        WHERE breakers.tenant = $1
          AND breakers.host = ANY (CASE WHEN timers.host IS NOT NULL THEN ARRAY[timers.host]
                ELSE ARRAY['type/' || tasks.type, 'pool/' || tasks.pool] END)
        ORDER BY breakers.open_until DESC
        LIMIT 1) AS breaker ON true
  LEFT JOIN duly.ownership
    ON ownership.kind = 'slot'
   AND ownership.number = CASE WHEN tenants.in_flight_max IS NULL AND tenants.dispatch_rate IS NULL
                               THEN $4::smallint ELSE $5::smallint END
  LEFT JOIN duly.rate_levels ON rate_levels.tenant = $1
  LEFT JOIN LATERAL (
       SELECT * FROM duly.attempts
        WHERE attempts.shard = $2 AND attempts.id = $3
        ORDER BY attempts.fence DESC
        LIMIT 1) AS last ON true
  LEFT JOIN LATERAL (
       (SELECT 'suspension' AS kind, '' AS name, NULL AS actor, NULL AS reason,
               tenants.suspended_at AS paused_at, 0 AS place
         WHERE tenants.suspended_at IS NOT NULL)
        UNION ALL
       (SELECT pauses.kind, pauses.name, pauses.actor, pauses.reason, pauses.paused_at, asked.place
          FROM (VALUES (1, 'tenant', ''), (2, 'type', tasks.type), (3, 'pool', pools.name))
               AS asked(place, kind, name)
          JOIN duly.pauses
            ON pauses.tenant = $1 AND pauses.kind = asked.kind AND pauses.name = asked.name)
        ORDER BY place
        LIMIT 1) AS pause ON true
  LEFT JOIN LATERAL (
       SELECT workers.id FROM duly.workers
        WHERE workers.tenant = $1 AND workers.holder = timers.holder
        LIMIT 1) AS worker ON true
 WHERE tasks.shard = $2 AND tasks.id = $3 AND tasks.tenant + 0 = $1

-- name: count_contention
-- How much of a tenant is in flight, of one key, and waiting before a task; who could take it, and how
-- full its lane is. Nothing is counted further than anybody needs to know: what is in flight matters
-- where a cap or a key bounds it, and that is always in queue 0.
WITH RECURSIVE places(shard) AS (
    (SELECT placements.shard FROM duly.placements
      WHERE placements.tenant = $1
      ORDER BY placements.shard LIMIT 1)
     UNION ALL
    SELECT next.shard
      FROM places
     CROSS JOIN LATERAL (SELECT placements.shard FROM duly.placements
                          WHERE placements.tenant = $1 AND placements.shard > places.shard
                          ORDER BY placements.shard LIMIT 1) AS next
)
SELECT (SELECT count(*)
          FROM (SELECT FROM places
                 CROSS JOIN LATERAL (SELECT FROM duly.timers
                                      WHERE timers.tenant = $1
                                        AND timers.tenant > 0
                                        AND timers.shard = places.shard
                                        AND timers.queue = 0
                                      LIMIT $9) AS leased
                 LIMIT $9) AS counted) AS in_flight,
       (SELECT count(*)
          FROM (SELECT FROM duly.timers
                 WHERE timers.tenant = $1
                   AND timers.tenant > 0
                   AND timers.shard = $2
                   AND timers.queue = 0
                   AND timers.concurrency_key = $6
                 LIMIT $10) AS counted) AS key_in_flight,
       (SELECT count(*)
          FROM (SELECT FROM places
                 CROSS JOIN LATERAL (SELECT FROM duly.timers
                                      WHERE timers.tenant = $1
                                        AND timers.tenant > 0
                                        AND timers.shard = places.shard
                                        AND timers.queue = $3
                                        AND (timers.due_at, timers.id) < ($4, $5::uuid)
                                        AND timers.holder IS NULL
                                      LIMIT $8) AS earlier
                 LIMIT $8) AS counted) AS ahead,
       (SELECT count(*)
          FROM (SELECT FROM duly.workers
                 WHERE workers.tenant = $1
                   AND workers.expires_at > duly.now()
                   AND $7 = ANY (workers.pools)
                 LIMIT $11) AS counted) AS workers,
       (SELECT max(known.seen_at)
          FROM (SELECT workers.seen_at FROM duly.workers
                 WHERE workers.tenant = $1 AND $7 = ANY (workers.pools)
                 LIMIT $15) AS known) AS worker_seen_at,
       duly.tenant_lane_depth($12, $13, $14) AS lane_depth,
       duly.lane_depth($12, $13, $14) AS queue_depth

-- name: list_key_holders
-- Which tasks hold a concurrency key, those first whose leases end first.
SELECT timers.id, timers.lease_until, coalesce(worker.id, timers.holder::text) AS holder
  FROM duly.timers
  LEFT JOIN LATERAL (
       SELECT workers.id FROM duly.workers
        WHERE workers.tenant = $1 AND workers.holder = timers.holder
        LIMIT 1) AS worker ON true
 WHERE timers.tenant = $1
   AND timers.tenant > 0
   AND timers.shard = $2
   AND timers.queue = 0
   AND timers.concurrency_key = $3
 ORDER BY timers.lease_until, timers.id
 LIMIT $4

-- name: tell_rate_levels
-- The newest report stands; a replaced owner soon stops reporting.
INSERT INTO duly.rate_levels (tenant, tokens, rate, burst, told_at)
SELECT told.tenant, told.tokens, told.rate, told.burst, duly.now()
  FROM unnest($1::integer[], $2::double precision[], $3::double precision[], $4::double precision[])
       AS told(tenant, tokens, rate, burst)
    ON CONFLICT (tenant) DO UPDATE
   SET tokens = excluded.tokens, rate = excluded.rate, burst = excluded.burst,
       told_at = excluded.told_at
