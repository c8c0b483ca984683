-- name: create_tenant
-- The name decides: a second one of the same name changes nothing and is told so.
INSERT INTO duly.tenants (name, weight, in_flight_max, dispatch_rate, dispatch_burst, submit_rate,
                          submit_burst, stored_max, schedule_s_min, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, duly.now())
    ON CONFLICT (name) DO NOTHING
RETURNING id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
          submit_burst, stored_max, schedule_s_min, suspended_at

-- name: find_tenant
-- Requests name a tenant; rows hold its number.
SELECT id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
       submit_burst, stored_max, schedule_s_min, suspended_at
  FROM duly.tenants
 WHERE name = $1

-- name: read_tenant
-- The same by its number, for authentication.
SELECT id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
       submit_burst, stored_max, schedule_s_min, suspended_at
  FROM duly.tenants
 WHERE id = $1

-- name: list_tenants
-- By name, a page at a time.
SELECT id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
       submit_burst, stored_max, schedule_s_min, suspended_at
  FROM duly.tenants
 WHERE name > $1
 ORDER BY name
 LIMIT $2

-- name: count_stored
-- Live tasks of a tenant, place by place and no further than the bound: for its quota.
SELECT count(*) AS stored
  FROM (SELECT
          FROM (SELECT DISTINCT placements.shard, queues.queue
                  FROM duly.placements
                 CROSS JOIN LATERAL (VALUES (placements.queue), (0::smallint)) AS queues(queue)
                 WHERE placements.tenant = $1) AS place
         CROSS JOIN LATERAL (
               SELECT FROM duly.timers
                WHERE timers.tenant = $1
                  AND timers.tenant > 0
                  AND timers.shard = place.shard
                  AND timers.queue = place.queue
                LIMIT $2) AS found
         LIMIT $2) AS counted

-- name: update_tenant
-- The limits as a whole, so that no two writers can mix theirs.
UPDATE duly.tenants
   SET weight = $2, in_flight_max = $3, dispatch_rate = $4, dispatch_burst = $5, submit_rate = $6,
       submit_burst = $7, stored_max = $8, schedule_s_min = $9
 WHERE id = $1
RETURNING id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
          submit_burst, stored_max, schedule_s_min, suspended_at

-- name: suspend_tenant
-- Again keeps the first instant; false ends it.
UPDATE duly.tenants
   SET suspended_at = CASE WHEN $2::boolean THEN coalesce(suspended_at, duly.now()) END
 WHERE id = $1
RETURNING id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
          submit_burst, stored_max, schedule_s_min, suspended_at

-- name: lock_tenant
-- For a change of some limits that keeps the others: no concurrent change until this one commits.
SELECT id, name, weight, in_flight_max, dispatch_rate, dispatch_burst, spread, submit_rate,
       submit_burst, stored_max, schedule_s_min, suspended_at
  FROM duly.tenants
 WHERE name = $1
   FOR NO KEY UPDATE

-- name: read_schedule_bound
-- What a new definition is held against: how close its fires may be, and what time it is.
SELECT schedule_s_min, duly.now() AS now
  FROM duly.tenants
 WHERE id = $1

-- name: raise_spread
-- Only from the spread that was believed, only wider, and only without a cap or a dispatch rate: one
-- node dispatches all of such a tenant, wherever its tasks lie.
UPDATE duly.tenants
   SET spread = $3
 WHERE id = $1
   AND spread = $2
   AND spread < $3
   AND in_flight_max IS NULL
   AND dispatch_rate IS NULL
RETURNING spread

-- name: read_gate_inputs
-- All that the gates know of a page of tenants, in one look: a tenant stands in one row for each of
-- its pauses and breakers, or in one row alone. A paused pool may not exist yet. A suspension counts
-- as a pause of the tenant, after its own.
SELECT tenants.id, tenants.name, tenants.weight, tenants.in_flight_max, tenants.dispatch_rate,
       tenants.dispatch_burst, tenants.spread,
       closed.kind, closed.subject, closed.pool, closed.actor, closed.reason, closed.instant,
       closed.ramp_at
  FROM (SELECT * FROM duly.tenants WHERE id > $1 ORDER BY id LIMIT $2) AS tenants
  LEFT JOIN LATERAL (
       (SELECT pauses.kind, pauses.name AS subject, pools.number AS pool, pauses.actor,
               pauses.reason, pauses.paused_at AS instant, NULL::timestamptz AS ramp_at
          FROM duly.pauses
          LEFT JOIN duly.pools
            ON pools.tenant = pauses.tenant AND pools.name = pauses.name AND pauses.kind = 'pool'
         WHERE pauses.tenant = tenants.id
         LIMIT $3)
        UNION ALL
       (SELECT 'breaker', breakers.host, NULL, NULL, breakers.reason, breakers.open_until,
               breakers.ramp_at
          FROM duly.breakers
         WHERE breakers.tenant = tenants.id
           AND (breakers.ramp_at IS NULL
                OR breakers.ramp_at > duly.now() - make_interval(secs => $4))
         LIMIT $3)
        UNION ALL
       (SELECT 'tenant', '', NULL, 'an admin', 'the tenant is suspended', tenants.suspended_at, NULL
         WHERE tenants.suspended_at IS NOT NULL)) AS closed ON true
 ORDER BY tenants.id

