-- name: become_purger
-- Only this role may blank what was asked and recorded, and only for this transaction.
SET LOCAL ROLE duly_purger

-- name: choose_ended
-- A live task still needs its payload: it is cancelled or finished first. A dead letter may have
-- outlived its task's month, and counts alone. The tombstone's key makes a second purge a no-op.
INSERT INTO duly.tombstones (shard, id, tenant, purged_at, actor)
SELECT asked.shard, asked.id, $1, duly.now(), $4
  FROM unnest($2::smallint[], $3::uuid[]) AS asked(shard, id)
 WHERE (EXISTS (SELECT FROM duly.tasks
                 WHERE tasks.shard = asked.shard AND tasks.id = asked.id AND tasks.tenant = $1)
        OR EXISTS (SELECT FROM duly.dead_letters AS letter
                    WHERE letter.shard = asked.shard AND letter.id = asked.id
                      AND letter.tenant = $1))
   AND NOT EXISTS (SELECT FROM duly.timers
                    WHERE timers.shard = asked.shard AND timers.id = asked.id)
    ON CONFLICT DO NOTHING
RETURNING id

-- name: erase_tasks
-- What was asked; its shape stays, so that counts and states remain true.
UPDATE duly.tasks
   SET payload = NULL, execution_key = NULL, tags = NULL
  FROM unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE tasks.shard = chosen.shard AND tasks.id = chosen.id

-- name: erase_attempts
-- What came of it.
UPDATE duly.attempts
   SET result = NULL, error = NULL
  FROM unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE attempts.shard = chosen.shard AND attempts.id = chosen.id

-- name: erase_dead_letters
-- The copy a dead letter keeps is as personal as the original.
DELETE FROM duly.dead_letters
 USING unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE dead_letters.shard = chosen.shard AND dead_letters.id = chosen.id
