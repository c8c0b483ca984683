-- name: search_window
-- A bounded window of one tenant's tasks, newest created first: those that match any text that a task has,
-- and the last one that was looked at, from which the next window goes on. Nothing is indexed for it,
-- so the window is the bound.
WITH looked AS MATERIALIZED (
    SELECT shard, id, created_at, type, tags, payload
      FROM duly.tasks
     WHERE tenant = $1
       AND (created_at, id) < ($2, $3::uuid)
     ORDER BY created_at DESC, id DESC
     LIMIT $10
), numbered AS (
    SELECT id, created_at,
           ($5::text IS NULL OR type = $5)
           AND ($6::text IS NULL OR tags ->> $6 = $7)
           AND ($8::uuid[] IS NULL
                OR EXISTS (SELECT FROM duly.timers
                            WHERE timers.shard = looked.shard AND timers.id = looked.id
                              AND timers.holder = ANY ($8))
                OR EXISTS (SELECT FROM duly.attempts
                            WHERE attempts.shard = looked.shard AND attempts.id = looked.id
                              AND attempts.holder = ANY ($8)))
           AND ($9::text IS NULL
                OR EXISTS (SELECT FROM duly.attempts
                            WHERE attempts.shard = looked.shard AND attempts.id = looked.id
                              AND strpos(lower(attempts.error), $9) > 0))
           AND ($4::text IS NULL
                OR strpos(id::text, $4) = 1
                OR strpos(type, $4) > 0
                OR strpos(lower(payload), $4) > 0
                OR EXISTS (SELECT FROM jsonb_each_text(tags) AS tag(name, value)
                            WHERE strpos(lower(tag.name || ':' || tag.value), $4) > 0)
                OR EXISTS (SELECT FROM duly.attempts
                            WHERE attempts.shard = looked.shard AND attempts.id = looked.id
                              AND strpos(lower(attempts.error), $4) > 0)) AS is_match,
           row_number() OVER (ORDER BY created_at DESC, id DESC) AS place,
           count(*) OVER () AS looked_at
      FROM looked
)
SELECT id, created_at, coalesce(is_match, false) AS is_match, looked_at
  FROM numbered
 WHERE is_match OR place = looked_at
 ORDER BY place

-- name: find_holders
-- The processes that a worker's name stands for, as long as the worker is known.
SELECT holder FROM duly.workers WHERE tenant = $1 AND id = $2
