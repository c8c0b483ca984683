-- name: open_breaker
-- Several nodes see the same failures: the latest end stands, and no one shortens another's. Past
-- the bound of what the gates read, nothing.
WITH known AS (
    SELECT tenants.id FROM duly.tenants WHERE tenants.id = $1
), counted AS (
    SELECT count(*) AS others
      FROM duly.breakers
     WHERE tenant = $1 AND host <> $2 AND open_until > duly.now()
)
INSERT INTO duly.breakers AS breakers (tenant, host, open_until, reason)
SELECT known.id, $2, duly.now() + make_interval(secs => $3), $4
  FROM known, counted
 WHERE counted.others < $5
    ON CONFLICT (tenant, host) DO UPDATE
   SET open_until = greatest(breakers.open_until, excluded.open_until),
       reason = excluded.reason,
       ramp_at = NULL
RETURNING open_until

-- name: reopen_breaker
-- The probe failed. Late words of calls that began before it opened change nothing: it is open.
UPDATE duly.breakers
   SET open_until = duly.now() + make_interval(secs => $3)
 WHERE tenant = $1 AND host = $2 AND ramp_at IS NULL AND open_until <= duly.now()
RETURNING open_until

-- name: ramp_breaker
-- The probe succeeded; the first to say so begins the ramp.
UPDATE duly.breakers
   SET ramp_at = duly.now()
 WHERE tenant = $1 AND host = $2 AND ramp_at IS NULL AND open_until <= duly.now()
RETURNING ramp_at

-- name: read_watched
-- Every breaker that is not over, of all tenants: few, or the world is on fire.
SELECT tenant, host, ramp_at
  FROM duly.breakers
 WHERE ramp_at IS NULL OR ramp_at > duly.now() - make_interval(secs => $1)
 LIMIT $2

-- name: list_breakers
-- One tenant's, in the order of their subjects. A pool is stored by its number and shown by its name.
SELECT breakers.host, pools.name AS pool_name, breakers.reason, breakers.open_until, breakers.ramp_at,
       duly.now() AS now
  FROM duly.breakers
  LEFT JOIN duly.pools
    ON pools.tenant = breakers.tenant AND breakers.host = 'pool/' || pools.number
 WHERE breakers.tenant = $1
   AND breakers.host > $2
   AND (breakers.ramp_at IS NULL OR breakers.ramp_at > duly.now() - make_interval(secs => $3))
 ORDER BY breakers.host
 LIMIT $4

-- name: close_breaker
-- Nothing deleted: it was not open.
DELETE FROM duly.breakers
 WHERE tenant = $1 AND host = $2
RETURNING tenant

-- name: close_pool_breaker
-- By the name that people know.
DELETE FROM duly.breakers
 USING duly.pools
 WHERE breakers.tenant = $1
   AND pools.tenant = $1
   AND pools.name = $2
   AND breakers.host = 'pool/' || pools.number
RETURNING breakers.tenant

-- name: read_worker_tasks
-- Successes count for breakers only where failures are on record, so nothing carries type and pool of
-- a completed task to this place.
SELECT tasks.id, tasks.type, tasks.pool
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.tasks ON tasks.shard = asked.shard AND tasks.id = asked.id