-- name: set_pause
-- A repeated pause: the newest actor and reason stand. Of a tenant that does not exist, or past the
-- bound of what the gates read, nothing.
WITH known AS (
    SELECT tenants.id FROM duly.tenants WHERE tenants.id = $1
), counted AS (
    SELECT count(*) AS others
      FROM duly.pauses
     WHERE tenant = $1 AND (kind, name) <> ($2, $3)
), written AS (
    INSERT INTO duly.pauses (tenant, kind, name, actor, reason, paused_at)
    SELECT known.id, $2, $3, $4, $5, duly.now()
      FROM known, counted
     WHERE counted.others < $6
        ON CONFLICT (tenant, kind, name) DO UPDATE
       SET actor = excluded.actor, reason = excluded.reason, paused_at = excluded.paused_at
    RETURNING 1
)
SELECT EXISTS (SELECT FROM known) AS is_known, EXISTS (SELECT FROM written) AS is_written

-- name: list_pauses
-- One tenant's, by kind and name, a page at a time.
SELECT tenant, kind, name, NULL::smallint AS pool, actor, reason, paused_at
  FROM duly.pauses
 WHERE tenant = $1 AND (kind, name) > ($2, $3)
 ORDER BY kind, name
 LIMIT $4

-- name: find_pause
-- Who stopped this, when, and why.
SELECT tenant, kind, name, NULL::smallint AS pool, actor, reason, paused_at
  FROM duly.pauses
 WHERE tenant = $1 AND kind = $2 AND name = $3

-- name: clear_pause
-- Nothing deleted: it was not paused.
DELETE FROM duly.pauses
 WHERE tenant = $1 AND kind = $2 AND name = $3
RETURNING tenant

-- name: count_in_flight
-- Leased rows of some tenants, shard by shard, by the index that loading uses: they sit in queue 0, or,
-- where they were leased in place a moment ago, the newest expiry batches name them. The shards are stepped
-- through, since one of them has many lanes; offset and bounds keep the planner to the key.
WITH RECURSIVE asked AS (
    SELECT DISTINCT tenant FROM unnest($1::integer[]) AS given(tenant)
), places(tenant, shard) AS (
    SELECT asked.tenant, first.shard
      FROM asked
     CROSS JOIN LATERAL (SELECT placements.shard FROM duly.placements
                          WHERE placements.tenant = asked.tenant
                          ORDER BY placements.shard LIMIT 1) AS first
     UNION ALL
    SELECT places.tenant, next.shard
      FROM places
     CROSS JOIN LATERAL (SELECT placements.shard FROM duly.placements
                          WHERE placements.tenant = places.tenant
                            AND placements.shard > places.shard
                          ORDER BY placements.shard LIMIT 1) AS next
)
SELECT places.tenant, sum(leased.rows + in_place.rows)::bigint AS in_flight
  FROM places
 CROSS JOIN LATERAL (
       SELECT count(*) AS rows
         FROM (SELECT FROM duly.timers
                WHERE timers.tenant = places.tenant
                  AND timers.tenant > 0
                  AND timers.shard = places.shard
                  AND timers.queue = 0
                LIMIT $2) AS counted) AS leased
 CROSS JOIN LATERAL (
       SELECT count(*) AS rows
         FROM (SELECT lease_expiry_batches.expires_at, lease_expiry_batches.ids
                 FROM duly.lease_expiry_batches
                WHERE lease_expiry_batches.tenant = places.tenant AND lease_expiry_batches.shard = places.shard
                ORDER BY lease_expiry_batches.expires_at DESC, lease_expiry_batches.number DESC
                LIMIT $3) AS batch
        CROSS JOIN LATERAL (
              SELECT FROM duly.timers
               WHERE timers.shard = places.shard
                 AND timers.id = ANY (batch.ids)
                 AND timers.id BETWEEN batch.ids[1] AND batch.ids[cardinality(batch.ids)]
                 AND timers.holder IS NOT NULL
                 AND timers.lease_until = batch.expires_at
                 AND timers.queue <> 0
              OFFSET 0) AS counted) AS in_place
 GROUP BY places.tenant

-- name: count_in_flight_by_key
-- Everything with one key shares a shard, so each (tenant, shard) is walked once for all its keys.
SELECT place.tenant, place.shard, leased.concurrency_key AS key, count(*) AS in_flight
  FROM (SELECT DISTINCT tenant, shard
          FROM unnest($1::integer[], $2::smallint[]) AS given(tenant, shard)) AS place
 CROSS JOIN LATERAL (
       SELECT timers.concurrency_key
         FROM duly.timers
        WHERE timers.tenant = place.tenant
          AND timers.tenant > 0
          AND timers.shard = place.shard
          AND timers.queue = 0
          AND timers.concurrency_key = ANY ($3::text[])
        LIMIT $4) AS leased
 GROUP BY place.tenant, place.shard, leased.concurrency_key
