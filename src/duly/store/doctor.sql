-- name: read_server
-- Version, durability, room for connections, and the server's clock beside ours.
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_version') AS version_text,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('max_connections')::integer AS connections_max,
       current_setting('superuser_reserved_connections')::integer AS connections_reserved,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::integer
           AS connections,
       current_setting('synchronous_standby_names') AS standby_names,
       ARRAY(SELECT coalesce(sync_state, '') FROM pg_stat_replication ORDER BY pid LIMIT 100)
           AS standby_states,
       coalesce(current_setting('duly.test_now', true), '') AS test_now,
       extract(epoch FROM clock_timestamp())::double precision AS now_s

-- name: read_schema
-- Which migrations are applied; before the first one there is nothing else to look at.
SELECT coalesce(max(number), 0) AS version FROM duly.migrations

-- name: read_oldest_snapshots
-- Holders of old snapshots: sessions, prepared transactions, replication slots. Vacuum cannot
-- remove what they might still see, and the table of timers grows.
SELECT kind, who, age_s
  FROM (SELECT 'session' AS kind,
               format('pid %s, %s, %s: %s', pid, coalesce(usename, '?'),
                      coalesce(nullif(application_name, ''), 'no name'), state) AS who,
               extract(epoch FROM clock_timestamp() - xact_start)::double precision AS age_s
          FROM pg_stat_activity
         WHERE xact_start IS NOT NULL
           AND pid <> pg_backend_pid()
           AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
         UNION ALL
        SELECT 'prepared transaction', gid,
               extract(epoch FROM clock_timestamp() - prepared)::double precision
          FROM pg_prepared_xacts
         UNION ALL
        SELECT 'replication slot', slot_name, NULL
          FROM pg_replication_slots
         WHERE (xmin IS NOT NULL OR catalog_xmin IS NOT NULL) AND NOT active) AS holders
 ORDER BY age_s DESC NULLS FIRST
 LIMIT $1

-- name: read_timers_debt
-- How far autovacuum is behind on the one table that changes all the time.
SELECT coalesce(n_live_tup, 0) AS live, coalesce(n_dead_tup, 0) AS dead,
       extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum))
           ::double precision AS vacuumed_ago_s,
       pg_total_relation_size('duly.timers') AS bytes,
       current_setting('autovacuum') AS autovacuum
  FROM pg_stat_user_tables
 WHERE schemaname = 'duly' AND relname = 'timers'

-- name: read_partitions_ahead
-- The last month that tasks can be placed in, in months from now.
SELECT coalesce(
           (extract(year FROM age(last.month, this.month)) * 12
            + extract(month FROM age(last.month, this.month)))::integer, -1) AS months_ahead
  FROM (SELECT max(to_date(right(child.relname, 7), 'YYYY_MM')) AS month
          FROM pg_inherits
          JOIN pg_class child ON child.oid = pg_inherits.inhrelid
         WHERE pg_inherits.inhparent = 'duly.tasks'::regclass) AS last,
       (SELECT date_trunc('month', duly.now() AT TIME ZONE 'UTC')::date AS month) AS this

-- name: read_slots
-- Slots without an owner, and how many nodes are live.
SELECT (SELECT count(*) FROM duly.ownership
         WHERE kind = 'slot' AND (holder IS NULL OR expires_at <= duly.now())) AS ownerless,
       (SELECT count(DISTINCT holder) FROM duly.ownership
         WHERE kind = 'slot' AND expires_at > duly.now()) AS owners,
       (SELECT count(*) FROM duly.ownership WHERE kind = 'slot') AS slots,
       (SELECT count(*) FROM duly.nodes WHERE expires_at > duly.now()) AS nodes

-- name: read_leader
-- Which living node leads the maintenance. It alone knows the figures of the installation.
SELECT nodes.name
  FROM duly.ownership
  LEFT JOIN duly.nodes ON nodes.id = ownership.holder
 WHERE ownership.kind = 'maintenance' AND ownership.number = 0
   AND ownership.holder IS NOT NULL AND ownership.expires_at > duly.now()

-- name: read_overdue
-- How long what schedules and workflows had to do longest waits for the owners of their slots, and how
-- much of it was tried in vain.
SELECT coalesce((SELECT extract(epoch FROM duly.now() - schedule_timers.due_at)
                   FROM duly.schedule_timers
                   JOIN duly.schedules
                     ON schedules.shard = schedule_timers.shard AND schedules.id = schedule_timers.id
                  WHERE schedule_timers.due_at <= duly.now() AND schedules.paused_at IS NULL
                  ORDER BY schedule_timers.due_at
                  LIMIT 1), 0)::double precision AS schedule_s,
       coalesce((SELECT extract(epoch FROM duly.now() - workflow_timers.due_at)
                   FROM duly.workflow_timers
                  WHERE workflow_timers.due_at <= duly.now()
                  ORDER BY workflow_timers.due_at
                  LIMIT 1), 0)::double precision AS workflow_s,
       (SELECT count(*)
          FROM (SELECT workflow_timers.tries FROM duly.workflow_timers LIMIT $1) AS kept
         WHERE kept.tries > 0) AS failing

-- name: read_roles
-- Which living nodes do which part of the work: each role needs a live node.
SELECT role, array_agg(living.name ORDER BY living.name) AS names
  FROM (SELECT nodes.name, nodes.roles FROM duly.nodes
         WHERE nodes.expires_at > duly.now()
         LIMIT $1) AS living
 CROSS JOIN LATERAL unnest(living.roles) AS role
 GROUP BY role

-- name: read_failing
-- Roles that do not do their work, as their living nodes told.
SELECT living.name, problem.key, problem.value
  FROM (SELECT nodes.name, nodes.failing FROM duly.nodes
         WHERE nodes.expires_at > duly.now() AND nodes.failing <> '{}'
         LIMIT $1) AS living
 CROSS JOIN LATERAL jsonb_each_text(living.failing) AS problem
 ORDER BY living.name, problem.key

-- name: read_carriers
-- Which carrier each living node uses, and why it takes no tickets, as they told.
SELECT nodes.name, trim(concat_ws(' ', nodes.carrier ->> 'kind', nodes.carrier ->> 'address')) AS kind,
       nodes.carrier ->> 'problem' AS problem
  FROM duly.nodes
 WHERE nodes.expires_at > duly.now() AND nodes.carrier IS NOT NULL
 ORDER BY nodes.name
 LIMIT $1

-- name: prove_session
-- Twice in two statements: behind a transaction-mode pooler the second may run elsewhere.
SELECT pg_backend_pid() AS pid
