-- name: scan_ready
-- Over one page of timer queues: the oldest due and unleased timer of each (tenant, pool, band), and how
-- many there are, by one probe of the loading index for each queue. What is due later is not ready,
-- however old. The last queue of the page comes with every row, and alone if nothing is ready.
WITH page AS MATERIALIZED (
    SELECT tenant, shard, queue
      FROM duly.placements
     WHERE (tenant, shard, queue) > ($1, $2, $3)
     ORDER BY tenant, shard, queue
     LIMIT $4
), final AS (
    SELECT tenant, shard, queue FROM page ORDER BY tenant DESC, shard DESC, queue DESC LIMIT 1
), ready AS (
    SELECT page.tenant, ((page.queue - 1) / 3)::smallint AS pool,
           ((page.queue - 1) % 3)::smallint AS band, min(head.due_at) AS due_at,
           sum(head.tasks)::bigint AS tasks
      FROM page
     CROSS JOIN LATERAL (
           SELECT min(due.due_at) AS due_at, count(*) AS tasks
             FROM (
-- include: load.ready_timers tenant=page.tenant queue=page limit=$5
                  ) AS due) AS head
     WHERE page.queue > 0 AND head.tasks > 0
     GROUP BY page.tenant, pool, band
)
SELECT final.tenant AS last_tenant, final.shard AS last_shard, final.queue AS last_queue,
       (SELECT count(*) FROM page) AS places,
       coalesce(tenants.name, ready.tenant::text) AS tenant, pools.name AS pool, ready.band,
       extract(epoch FROM duly.now() - ready.due_at)::double precision AS age_s, ready.tasks
  FROM final
  LEFT JOIN ready ON true
  LEFT JOIN duly.tenants ON tenants.id = ready.tenant
  LEFT JOIN duly.pools ON pools.tenant = ready.tenant AND pools.number = ready.pool

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

-- name: count_workers
-- Workers that live, by pool; one that serves several counts in each.
SELECT coalesce(tenants.name, live.tenant::text) AS tenant, live.pool, count(*) AS workers
  FROM (SELECT workers.tenant, unnest(workers.pools) AS pool
          FROM duly.workers
         WHERE workers.expires_at > duly.now()
         LIMIT $1) AS live
  LEFT JOIN duly.tenants ON tenants.id = live.tenant
 GROUP BY 1, 2

-- name: count_breakers
-- Open now: the ramp of one that closes is not.
SELECT breakers.host
  FROM duly.breakers
 WHERE breakers.ramp_at IS NULL
 LIMIT $1

-- name: count_schedules
-- Those that fire and those that are paused, and how long the oldest due occurrence waits.
SELECT count(*) FILTER (WHERE schedules.paused_at IS NULL) AS active,
       count(*) FILTER (WHERE schedules.paused_at IS NOT NULL) AS paused,
       coalesce(extract(epoch FROM duly.now() - min(schedule_timers.due_at)
                                   FILTER (WHERE schedules.paused_at IS NULL)), 0)::double precision
           AS overdue_s
  FROM duly.schedules
  JOIN duly.schedule_timers
    ON schedule_timers.shard = schedules.shard AND schedule_timers.id = schedules.id

-- name: count_workflows
-- Workflows that started and ended since the last look, wherever that was; those that live; and what they
-- wait for. One statement: this is asked all the time, and answers nothing where there are none. The
-- stretch ends a margin before now, because a transaction commits later than its instant. What started
-- in it either lives, or ended later. Each count stops at its bound.
WITH stretch AS (
    SELECT duly.now() - make_interval(secs => $2) AS until
), ended AS MATERIALIZED (
    SELECT workflows.created_at, workflows.ended_at, workflows.state
      FROM duly.workflows
     WHERE workflows.ended_at > $1
     LIMIT $3
), started AS (
    SELECT FROM duly.workflows
     WHERE workflows.ended_at IS NULL
       AND workflows.created_at > $1
       AND workflows.created_at <= (SELECT until FROM stretch)
     LIMIT $3
), living AS MATERIALIZED (
    SELECT workflows.paused_at, workflows.compensating_at, workflows.live
      FROM duly.workflows
     WHERE workflows.ended_at IS NULL
     ORDER BY workflows.created_at
     LIMIT $4
), timers AS MATERIALIZED (
    SELECT workflow_timers.kind, workflow_timers.tries FROM duly.workflow_timers LIMIT $4
)
SELECT stretch.until,
       (SELECT count(*) FROM started)
       + (SELECT count(*) FROM ended
           WHERE ended.created_at > $1 AND ended.created_at <= stretch.until) AS started,
       (SELECT count(*) FROM ended
         WHERE ended.ended_at <= stretch.until AND ended.state = 'COMPLETED') AS completed,
       (SELECT count(*) FROM ended
         WHERE ended.ended_at <= stretch.until AND ended.state = 'FAILED') AS failed,
       (SELECT count(*) FROM ended
         WHERE ended.ended_at <= stretch.until AND ended.state = 'CANCELLED') AS cancelled,
       (SELECT count(*) FROM living WHERE paused_at IS NULL AND compensating_at IS NULL) AS running,
       (SELECT count(*) FROM living WHERE paused_at IS NOT NULL) AS paused,
       (SELECT count(*) FROM living WHERE paused_at IS NULL AND compensating_at IS NOT NULL)
           AS compensating,
       (SELECT coalesce(sum(live), 0) FROM living)::bigint AS nodes,
       ARRAY(SELECT kind FROM timers GROUP BY kind ORDER BY kind) AS kinds,
       ARRAY(SELECT count(*) FROM timers GROUP BY kind ORDER BY kind) AS timers,
       (SELECT count(*) FROM timers WHERE tries > 0) AS failing,
       coalesce((SELECT extract(epoch FROM duly.now() - workflow_timers.due_at)
                   FROM duly.workflow_timers
                  WHERE workflow_timers.due_at <= duly.now()
                  ORDER BY workflow_timers.due_at
                  LIMIT 1), 0)::double precision AS overdue_s
  FROM stretch
