-- name: become_purger
-- Only this role may blank what was asked and recorded, and only for this transaction.
SET LOCAL ROLE duly_purger

-- name: become_tenant_again
-- The rest of the transaction, such as its audit record, is the tenant's.
SET LOCAL ROLE duly_tenant

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
-- What was asked; its shape stays, so that counts and states remain true: of the policy how often and
-- how long it was tried, of a webhook its host.
UPDATE duly.tasks
   SET payload = NULL, execution_key = NULL, tags = NULL,
       policy = nullif((policy::jsonb - ARRAY['headers', 'concurrency_key', 'concurrency_limit', 'callback'])::text,
                       '{}'),
       url = substring(url FROM '^[A-Za-z]+://[^/?#]+')
  FROM unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE tasks.shard = chosen.shard AND tasks.id = chosen.id

-- name: erase_attempts
-- What came of it.
UPDATE duly.attempts
   SET result = NULL, error = NULL
  FROM unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE attempts.shard = chosen.shard AND attempts.id = chosen.id

-- name: erase_logs
-- Lines of its handlers may name whom it was about.
DELETE FROM duly.task_logs
 USING unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE task_logs.shard = chosen.shard AND task_logs.id = chosen.id

-- name: erase_signals
-- What was sent to the waiting nodes, or to their workflows when these had ended without taking it.
UPDATE duly.workflow_signals
   SET payload = NULL, idempotency_key = NULL
  FROM unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE workflow_signals.shard = chosen.shard
   AND workflow_signals.workflow = duly.workflow_of(chosen.id)
   AND duly.is_node(chosen.id)
   AND (workflow_signals.consumed_by = duly.node_number(chosen.id)
        OR workflow_signals.consumed_by IS NULL
           AND EXISTS (SELECT FROM duly.workflows
                        WHERE workflows.shard = chosen.shard
                          AND workflows.id = duly.workflow_of(chosen.id)
                          AND workflows.ended_at IS NOT NULL))

-- name: erase_dead_letters
-- The copy a dead letter keeps is as personal as the original.
DELETE FROM duly.dead_letters
 USING unnest($1::smallint[], $2::uuid[]) AS chosen(shard, id)
 WHERE dead_letters.shard = chosen.shard AND dead_letters.id = chosen.id

-- name: find_outliving_letters
-- Dead letters whose tasks are gone with their months; what is erased is not found again.
SELECT letter.id
  FROM duly.dead_letters AS letter
 WHERE letter.tenant = $1
   AND ($2::text IS NULL OR letter.type = $2)
   AND ($3::text IS NULL OR letter.tags ->> $3 = $4)
   AND ($5::timestamptz IS NULL OR letter.created_at > $5)
   AND ($6::timestamptz IS NULL OR letter.run_at < $6)
   AND NOT EXISTS (SELECT FROM duly.tasks
                    WHERE tasks.shard = letter.shard AND tasks.id = letter.id)
 ORDER BY letter.failed_at, letter.id
 LIMIT $7

-- name: read_tombstone
-- Whether a task was erased, also where its month is gone.
SELECT purged_at FROM duly.tombstones WHERE shard = $2 AND id = $3 AND tenant + 0 = $1
