-- name: scan_oldest_ready
-- Over one page of places: the oldest due and unleased timer of each (tenant, band), by one probe
-- of the loading index for each place. What is due later is not ready, however old. The last place
-- of the page comes with every row, and alone if nothing is ready.
WITH page AS MATERIALIZED (
    SELECT tenant, shard, queue
      FROM duly.placements
     WHERE (tenant, shard, queue) > ($1, $2, $3)
     ORDER BY tenant, shard, queue
     LIMIT $4
), final AS (
    SELECT tenant, shard, queue FROM page ORDER BY tenant DESC, shard DESC, queue DESC LIMIT 1
), oldest AS (
    SELECT page.tenant, ((page.queue - 1) % 3)::smallint AS band, min(head.due_at) AS due_at
      FROM page
     CROSS JOIN LATERAL (
           SELECT timers.due_at
             FROM duly.timers
            WHERE timers.tenant = page.tenant
              AND timers.tenant > 0
              AND timers.shard = page.shard
              AND timers.queue = page.queue
              AND timers.due_at <= duly.now()
              AND timers.holder IS NULL
            ORDER BY timers.due_at
            LIMIT 1) AS head
     WHERE page.queue > 0
     GROUP BY page.tenant, band
)
SELECT final.tenant AS last_tenant, final.shard AS last_shard, final.queue AS last_queue,
       (SELECT count(*) FROM page) AS places,
       coalesce(tenants.name, oldest.tenant::text) AS tenant, oldest.band,
       extract(epoch FROM duly.now() - oldest.due_at)::double precision AS age_s
  FROM final
  LEFT JOIN oldest ON true
  LEFT JOIN duly.tenants ON tenants.id = oldest.tenant

-- name: count_backlog
-- How much of each tenant of a page is due, and how much is for later. A count stops at its bound over
-- all places of the tenant, so it costs the same with ten thousand tasks and with ten million.
WITH page AS MATERIALIZED (
    SELECT tenants.id, tenants.name
      FROM duly.tenants
     WHERE tenants.id > $1
     ORDER BY tenants.id
     LIMIT $2
)
SELECT page.id, page.name,
       (SELECT count(*)
          FROM (SELECT
                  FROM duly.placements
                 CROSS JOIN LATERAL (
                       SELECT FROM duly.timers
                        WHERE timers.tenant = page.id
                          AND timers.tenant > 0
                          AND timers.shard = placements.shard
                          AND timers.queue = placements.queue
                          AND timers.due_at <= duly.now()
                          AND timers.holder IS NULL
                        LIMIT $3) AS due
                 WHERE placements.tenant = page.id AND placements.queue > 0
                 LIMIT $3) AS found) AS ready,
       (SELECT count(*)
          FROM (SELECT
                  FROM duly.placements
                 CROSS JOIN LATERAL (
                       SELECT FROM duly.timers
                        WHERE timers.tenant = page.id
                          AND timers.tenant > 0
                          AND timers.shard = placements.shard
                          AND timers.queue = placements.queue
                          AND timers.due_at > duly.now()
                        LIMIT $3) AS due
                 WHERE placements.tenant = page.id AND placements.queue > 0
                 LIMIT $3) AS found) AS scheduled
  FROM page
 ORDER BY page.id
