-- name: look_ahead
-- What is due soon in the shards we own: fresh and late ones apart, so that a backlog after an outage
-- cannot hide what is due now; and without those that are left alone for a moment, which would fill
-- the page. Ids and instants only; definitions are read when it is time.
SELECT soon.shard, soon.id, soon.due_at, soon.is_late, duly.now() AS now
  FROM unnest($1::smallint[]) AS owned(shard)
 CROSS JOIN LATERAL (
       (SELECT shard, id, due_at, false AS is_late
          FROM duly.schedule_timers
         WHERE schedule_timers.shard = owned.shard
           AND schedule_timers.due_at > duly.now() - make_interval(secs => $3)
           AND schedule_timers.due_at <= duly.now() + make_interval(secs => $2)
           AND schedule_timers.id <> ALL ($6::uuid[])
         ORDER BY schedule_timers.due_at, schedule_timers.id
         LIMIT $4)
        UNION ALL
       (SELECT shard, id, due_at, true
          FROM duly.schedule_timers
         WHERE schedule_timers.shard = owned.shard
           AND schedule_timers.due_at <= duly.now() - make_interval(secs => $3)
           AND schedule_timers.id <> ALL ($6::uuid[])
         ORDER BY schedule_timers.due_at, schedule_timers.id
         LIMIT $5)) AS soon

-- name: move_schedules
-- The first step of a firing: the schedule's timer moves on under its fence. The second process
-- finds another fence and goes no further; a schedule that is not due by the database's clock is
-- left alone, unless its definition is being changed by a transaction that holds its lock. Rows
-- come sorted by id, so that two batches never lock crosswise.
UPDATE duly.schedule_timers timer
   SET fence = timer.fence + 1,
       fires = asked.fires,
       cursor_at = asked.cursor_at,
       nominal_at = asked.nominal_at,
       due_at = asked.due_at,
       running = asked.running::uuid[]
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::integer[], $5::timestamptz[],
              $6::timestamptz[], $7::timestamptz[], $8::text[], $9::integer[])
       AS asked(shard, id, fence, fires, cursor_at, nominal_at, due_at, running, tenant)
 WHERE timer.shard = asked.shard
   AND timer.id = asked.id
   AND timer.tenant = asked.tenant
   AND timer.fence = asked.fence
   AND (timer.due_at <= duly.now() OR $10)
RETURNING timer.id

-- name: record_occurrences
-- The second step: the ledger, whose rows admit the tasks. An occurrence that is known already, by
-- whatever way, gets no second verdict and no task. In the same commit, whom its being missed is to be told.
WITH recorded AS (
    INSERT INTO duly.occurrences (shard, tenant, schedule, nominal_at, decided_at, late_s, verdict, task)
    SELECT shard, tenant, schedule, nominal_at, duly.now(), late_s, verdict, task
      FROM unnest($1::smallint[], $2::integer[], $3::uuid[], $4::timestamptz[], $5::real[], $6::text[],
                  $7::uuid[])
           AS ruled(shard, tenant, schedule, nominal_at, late_s, verdict, task)
        ON CONFLICT (shard, schedule, nominal_at) DO NOTHING
 RETURNING shard, tenant, schedule, nominal_at, decided_at, late_s, verdict, task
), noted AS (
    INSERT INTO duly.notification_events (tenant, at, notification, event, facts)
    SELECT recorded.tenant, recorded.decided_at, notifications.name, 'missed_schedule',
           json_build_object('schedule', schedules.name, 'verdict', recorded.verdict,
                             'id', recorded.schedule, 'nominal_at', recorded.nominal_at,
                             'late_s', recorded.late_s, 'task', recorded.task)
      FROM recorded
      JOIN duly.notifications
        ON notifications.tenant = recorded.tenant AND notifications.on_missed_schedules
      JOIN duly.schedules
        ON schedules.shard = recorded.shard AND schedules.id = recorded.schedule
     WHERE recorded.verdict IN ('LATE', 'COALESCED', 'SKIPPED_MISFIRE')
)
SELECT task FROM recorded

-- name: record_manual
-- A trigger, or a backfill: also for an occurrence that is known and made no task, never for one that
-- did.
INSERT INTO duly.occurrences AS known (shard, tenant, schedule, nominal_at, decided_at, late_s, verdict,
                                       task)
