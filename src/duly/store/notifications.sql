-- name: list_notifications
-- Of one tenant; there are only a few.
SELECT tenant, name, on_dead_letters, on_missed_schedules, lag_s, failures_per_minute, url, headers,
       per_minute, created_at, updated_at, created_by, lag_since, failing_since
  FROM duly.notifications
 WHERE tenant = $1
 ORDER BY name
 LIMIT $2

-- name: find_notification
-- One of them, as its tenant described it.
SELECT tenant, name, on_dead_letters, on_missed_schedules, lag_s, failures_per_minute, url, headers,
       per_minute, created_at, updated_at, created_by, lag_since, failing_since
  FROM duly.notifications
 WHERE tenant = $1 AND name = $2

-- name: put_notification
-- Made or described anew; a tenant has only so many. A bound that changed is looked at afresh.
INSERT INTO duly.notifications AS known
       (tenant, name, on_dead_letters, on_missed_schedules, lag_s, failures_per_minute, url, headers,
        per_minute, created_by, created_at, updated_at, minute)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, duly.now(), duly.now(), date_trunc('minute', duly.now())
 WHERE EXISTS (SELECT FROM duly.notifications WHERE tenant = $1 AND name = $2)
    OR (SELECT count(*) FROM duly.notifications WHERE tenant = $1) < $11
    ON CONFLICT (tenant, name) DO UPDATE
   SET on_dead_letters = excluded.on_dead_letters,
       on_missed_schedules = excluded.on_missed_schedules,
       lag_s = excluded.lag_s,
       failures_per_minute = excluded.failures_per_minute,
       url = excluded.url,
       headers = excluded.headers,
       per_minute = excluded.per_minute,
       updated_at = excluded.updated_at,
       lag_since = CASE WHEN known.lag_s = excluded.lag_s THEN known.lag_since END,
       failing_since = CASE WHEN known.failures_per_minute = excluded.failures_per_minute
                            THEN known.failing_since END
RETURNING tenant, name, on_dead_letters, on_missed_schedules, lag_s, failures_per_minute, url, headers,
          per_minute, created_at, updated_at, created_by, lag_since, failing_since

-- name: delete_notification
-- What it has not told is not told any more; an event of this very moment is swept by the next look.
WITH forgotten AS (
    DELETE FROM duly.notification_events WHERE tenant = $1 AND notification = $2
)
DELETE FROM duly.notifications WHERE tenant = $1 AND name = $2
RETURNING name

-- name: find_pending
-- Notifications with something to tell: events, or what was held back in a minute that is over. Names are
-- stepped through by the key, so that a flood of one of them is not read through to find the next.
WITH RECURSIVE waiting(tenant, notification) AS (
    (SELECT tenant, notification FROM duly.notification_events ORDER BY tenant, notification LIMIT 1)
     UNION ALL
    SELECT next.tenant, next.notification
      FROM waiting
     CROSS JOIN LATERAL (
           SELECT events.tenant, events.notification
             FROM duly.notification_events AS events
            WHERE (events.tenant, events.notification) > (waiting.tenant, waiting.notification)
            ORDER BY events.tenant, events.notification
            LIMIT 1) AS next
)
SELECT tenant, notification AS name FROM (SELECT tenant, notification FROM waiting LIMIT $1) AS eventful
 UNION
SELECT tenant, name
  FROM duly.notifications
 WHERE held IS NOT NULL AND minute < date_trunc('minute', duly.now())
 LIMIT $1

-- name: lock_notification
-- The process that tells of it holds the row until its commit; another one passes it over.
SELECT notifications.url, notifications.headers, notifications.per_minute, notifications.minute,
       notifications.sent, notifications.held, tenants.name AS tenant_name,
       date_trunc('minute', duly.now()) AS this_minute
  FROM duly.notifications
  JOIN duly.tenants ON tenants.id = notifications.tenant
 WHERE notifications.tenant = $1 AND notifications.name = $2
   FOR UPDATE OF notifications SKIP LOCKED

-- name: take_events
-- A bounded batch, oldest first; their tasks are stored in this transaction.
DELETE FROM duly.notification_events
 WHERE tenant = $1 AND notification = $2
   AND number IN (SELECT number FROM duly.notification_events
                   WHERE tenant = $1 AND notification = $2
                   ORDER BY number LIMIT $3)
RETURNING number, at, event, facts

-- name: forget_events
-- Of a notification that was deleted while they were written.
DELETE FROM duly.notification_events
 WHERE tenant = $1 AND notification = $2
   AND NOT EXISTS (SELECT FROM duly.notifications WHERE tenant = $1 AND name = $2)
   AND number IN (SELECT number FROM duly.notification_events
                   WHERE tenant = $1 AND notification = $2
                   ORDER BY number LIMIT $3)
