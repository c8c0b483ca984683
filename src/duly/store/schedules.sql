-- name: create_schedules
-- Definitions with their timers, which come only from the rows that won their names.
WITH created AS (
    INSERT INTO duly.schedules (shard, tenant, id, name, cron, every_s, timezone, dst_gap, dst_repeat,
                                misfire, misfire_window_s, overlap, max_running, jitter_s, start_at,
                                end_at, max_fires, exclude_dates, type, task, template, created_at,
                                updated_at, anchor_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
            $20, $21, $22, $22, $22)
        ON CONFLICT (shard, tenant, name) DO NOTHING
    RETURNING shard, tenant, id
), armed AS (
    INSERT INTO duly.schedule_timers (shard, tenant, id, cursor_at, nominal_at, due_at)
    SELECT shard, tenant, id, $22, $23, $24 FROM created
)
SELECT id FROM created

-- name: read_schedules
-- Definitions with how far they have come, and which of their tasks and workflows still live, at one
-- instant.
SELECT schedules.shard, schedules.tenant, schedules.id, schedules.name, schedules.cron,
       schedules.every_s, schedules.timezone, schedules.dst_gap, schedules.dst_repeat,
       schedules.misfire, schedules.misfire_window_s, schedules.overlap, schedules.max_running,
       schedules.jitter_s, schedules.start_at, schedules.end_at, schedules.max_fires,
       schedules.exclude_dates, schedules.type, schedules.task, schedules.template,
       schedules.created_at, schedules.updated_at, schedules.anchor_at, schedules.paused_at,
       schedules.paused_by, schedules.pause_reason,
       timer.fence, timer.fires, timer.cursor_at, timer.nominal_at, timer.due_at,
       ARRAY(SELECT running.id
               FROM unnest(timer.running) WITH ORDINALITY AS running(id, ordinal)
               LEFT JOIN duly.timers
                 ON timers.shard = duly.shard_of(running.id) AND timers.id = running.id
               LEFT JOIN duly.workflows
                 ON duly.is_node(running.id) AND workflows.shard = duly.shard_of(running.id)
                AND workflows.id = running.id AND workflows.ended_at IS NULL
              WHERE timers.id IS NOT NULL OR workflows.id IS NOT NULL
              ORDER BY running.ordinal) AS live,
       duly.now() AS now
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.schedules ON schedules.shard = asked.shard AND schedules.id = asked.id
  JOIN duly.schedule_timers timer ON timer.shard = asked.shard AND timer.id = asked.id

-- name: lock_schedule
-- Before a change: it does not fire meanwhile, and due occurrences are decided under the old
-- definition.
SELECT timer.id
  FROM duly.schedule_timers timer
 WHERE timer.shard = $1 AND timer.id = $2 AND timer.tenant + 0 = $3
   FOR UPDATE

-- name: find_schedule_names
-- Which ids have these names, for those who know a schedule by its name.
SELECT schedules.name, schedules.id
  FROM duly.schedules
 WHERE schedules.shard = $1 AND schedules.tenant = $2 AND schedules.name = ANY ($3::text[])

-- name: list_schedules
-- A page of ids, newest first; the page of definitions is read from them.
SELECT schedules.id
  FROM duly.schedules
 WHERE schedules.tenant = $1
   AND schedules.id < $2
   AND ($3::text IS NULL OR starts_with(schedules.name, $3))
   AND ($4::text IS NULL OR schedules.type = $4)
   AND ($5::boolean IS NULL OR (schedules.paused_at IS NOT NULL) = $5)
 ORDER BY schedules.id DESC
 LIMIT $6

-- name: edit_schedule
-- A new definition under the old id. Its timer is locked by the same transaction; the fence voids
-- whatever a scheduler has planned from the old one. A policy that begins to ask which tasks live
-- ($25 was, $26 is) learns it from the ledger.
WITH edited AS (
    UPDATE duly.schedules
       SET name = $4, cron = $5, every_s = $6, timezone = $7, dst_gap = $8, dst_repeat = $9,
           misfire = $10, misfire_window_s = $11, overlap = $12, max_running = $13, jitter_s = $14,
           start_at = $15, end_at = $16, max_fires = $17, exclude_dates = $18, type = $19,
           task = $20, template = $21, updated_at = duly.now()
     WHERE schedules.shard = $1 AND schedules.tenant + 0 = $2 AND schedules.id = $3
    RETURNING schedules.shard, schedules.id
)
UPDATE duly.schedule_timers timer
   SET fence = timer.fence + 1, cursor_at = $22, nominal_at = $23, due_at = $24,
       running = CASE WHEN NOT $26 THEN '{}'
                      WHEN $25 THEN timer.running
                      ELSE ARRAY(SELECT recent.task
                                   FROM (SELECT occurrences.task, occurrences.nominal_at
                                           FROM duly.occurrences
                                          WHERE occurrences.shard = $1
                                            AND occurrences.schedule = $3
                                            AND occurrences.verdict IN ('FIRED', 'LATE', 'TRIGGERED')
                                          ORDER BY occurrences.nominal_at DESC
                                          LIMIT 1000) AS recent
                                   LEFT JOIN duly.timers
                                     ON timers.shard = duly.shard_of(recent.task)
                                    AND timers.id = recent.task
                                   LEFT JOIN duly.workflows
                                     ON duly.is_node(recent.task)
                                    AND workflows.shard = duly.shard_of(recent.task)
                                    AND workflows.id = recent.task
                                    AND workflows.ended_at IS NULL
                                  WHERE timers.id IS NOT NULL OR workflows.id IS NOT NULL
                                  ORDER BY recent.nominal_at) END
  FROM edited
 WHERE timer.shard = edited.shard AND timer.id = edited.id
RETURNING timer.id

-- name: pause_schedule
-- From now on occurrences are skipped, each with its verdict; the timer goes on.
WITH paused AS (
    UPDATE duly.schedules
       SET paused_at = duly.now(), paused_by = $4, pause_reason = $5
     WHERE schedules.shard = $1 AND schedules.tenant + 0 = $2 AND schedules.id = $3
       AND schedules.paused_at IS NULL
    RETURNING schedules.shard, schedules.id
)
UPDATE duly.schedule_timers timer
   SET fence = timer.fence + 1
  FROM paused
 WHERE timer.shard = paused.shard AND timer.id = paused.id
RETURNING timer.id

-- name: resume_schedule
-- Occurrences fire again, from the next one on.
WITH resumed AS (
    UPDATE duly.schedules
       SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
     WHERE schedules.shard = $1 AND schedules.tenant + 0 = $2 AND schedules.id = $3
       AND schedules.paused_at IS NOT NULL
    RETURNING schedules.shard, schedules.id
)
UPDATE duly.schedule_timers timer
   SET fence = timer.fence + 1, cursor_at = $4, nominal_at = $5, due_at = $6
  FROM resumed
 WHERE timer.shard = resumed.shard AND timer.id = resumed.id
RETURNING timer.id

-- name: delete_schedule
-- Definition and timer go; its tasks and its ledger stay for their own time.
WITH stopped AS (
    DELETE FROM duly.schedule_timers timer
     WHERE timer.shard = $1 AND timer.tenant + 0 = $2 AND timer.id = $3
)
DELETE FROM duly.schedules
 WHERE schedules.shard = $1 AND schedules.tenant + 0 = $2 AND schedules.id = $3
RETURNING schedules.name
