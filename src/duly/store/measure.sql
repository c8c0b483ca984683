-- name: read_server_settings
-- What a figure depends on besides the machine, in the units that people write.
SELECT name, current_setting(name) AS value FROM unnest($1::text[]) AS asked(name)

-- name: fill_waiting
-- Tasks that are due in a year, written by the server itself: millions of them through the API
-- would take longer than what is measured. Their place is that of the measured tasks.
WITH placed AS (
    INSERT INTO duly.placements (tenant, shard, queue)
    VALUES ($1::integer, $2::smallint, duly.timer_queue(0::smallint, 5::smallint))
        ON CONFLICT DO NOTHING
), far AS MATERIALIZED (
    SELECT duly.now() AS now, duly.clamp_placement(duly.now() + interval '1 year') AS placed_at
), arriving AS (
    SELECT $2::smallint AS shard,
           duly.make_task_id(placed_at, $2::smallint, gen_random_uuid()) AS id,
           $1::integer AS tenant, 0::smallint AS pool, 5::smallint AS priority,
           60000 AS timeout_ms, now + interval '1 year' + number * interval '1 ms' AS run_at,
           NULL::timestamptz AS start_by, 'bench.wait' AS type, $3::text AS payload,
           NULL::text AS policy, 'http://127.0.0.1/noop' AS url, NULL::text AS execution_key,
           NULL::jsonb AS tags, NULL::uuid AS replay_of, NULL::text AS traceparent
      FROM far CROSS JOIN generate_series(1, $4::integer) AS number
),
-- include: insert.task_and_timer holder=NULL::uuid lease_s=0 host=NULL::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
SELECT count(*) AS stored FROM stored

-- name: tidy_timers
-- After a fill, so that no figure depends on whether autovacuum has come round already.
VACUUM (ANALYZE) duly.timers

-- name: use_segment
-- A segment of the WAL in which nothing stands is not left.
SELECT pg_logical_emit_message(true, 'duly', 'benchmark')

-- name: leave_segment
-- The next checkpoint makes those that are left ready for use.
SELECT pg_switch_wal()

-- name: write_back
-- After a fill, so that its dirty pages are not written while something else is measured.
CHECKPOINT

-- name: read_task_bytes
-- What all tasks and timers take on disk, with their indexes.
SELECT (pg_total_relation_size('duly.timers')
        + (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
            WHERE inhparent = 'duly.tasks'::regclass))::bigint AS bytes

-- name: look_at_timers
-- Any snapshot will do: as long as its transaction is open, vacuum removes no younger dead row.
SELECT 1 AS seen FROM duly.timers LIMIT 1

-- name: count_owned_slots
-- Slots of each process. Expired ownership does not count, whatever the row says.
SELECT nodes.name, count(*)::integer AS slots
  FROM duly.ownership
  JOIN duly.nodes ON nodes.id = ownership.holder
 WHERE ownership.kind = 'slot' AND ownership.expires_at > duly.now()
 GROUP BY nodes.name

-- name: copy_schedule
-- A schedule of fixed seconds that has neither fired nor jitter, many times over under other names, its
-- start so many seconds later in each (if it has one): a million through the API would take longer
-- than what is measured. Timers move with their definitions, or the sweep would reckon them all anew.
WITH copied AS (
    INSERT INTO duly.schedules (shard, tenant, id, name, cron, every_s, timezone, dst_gap, dst_repeat,
                                misfire, misfire_window_s, overlap, max_running, jitter_s, start_at,
                                end_at, max_fires, exclude_dates, type, task, template, created_at,
                                updated_at, anchor_at, paused_at, paused_by, pause_reason)
    SELECT shard, tenant, duly.make_task_id(duly.now(), shard, gen_random_uuid()),
           name || '-' || number, cron, every_s, timezone, dst_gap, dst_repeat, misfire,
           misfire_window_s, overlap, max_running, jitter_s,
           start_at + make_interval(secs => number * $5::integer), end_at, max_fires, exclude_dates,
           type, task, template, created_at, updated_at, anchor_at, paused_at, paused_by, pause_reason
      FROM duly.schedules CROSS JOIN generate_series($3::integer, $4::integer) AS number
     WHERE schedules.shard = $1::smallint AND schedules.id = $2::uuid
    RETURNING shard, tenant, id, start_at
), model AS MATERIALIZED (
    SELECT timer.cursor_at, timer.nominal_at, timer.due_at, schedules.start_at
      FROM duly.schedules
      JOIN duly.schedule_timers timer ON timer.shard = schedules.shard AND timer.id = schedules.id
     WHERE schedules.shard = $1::smallint AND schedules.id = $2::uuid
)
INSERT INTO duly.schedule_timers (shard, tenant, id, cursor_at, nominal_at, due_at)
SELECT copied.shard, copied.tenant, copied.id, model.cursor_at, model.nominal_at + moved.by,
       model.due_at + moved.by
  FROM copied CROSS JOIN model
 CROSS JOIN LATERAL (SELECT coalesce(copied.start_at - model.start_at, interval '0') AS by) AS moved

-- name: tidy_schedules
-- After a fill, so that no figure depends on whether autovacuum has come round already.
VACUUM (ANALYZE) duly.schedules, duly.schedule_timers