RETURNING number

-- name: note_sent
-- Under the lock of its row.
UPDATE duly.notifications
   SET minute = $3, sent = $4, held = $5
 WHERE tenant = $1 AND name = $2
RETURNING name

-- name: count_test
-- A test counts as a message of the minute; refused if the minute has enough.
UPDATE duly.notifications
   SET sent = CASE WHEN minute < date_trunc('minute', duly.now()) THEN 1 ELSE sent + 1 END,
       minute = greatest(minute, date_trunc('minute', duly.now()))
 WHERE tenant = $1 AND name = $2
   AND (minute < date_trunc('minute', duly.now()) OR sent < per_minute)
RETURNING name

-- name: look_at_bounds
-- A page of the notifications with a bound, and how each tenant stands to it now: one probe of the loading
-- index for each of its timer queues finds its oldest ready task, and the newest dead letters are counted
-- no further than the bound. What changed is an event, written with the instant from which it holds.
WITH page AS MATERIALIZED (
    SELECT tenant, name, lag_s, failures_per_minute
      FROM duly.notifications
     WHERE (tenant, name) > ($1, $2)
       AND (lag_s IS NOT NULL OR failures_per_minute IS NOT NULL)
     ORDER BY tenant, name
     LIMIT $3
), measured AS MATERIALIZED (
    SELECT page.tenant, page.name, page.lag_s, page.failures_per_minute,
           (SELECT coalesce(extract(epoch FROM duly.now() - min(head.due_at)), 0)::double precision
              FROM (SELECT placements.shard, placements.queue
                      FROM duly.placements
                     WHERE placements.tenant = page.tenant AND placements.queue > 0
                     ORDER BY placements.shard, placements.queue
                     LIMIT $4) AS places
             CROSS JOIN LATERAL (
-- include: load.ready_timers tenant=page.tenant queue=places limit=1
                   ) AS head
             WHERE page.lag_s IS NOT NULL) AS lagging_s,
           (SELECT count(*)
              FROM (SELECT
                      FROM duly.dead_letters
                     WHERE dead_letters.tenant = page.tenant
                       AND dead_letters.failed_at > duly.now() - make_interval(mins => $5)
                       AND dead_letters.type <> 'duly.notification'
                     LIMIT ceil(page.failures_per_minute * $5)::bigint + 1) AS letters
             WHERE page.failures_per_minute IS NOT NULL) / $5::double precision AS failing
      FROM page
), changed AS (
    UPDATE duly.notifications AS known
       SET lag_since = CASE WHEN measured.lagging_s > measured.lag_s
                            THEN coalesce(known.lag_since, duly.now()) END,
           failing_since = CASE WHEN measured.failing > measured.failures_per_minute
                                THEN coalesce(known.failing_since, duly.now()) END
      FROM measured
     WHERE known.tenant = measured.tenant
       AND known.name = measured.name
       AND known.lag_s IS NOT DISTINCT FROM measured.lag_s
       AND known.failures_per_minute IS NOT DISTINCT FROM measured.failures_per_minute
       AND (coalesce(measured.lagging_s > measured.lag_s, false) <> (known.lag_since IS NOT NULL)
            OR coalesce(measured.failing > measured.failures_per_minute, false)
               <> (known.failing_since IS NOT NULL))
 RETURNING known.tenant, known.name, measured.lag_s, measured.lagging_s, known.lag_since IS NOT NULL AS lags,
           measured.failures_per_minute, measured.failing, known.failing_since IS NOT NULL AS fails
), noted AS (
    INSERT INTO duly.notification_events (tenant, at, notification, event, facts)
    SELECT changed.tenant, duly.now(), changed.name, crossed.event, crossed.facts
      FROM changed
      JOIN duly.notifications AS before USING (tenant, name)
     CROSS JOIN LATERAL (
           SELECT 'lag' AS event,
                  json_build_object('state', CASE WHEN changed.lags THEN 'above' ELSE 'below' END,
                                    'lag_s', round(changed.lagging_s::numeric, 3),
                                    'bound', changed.lag_s) AS facts
            WHERE changed.lags <> (before.lag_since IS NOT NULL)
            UNION ALL
           SELECT 'failures',
                  json_build_object('state', CASE WHEN changed.fails THEN 'above' ELSE 'below' END,
                                    'per_minute', changed.failing,
                                    'bound', changed.failures_per_minute)
            WHERE changed.fails <> (before.failing_since IS NOT NULL)) AS crossed
 RETURNING number
)
SELECT page.tenant, page.name, (SELECT count(*) FROM noted) AS noted FROM page ORDER BY page.tenant, page.name
