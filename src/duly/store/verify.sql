-- name: keep_to_indexes
-- For this transaction: every page walks the keys in their order and stops. A plan that sorts or
-- hashes would read whole tables for each page.
SELECT set_config(name, 'off', true)
  FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'enable_hashagg',
                    'enable_hashjoin', 'enable_mergejoin', 'jit']) AS name

-- name: read_page
-- The next tasks in the order of their keys, with all that any table has under those keys, so that
-- rows without a task are met as well. Most tasks are plain: they wait for the first time, or
-- completed in their first attempt, and nothing is wrong with them. They are only counted; the keys of
-- all others are answered, to be judged from their rows. `IS TRUE`, because a NULL must not pass.
WITH page AS MATERIALIZED (
    SELECT shard, id,
           count(*) FILTER (WHERE kind = 1) AS tasks,
           count(*) FILTER (WHERE kind = 2) AS timers,
           count(*) FILTER (WHERE kind = 3) AS attempts,
           count(*) FILTER (WHERE kind = 4) AS letters,
           count(*) FILTER (WHERE kind = 5) AS tombstones,
           (bool_and(is_ungated)
            AND count(*) = 2
            AND count(*) FILTER (WHERE kind = 1) = 1
            AND min(tenant) = max(tenant)
            AND coalesce(min(started_at) >= max(run_at), true)) IS TRUE AS is_ungated
      FROM (SELECT 1 AS kind, shard, id, tenant, run_at, NULL::timestamptz AS started_at,
                   replay_of IS NULL AS is_ungated
              FROM duly.tasks
             UNION ALL
            SELECT 2, shard, id, tenant, NULL::timestamptz, NULL::timestamptz,
                   (fence = 0 AND attempt = 0 AND holder IS NULL AND started_at IS NULL
                    AND (due_at IS NULL OR due_at > duly.now() - make_interval(secs => $4))
                    AND EXISTS (SELECT FROM duly.placements AS place
                                 WHERE place.tenant = timers.tenant
                                   AND place.shard = timers.shard
                                   AND place.queue = timers.queue)
                    AND queue = duly.timer_queue(pool, priority)) IS TRUE
              FROM duly.timers
             UNION ALL
            SELECT 3, shard, id, tenant, NULL::timestamptz, started_at,
                   (fence = 1 AND charged = 1 AND outcome = 'completed' AND state = 'COMPLETED'
                    AND holder IS NOT NULL AND started_at <= ended_at) IS TRUE
              FROM duly.attempts
             UNION ALL
            SELECT 4, shard, id, tenant, NULL::timestamptz, NULL::timestamptz, false
              FROM duly.dead_letters
             UNION ALL
            SELECT 5, shard, id, tenant, NULL::timestamptz, NULL::timestamptz, false
              FROM duly.tombstones) AS found
     WHERE (shard, id) > ($1::smallint, $2::uuid)
       AND id >= $3::uuid
     GROUP BY shard, id
     ORDER BY shard, id
     LIMIT $5
)
SELECT count(*) AS keys,
       coalesce(sum(tasks), 0)::bigint AS tasks,
       coalesce(sum(timers), 0)::bigint AS timers,
       coalesce(sum(attempts), 0)::bigint AS attempts,
       coalesce(sum(letters), 0)::bigint AS dead_letters,
       coalesce(sum(tombstones), 0)::bigint AS tombstones,
       array_agg(shard) FILTER (WHERE NOT is_ungated) AS odd_shards,
       array_agg(id) FILTER (WHERE NOT is_ungated) AS odd_ids,
       array_agg(attempts) FILTER (WHERE NOT is_ungated) AS odd_attempts,
       (SELECT shard FROM page ORDER BY shard DESC, id DESC LIMIT 1) AS last_shard,
       (SELECT id FROM page ORDER BY shard DESC, id DESC LIMIT 1) AS last_id,
       duly.now() AS now,
       -- Only whole past months are forgotten; a minute, because our clock stood still at the start.
       duly.id_bound(date_trunc('month', (duly.now() + interval '1 minute') AT TIME ZONE 'UTC')
                     AT TIME ZONE 'UTC') AS kept_from
  FROM page