SELECT shard, tenant, schedule, nominal_at, duly.now(), late_s, verdict, task
  FROM unnest($1::smallint[], $2::integer[], $3::uuid[], $4::timestamptz[], $5::real[], $6::text[],
              $7::uuid[])
       AS ruled(shard, tenant, schedule, nominal_at, late_s, verdict, task)
    ON CONFLICT (shard, schedule, nominal_at) DO UPDATE
   SET verdict = excluded.verdict, task = excluded.task, decided_at = excluded.decided_at,
       late_s = excluded.late_s
 WHERE known.task IS NULL
RETURNING task

-- name: note_running
-- What was fired by hand counts for the overlap policy as well.
UPDATE duly.schedule_timers timer
   SET fence = timer.fence + 1, running = timer.running || $4::uuid[]
 WHERE timer.shard = $1 AND timer.tenant = $2 AND timer.id = $3
RETURNING timer.id

-- name: sweep_schedules
-- A page of the definitions in our shards with their timers, by id, for the sweep that checks that
-- the chain is whole.
SELECT page.shard, page.id, timer.id IS NULL AS is_broken
  FROM unnest($1::smallint[]) AS owned(shard)
 CROSS JOIN LATERAL (
       SELECT schedules.shard, schedules.id
         FROM duly.schedules
        WHERE schedules.shard = owned.shard
          AND (schedules.shard > $2 OR schedules.id > $3)
        ORDER BY schedules.id
        LIMIT $4) AS page
  LEFT JOIN duly.schedule_timers timer ON timer.shard = page.shard AND timer.id = page.id
 WHERE owned.shard >= $2
 LIMIT $4

-- name: rebuild_timers
-- A schedule without its timer would never fire again. How far it had come is what the ledger says:
-- the last occurrence of the rule, and how many fired. Where the ledger has been pruned, it goes on
-- from there. Written only from the definition that exists now; a deleted one stays deleted.
INSERT INTO duly.schedule_timers (shard, tenant, id, cursor_at, fires)
SELECT schedules.shard, schedules.tenant, schedules.id,
       greatest(known.last_at, schedules.created_at, schedules.updated_at,
                duly.now() - make_interval(secs => $3)),
       known.fires
  FROM unnest($1::smallint[], $2::uuid[]) AS lost(shard, id)
  JOIN duly.schedules ON schedules.shard = lost.shard AND schedules.id = lost.id
 CROSS JOIN LATERAL (
       SELECT max(occurrences.nominal_at) AS last_at,
              count(*) FILTER (WHERE occurrences.verdict IN ('FIRED', 'LATE')) AS fires
         FROM duly.occurrences
        WHERE occurrences.shard = lost.shard
          AND occurrences.schedule = lost.id
          AND occurrences.verdict NOT IN ('TRIGGERED', 'BACKFILLED')) AS known
    ON CONFLICT DO NOTHING
RETURNING id

-- name: rearm_schedules
-- The rules of a zone changed, or a timer was lost: the next instant is reckoned anew. Nothing fires
-- here, and a firing or an edit in between makes this a no-op.
UPDATE duly.schedule_timers timer
   SET fence = timer.fence + 1,
       nominal_at = asked.nominal_at,
       due_at = asked.due_at
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::timestamptz[])
       AS asked(shard, id, fence, nominal_at, due_at)
 WHERE timer.shard = asked.shard
   AND timer.id = asked.id
   AND timer.fence = asked.fence
RETURNING timer.id

-- name: pause_unreadable
-- A definition that cannot be reckoned with any more (its zone is gone) is paused with the reason,
-- and its timer stands still until it is resumed.
WITH stopped AS (
    UPDATE duly.schedule_timers timer
       SET fence = timer.fence + 1, nominal_at = NULL, due_at = NULL
     WHERE timer.shard = $1 AND timer.id = $2 AND timer.fence = $3
 RETURNING timer.shard, timer.id
)
UPDATE duly.schedules
   SET paused_at = coalesce(paused_at, duly.now()),
       paused_by = coalesce(paused_by, 'duly'),
       pause_reason = coalesce(pause_reason, $4)
  FROM stopped
 WHERE schedules.shard = stopped.shard AND schedules.id = stopped.id
RETURNING schedules.tenant, schedules.name

-- name: delete_old_occurrences
-- A bounded batch of the ledger past its retention.
DELETE FROM duly.occurrences
 WHERE (shard, schedule, nominal_at) IN (
       SELECT shard, schedule, nominal_at FROM duly.occurrences
        WHERE decided_at < duly.now() - make_interval(secs => $1)
        LIMIT $2)
RETURNING schedule
