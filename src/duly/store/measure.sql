-- name: read_server_settings
-- What a figure depends on besides the machine, in the units that people write.
SELECT name, current_setting(name) AS value FROM unnest($1::text[]) AS asked(name)

-- name: fill_waiting
-- Tasks that are due in a year, written by the server itself: millions of them through the front
-- door would take longer than what is measured. Their place is that of the measured tasks.
WITH placed AS (
    INSERT INTO duly.placements (tenant, shard, lane)
    VALUES ($1::integer, $2::smallint, duly.lane_of(0::smallint, 5::smallint))
        ON CONFLICT DO NOTHING
), far AS MATERIALIZED (
    SELECT duly.now() AS now, duly.clamp_placement(duly.now() + interval '1 year') AS placed_at
), stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, type,
                            payload, url)
    SELECT $2::smallint, duly.make_task_id(placed_at, $2::smallint, gen_random_uuid()),
           $1::integer, 0, 5, 60000, now, now + interval '1 year' + number * interval '1 ms',
           'bench.wait', $3::text, 'http://127.0.0.1/noop'
      FROM far CROSS JOIN generate_series(1, $4::integer) AS number
    RETURNING shard, id, tenant, pool, priority, timeout_ms, run_at, type, url
)
INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms, due_at, type, host)
SELECT shard, id, tenant, duly.lane_of(pool, priority), pool, priority, timeout_ms, run_at, type,
       duly.host_of(url)
  FROM stored

-- name: tidy_timers
-- After a fill, so that no figure depends on whether autovacuum has come round already.
VACUUM (ANALYZE) duly.timers

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
-- Slots of each process. Seats whose lease has run out are nobody's, whatever the row says.
SELECT nodes.name, count(*)::integer AS slots
  FROM duly.ownership
  JOIN duly.nodes ON nodes.id = ownership.holder
 WHERE ownership.kind = 'slot' AND ownership.expires_at > duly.now()
 GROUP BY nodes.name

-- name: copy_schedule
-- A schedule that exists, many times over under other names: a million through the front door would
-- take longer than what is measured.
WITH copied AS (
    INSERT INTO duly.schedules
    SELECT (jsonb_populate_record(model, jsonb_build_object(
               'id', duly.make_task_id(duly.now(), model.shard, gen_random_uuid()),
               'name', model.name || '-' || number))).*
      FROM duly.schedules AS model CROSS JOIN generate_series($3::integer, $4::integer) AS number
     WHERE model.shard = $1::smallint AND model.id = $2::uuid
    RETURNING shard, tenant, id
)
INSERT INTO duly.schedule_timers (shard, tenant, id, cursor_at, nominal_at, due_at)
SELECT copied.shard, copied.tenant, copied.id, timer.cursor_at, timer.nominal_at, timer.due_at
  FROM copied CROSS JOIN duly.schedule_timers timer
 WHERE timer.shard = $1::smallint AND timer.id = $2::uuid

-- name: tidy_schedules
-- After a fill, so that no figure depends on whether autovacuum has come round already.
VACUUM (ANALYZE) duly.schedule_timers