-- name: read_tasks
-- What was asked, as far as it is judged; payloads stay where they are.
SELECT tasks.id, tasks.tenant, tasks.run_at, tasks.policy, tasks.execution_key, tasks.replay_of,
       tasks.payload IS NOT NULL OR tasks.tags IS NOT NULL OR tasks.execution_key IS NOT NULL
       OR EXISTS (SELECT FROM duly.attempts
                   WHERE attempts.shard = tasks.shard
                     AND attempts.id = tasks.id
                     AND (attempts.result IS NOT NULL OR attempts.error IS NOT NULL)) AS has_data
  FROM unnest($1::smallint[], $2::uuid[]) AS odd(shard, id)
  JOIN duly.tasks ON tasks.shard = odd.shard AND tasks.id = odd.id

-- name: read_timers
-- What comes next, and whether a scheduler can find it: by its place, or, where it is leased in place,
-- by the expiry batch of its lease.
SELECT timers.id, timers.fence, timers.attempt, coalesce(timers.lease_until, timers.due_at) AS due_at,
       timers.holder, timers.started_at, timers.cancel_requested, timers.tenant,
       EXISTS (SELECT FROM duly.placements AS place
                WHERE place.tenant = timers.tenant
                  AND place.shard = timers.shard
                  AND place.queue = duly.timer_queue(timers.pool, timers.priority))
       AND timers.queue IN (0, duly.timer_queue(timers.pool, timers.priority))
       AND (timers.holder IS NULL OR timers.queue = 0
            OR EXISTS (SELECT FROM duly.lease_expiry_batches
                        WHERE lease_expiry_batches.tenant = timers.tenant
                          AND lease_expiry_batches.shard = timers.shard
                          AND lease_expiry_batches.expires_at = timers.lease_until
                          AND timers.id = ANY (lease_expiry_batches.ids))) AS is_placed,
       timers.run_at AS moved_to
  FROM unnest($1::smallint[], $2::uuid[]) AS odd(shard, id)
  JOIN duly.timers ON timers.shard = odd.shard AND timers.id = odd.id

-- name: read_attempts
-- What happened, without what was said about it.
SELECT attempts.id, attempts.fence, attempts.charged, attempts.holder, attempts.started_at,
       attempts.ended_at, attempts.outcome, attempts.state, attempts.tenant,
       attempts.run_at AS moved_to
  FROM unnest($1::smallint[], $2::uuid[]) AS odd(shard, id)
  JOIN duly.attempts ON attempts.shard = odd.shard AND attempts.id = odd.id

-- name: read_letters
-- What failed for good, and what it was replayed as.
SELECT letter.id, letter.execution_key, letter.replayed_as, letter.tenant
  FROM unnest($1::smallint[], $2::uuid[]) AS odd(shard, id)
  JOIN duly.dead_letters AS letter ON letter.shard = odd.shard AND letter.id = odd.id

-- name: read_tombstones
-- What was erased on request, and is therefore not lost.
SELECT tombstones.id
  FROM unnest($1::smallint[], $2::uuid[]) AS odd(shard, id)
  JOIN duly.tombstones ON tombstones.shard = odd.shard AND tombstones.id = odd.id

-- name: find_purged_letters
-- Of failed tasks without a dead letter, those whose letter may have been purged by hand: the audit
-- says so. A minute, because a purge may have begun before the failure it found.
SELECT suspect.id
  FROM unnest($1::integer[], $2::uuid[], $3::timestamptz[]) AS suspect(tenant, id, failed_at)
 WHERE EXISTS (SELECT FROM duly.audit
                WHERE audit.tenant = suspect.tenant
                  AND audit.at >= suspect.failed_at - interval '1 minute'
                  AND (audit.action = 'dead_letter.purge_many'
                       OR (audit.action = 'dead_letter.purge'
                           AND audit.subject = suspect.id::text)))

-- name: read_keys
-- The next idempotency keys: those with which something is wrong, and the last one, to go on from.
-- A key in another shard than its own could be claimed twice. A key stands for a task, or a workflow.
WITH page AS MATERIALIZED (
    SELECT shard, tenant, key, task_id, duly.shard_of(task_id) AS task_shard
      FROM duly.idempotency_keys
     WHERE (shard, tenant, key) > ($1::smallint, $2::integer, $3::text)
     ORDER BY shard, tenant, key
     LIMIT $4
), seen AS MATERIALIZED (
    SELECT page.*, coalesce(tasks.tenant, workflows.tenant) AS task_tenant,
           coalesce(tasks.run_at, workflows.created_at) AS run_at,
           page.shard = duly.key_shard(page.tenant, page.key) AS is_at_home,
           row_number() OVER () AS position, count(*) OVER () AS keys
      FROM page
      LEFT JOIN duly.tasks ON tasks.shard = page.task_shard AND tasks.id = page.task_id
      LEFT JOIN duly.workflows
        ON workflows.shard = page.task_shard AND workflows.id = page.task_id
)
SELECT shard, tenant, key, task_id, task_tenant, run_at, is_at_home, keys, position = keys AS is_last,
       EXISTS (SELECT FROM duly.tombstones
                WHERE tombstones.shard = seen.task_shard AND tombstones.id = seen.task_id)
           AS is_purged,
       duly.now() AS now,
       duly.id_bound(date_trunc('month', (duly.now() + interval '1 minute') AT TIME ZONE 'UTC')
                     AT TIME ZONE 'UTC') AS kept_from
  FROM seen
 WHERE position = keys OR task_tenant IS DISTINCT FROM tenant OR NOT is_at_home

