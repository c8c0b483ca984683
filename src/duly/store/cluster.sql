-- name: list_nodes
-- Every process with a recent heartbeat, and how many slots it holds now.
SELECT nodes.id, nodes.name, nodes.version, nodes.roles, nodes.started_at, nodes.seen_at,
       nodes.expires_at, nodes.expires_at > duly.now() AS is_live,
       (SELECT count(*)
          FROM duly.ownership
         WHERE ownership.kind = 'slot'
           AND ownership.holder = nodes.id
           AND ownership.expires_at > duly.now()) AS slots,
       nodes.failing::text AS failing, nodes.carrier::text AS carrier
  FROM duly.nodes
 WHERE nodes.id > $1
 ORDER BY nodes.id
 LIMIT $2

-- name: list_slots
-- Every slot and who dispatches for it. A name is missing when the holder's node is gone already.
SELECT ownership.number, ownership.holder, nodes.name AS node, ownership.epoch,
       ownership.expires_at,
       ownership.holder IS NOT NULL AND ownership.expires_at > duly.now() AS is_owned
  FROM duly.ownership
  LEFT JOIN duly.nodes ON nodes.id = ownership.holder
 WHERE ownership.kind = 'slot' AND ownership.number > $1
 ORDER BY ownership.number
 LIMIT $2

-- name: list_workers
-- A tenant's own processes that are alive; a silent one stays in the table until it is swept.
SELECT id, holder, pools, started_at, seen_at, expires_at
  FROM duly.workers
 WHERE tenant = $1 AND id > $2 AND expires_at > duly.now()
 ORDER BY id
 LIMIT $3

-- name: delete_silent_workers
-- A bounded batch of processes that have long been silent.
DELETE FROM duly.workers
 WHERE (tenant, id) IN (
       SELECT tenant, id FROM duly.workers
        WHERE expires_at < duly.now() - make_interval(secs => $1)
        LIMIT $2)
   AND expires_at < duly.now() - make_interval(secs => $1)
RETURNING id

-- name: read_depths
-- How much waits in each band, and since when. A count stops at its bound over the whole band, so it
-- costs the same with a thousand tasks and with a million; the oldest is one probe for each place.
-- The instant is asked for once: under row-level security the planner takes the time function for
-- leaky, and would compare row by row instead of by the index. The bounds of each place keep it from
-- reading all places for each of them, which on a small table looks as good.
WITH places AS MATERIALIZED (
    SELECT placements.shard, placements.queue, (placements.queue - 1) % 3 AS band
      FROM duly.placements
     WHERE placements.tenant = $1 AND placements.queue > 0
     ORDER BY placements.shard, placements.queue
     LIMIT $2
)
SELECT bands.band,
       (SELECT count(*)
          FROM (SELECT
                  FROM places
                 CROSS JOIN LATERAL (
                       SELECT FROM duly.timers
                        WHERE timers.tenant = $1
                          AND timers.tenant > 0
                          AND timers.shard = places.shard
                          AND timers.queue = places.queue
                          AND timers.due_at <= (SELECT duly.now())
                          AND timers.holder IS NULL
                        LIMIT $3) AS due
                 WHERE places.band = bands.band
                 LIMIT $3) AS found) AS ready,
       (SELECT count(*)
          FROM (SELECT
                  FROM places
                 CROSS JOIN LATERAL (
                       SELECT FROM duly.timers
                        WHERE timers.tenant = $1
                          AND timers.tenant > 0
                          AND timers.shard = places.shard
                          AND timers.queue = places.queue
                          AND timers.due_at > (SELECT duly.now())
                        LIMIT $3) AS due
                 WHERE places.band = bands.band
                 LIMIT $3) AS found) AS scheduled,
       (SELECT extract(epoch FROM duly.now() - min(head.due_at))::double precision
          FROM places
         CROSS JOIN LATERAL (
-- include: load.ready_timers tenant=$1 queue=places limit=1
               ) AS head
         WHERE places.band = bands.band) AS oldest_ready_s
  FROM generate_series(0, 2) AS bands(band)
 ORDER BY bands.band

-- name: read_pools
-- Pools with due tasks, since when, and the live workers that take from them: due tasks in a pool without
-- a worker wait for ever. One probe for each place, as above; webhooks have no pool by name.
WITH places AS MATERIALIZED (
    SELECT placements.shard, placements.queue, ((placements.queue - 1) / 3)::smallint AS pool
      FROM duly.placements
     WHERE placements.tenant = $1 AND placements.queue > 0
     ORDER BY placements.shard, placements.queue
     LIMIT $2
), ready AS (
    SELECT places.pool, min(head.due_at) AS due_at
      FROM places
     CROSS JOIN LATERAL (
-- include: load.ready_timers tenant=$1 queue=places limit=1
           ) AS head
     GROUP BY places.pool
)
SELECT pools.name, extract(epoch FROM duly.now() - ready.due_at)::double precision AS oldest_ready_s,
       (SELECT count(*)
          FROM duly.workers
         WHERE workers.tenant = $1
           AND workers.expires_at > duly.now()
           AND pools.name = ANY(workers.pools)) AS workers
  FROM ready
  JOIN duly.pools ON pools.tenant = $1 AND pools.number = ready.pool
 ORDER BY ready.due_at, pools.name
 LIMIT $3

-- name: read_workflow_overdue
-- How long what a tenant's workflows had to do longest waits for its scheduler, among a bounded number of
-- what is due.
SELECT extract(epoch FROM duly.now() - min(due.due_at))::double precision AS overdue_s
  FROM (SELECT workflow_timers.tenant, workflow_timers.due_at
          FROM duly.workflow_timers
         WHERE workflow_timers.due_at <= (SELECT duly.now())
         ORDER BY workflow_timers.due_at
         LIMIT $2) AS due
 WHERE due.tenant = $1

-- name: count_letters
-- Letters that were not replayed, among a bounded number of the newest.
SELECT count(*) FILTER (WHERE replayed_as IS NULL) AS letters
  FROM (SELECT replayed_as
          FROM duly.dead_letters
         WHERE tenant = $1
         ORDER BY failed_at DESC, id DESC
         LIMIT $2) AS newest

-- name: list_open_breakers
-- Hosts, types and pools that get no work for a while.
SELECT breakers.host, pools.name AS pool_name, breakers.reason, breakers.open_until
  FROM duly.breakers
  LEFT JOIN duly.pools
    ON pools.tenant = breakers.tenant AND breakers.host = 'pool/' || pools.number
 WHERE breakers.tenant = $1 AND breakers.open_until > duly.now()
 ORDER BY breakers.host
 LIMIT $2
