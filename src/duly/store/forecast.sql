-- name: bound_counting
-- Counting is a look ahead, and never worth keeping the database busy for long.
SELECT set_config('statement_timeout', $1, true)

-- name: count_rules
-- A tenant's schedules by what decides when they fire, so that a million of them are a few rules. What
-- cannot matter before the end is left out of the rule: starts in the past, ends and dates beyond the
-- span, the seconds of an interval's phase. Those that will not fire are not counted.
WITH found AS (
    SELECT schedules.shard, schedules.id, schedules.name, schedules.cron, schedules.every_s,
           schedules.timezone, schedules.dst_gap, schedules.dst_repeat, schedules.jitter_s,
           schedules.start_at, schedules.end_at, schedules.exclude_dates, schedules.max_fires,
           schedules.anchor_at
      FROM duly.schedules
     WHERE schedules.tenant = $1
       AND schedules.paused_at IS NULL
     LIMIT $4
), ruled AS (
    SELECT found.name, found.cron, found.every_s, found.timezone, found.dst_gap, found.dst_repeat,
           found.jitter_s,
           CASE WHEN found.start_at > $2 THEN found.start_at END AS start_at,
           CASE WHEN found.end_at < $3 THEN found.end_at END AS end_at,
           CASE WHEN found.exclude_dates = '{}' THEN found.exclude_dates
                ELSE ARRAY(SELECT excluded.day
                             FROM unnest(found.exclude_dates) AS excluded(day)
                            WHERE excluded.day BETWEEN ($2 AT TIME ZONE 'UTC')::date - 2
                                                   AND ($3 AT TIME ZONE 'UTC')::date + 2
                            ORDER BY excluded.day)
            END AS exclude_dates,
           CASE WHEN found.max_fires IS NOT NULL
                THEN found.max_fires - (SELECT timer.fires
                                          FROM duly.schedule_timers timer
                                         WHERE timer.shard = found.shard AND timer.id = found.id)
            END AS fires_left,
           mod(ceil(extract(epoch FROM coalesce(found.start_at, found.anchor_at)))::bigint,
               found.every_s) / 60 * 60 AS phase_s
      FROM found
     WHERE (found.end_at IS NULL OR found.end_at >= $2)
       AND (found.start_at IS NULL OR found.start_at < $3)
)
SELECT ruled.cron, ruled.every_s, ruled.timezone, ruled.dst_gap, ruled.dst_repeat, ruled.jitter_s,
       ruled.start_at, ruled.end_at, ruled.exclude_dates, ruled.fires_left, ruled.phase_s,
       count(*) AS schedules, min(ruled.name) AS name,
       (sum(count(*)) OVER ())::bigint AS all_schedules, count(*) OVER () AS all_rules
  FROM ruled
 WHERE ruled.fires_left IS NULL OR ruled.fires_left > 0
 GROUP BY ruled.cron, ruled.every_s, ruled.timezone, ruled.dst_gap, ruled.dst_repeat,
          ruled.jitter_s, ruled.start_at, ruled.end_at, ruled.exclude_dates, ruled.fires_left,
          ruled.phase_s
 ORDER BY count(*) DESC
 LIMIT $5

-- name: count_waiting
-- What waits, by the minute in which it is due next: one range of the loading index for each place. A
-- place's own bound keeps the planner from reading all places for each of them.
WITH places AS MATERIALIZED (
    SELECT placements.shard, placements.queue
      FROM duly.placements
     WHERE placements.tenant = $1 AND placements.queue > 0
     ORDER BY placements.shard, placements.queue
     LIMIT $4
), waiting AS (
    SELECT due.due_at
      FROM places
     CROSS JOIN LATERAL (
           SELECT timers.due_at
             FROM duly.timers
            WHERE timers.tenant = $1
              AND timers.tenant > 0
              AND timers.shard = places.shard
              AND timers.queue = places.queue
              AND timers.due_at >= $2
              AND timers.due_at < $3
            LIMIT $5) AS due
     LIMIT $5
)
SELECT floor(extract(epoch FROM waiting.due_at - $2) / 60)::integer AS minute, count(*) AS tasks
  FROM waiting
 GROUP BY minute