-- name: read_ledger
-- The next occurrences: those with which something is wrong, and the last one, to go on from. What
-- fired has a task with the occurrence's own execution key; what did not fire needs nothing.
WITH page AS MATERIALIZED (
    SELECT shard, schedule, nominal_at, tenant, verdict, task
      FROM duly.occurrences
     WHERE (shard, schedule, nominal_at) > ($1::smallint, $2::uuid, $3::timestamptz)
     ORDER BY shard, schedule, nominal_at
     LIMIT $4
), seen AS MATERIALIZED (
    SELECT page.*, tasks.tenant AS task_tenant, tasks.run_at,
           tasks.execution_key = page.schedule || ':' || duly.instant_text(page.nominal_at) AS is_its,
           row_number() OVER () AS position, count(*) OVER () AS occurrences
      FROM page
      LEFT JOIN duly.tasks ON tasks.shard = duly.shard_of(page.task) AND tasks.id = page.task
)
SELECT shard, schedule, nominal_at, tenant, verdict, task, task_tenant, run_at,
       is_its IS TRUE AS is_its, occurrences, position = occurrences AS is_last,
       EXISTS (SELECT FROM duly.tombstones
                WHERE tombstones.shard = duly.shard_of(seen.task) AND tombstones.id = seen.task)
           AS is_purged,
       duly.now() AS now,
       duly.id_bound(date_trunc('month', (duly.now() + interval '1 minute') AT TIME ZONE 'UTC')
                     AT TIME ZONE 'UTC') AS kept_from
  FROM seen
 WHERE position = occurrences
    OR (task IS NOT NULL AND (task_tenant IS DISTINCT FROM tenant OR is_its IS NOT TRUE))

-- name: read_workflows
-- The next workflows in the order of their keys. What was stopped, or has a cascade of skips under way,
-- may be behind with its counts.
SELECT shard, id, live, completed, failed, skipped, cancelled, ended_at, paused_at IS NOT NULL AS is_paused,
       stop_reason IS NOT NULL AND ended_at IS NULL
           OR EXISTS (SELECT FROM duly.workflow_timers
                       WHERE workflow_timers.shard = workflows.shard
                         AND workflow_timers.workflow = workflows.id
                         AND workflow_timers.kind = 'cascade') AS is_deferred,
       duly.now() AS now
  FROM duly.workflows
 WHERE (shard, id) > ($1::smallint, $2::uuid)
   AND id >= $3::uuid
 ORDER BY shard, id
 LIMIT $4

-- name: read_nodes
-- All nodes of these workflows but for items of maps, with what became of them; ids of nodes say whose they
-- are. One that has started a workflow counts that. An open map counts items instead of parents; one over
-- pages may start before its parent has ended.
-- What became of one that is reused is what its source became.
SELECT asked.id AS workflow, node.id, duly.node_number(node.id) AS number, node.wait_rule,
       node.parents, timers.id IS NOT NULL AS is_live,
       CASE WHEN node.kind NOT IN (1, 3) OR timers.started_at IS NULL THEN timers.parents_pending END
           AS parents_pending,
       node.kind = 1 AS is_map,
       node.kind = 1 AND (node.spec::jsonb #>> '{map,path}') IS NULL
           AND (node.spec::jsonb #>> '{map,count}') IS NULL AS is_paged,
       CASE WHEN node.kind = 1 AND timers.started_at IS NOT NULL
            THEN timers.parents_pending - (timers.items_mark IS NOT NULL)::integer END AS items_pending,
       record.state, coalesce(record.started_at, timers.started_at) AS started_at, record.ended_at,
       node.is_step,
       timers.due_at IS NOT NULL AND timers.holder IS NULL AS may_start,
       timers.held_due_at IS NOT NULL AS is_held,
       node.source IS NOT NULL
           AND (timers.id IS NOT NULL
                OR EXISTS (SELECT FROM duly.attempts AS own
                            WHERE own.shard = node.shard AND own.id = node.id)) AS ran_again,
       node.is_step AND timers.due_at IS NULL AND timers.held_due_at IS NULL
           AND (timers.parents_pending IS NULL OR node.kind = 3 AND timers.started_at IS NOT NULL)
           AND timers.id IS NOT NULL
           AND NOT EXISTS (SELECT FROM duly.workflows AS inside
                            WHERE node.kind = 3
                              AND inside.shard = node.shard
                              AND inside.parent_node = node.id
                              AND inside.ended_at IS NULL)
           AND NOT EXISTS (SELECT FROM duly.workflow_timers AS armed
                            WHERE armed.shard = node.shard
                              AND armed.workflow = asked.id
                              AND armed.node = duly.node_number(node.id)) AS is_stranded
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.workflow_nodes AS node
    ON node.shard = asked.shard
   AND node.id > asked.id
   AND node.id <= duly.node_id(asked.id, 16777215)
   AND node.map_number IS NULL
  LEFT JOIN duly.timers ON timers.shard = node.shard AND timers.id = node.id
  LEFT JOIN LATERAL (
       SELECT max(attempts.state) AS state, min(attempts.started_at) AS started_at,
              max(attempts.ended_at) FILTER (WHERE attempts.state IS NOT NULL) AS ended_at
         FROM duly.attempts
        WHERE attempts.shard = node.shard
          AND attempts.id = coalesce(node.source, node.id)) AS record ON true

-- name: read_items
-- What became of the items of maps, added up for each: there may be a million of them.
SELECT asked.id AS workflow, item.map_number, count(*) FILTER (WHERE timers.id IS NOT NULL) AS live,
       count(*) FILTER (WHERE record.state = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE record.state = 'FAILED') AS failed,
       count(*) FILTER (WHERE record.state = 'CANCELLED') AS cancelled,
       count(*) FILTER (WHERE timers.due_at IS NOT NULL AND timers.holder IS NULL) AS may_start,
       count(*) FILTER (WHERE timers.held_due_at IS NOT NULL) AS held,
       count(DISTINCT item.map_index) = count(*) AND max(item.map_index) + 1 = count(*) AS is_gapless
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.workflow_nodes AS item
    ON item.shard = asked.shard
   AND item.id > duly.node_id(asked.id, 10000)
   AND item.id <= duly.node_id(asked.id, 16777215)
   AND item.map_number IS NOT NULL
  LEFT JOIN duly.timers ON timers.shard = item.shard AND timers.id = item.id
  LEFT JOIN LATERAL (
       SELECT max(attempts.state) AS state
         FROM duly.attempts
        WHERE attempts.shard = item.shard
          AND attempts.id = coalesce(item.source, item.id)) AS record ON true
 GROUP BY asked.id, item.map_number

-- name: read_given_signals
-- To which nodes the signals of these workflows were given, and how many to each.
SELECT asked.id AS workflow, given.consumed_by AS node, count(*) AS signals
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.workflow_signals AS given
    ON given.shard = asked.shard AND given.workflow = asked.id AND given.consumed_by IS NOT NULL
 GROUP BY asked.id, given.consumed_by

-- name: read_slots
-- Who dispatches for which shards, at this instant.
SELECT number, holder, expires_at, duly.now() AS now
  FROM duly.ownership
 WHERE kind = 'slot'
 ORDER BY number
 LIMIT $1

-- name: read_capped
-- How many leases the tenants with a cap have at this instant; these sit in queue 0.
SELECT capped.id, capped.in_flight_max,
       (SELECT count(*)
          FROM (SELECT DISTINCT placements.shard
                  FROM duly.placements WHERE placements.tenant = capped.id) AS place
          JOIN duly.timers
            ON timers.tenant = capped.id AND timers.tenant > 0 AND timers.shard = place.shard AND timers.queue = 0)
           AS leases
  FROM (SELECT id, in_flight_max FROM duly.tenants
         WHERE id > $1 AND in_flight_max IS NOT NULL
         ORDER BY id LIMIT $2) AS capped
 ORDER BY capped.id

-- name: estimate_tasks
-- About how many there are, for a bar that shows how far we are; zero if the table was never
-- analyzed.
SELECT coalesce(sum(greatest(child.reltuples, 0)), 0)::bigint AS tasks
  FROM pg_inherits
  JOIN pg_class child ON child.oid = pg_inherits.inhrelid
 WHERE pg_inherits.inhparent = 'duly.tasks'::regclass
