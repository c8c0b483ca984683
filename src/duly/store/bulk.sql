-- name: create_operation
-- It starts at once, at most so many that have not ended in one tenant. Its instant bounds what it
-- matches: neither what is submitted nor what fails later.
INSERT INTO duly.bulk_operations (tenant, id, action, filter, delay_s, rate_per_s, canary, matched,
                                  has_more, sample, actor, created_at, updated_at, due_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, duly.now(), duly.now(), duly.now()
 WHERE (SELECT count(*) FROM (SELECT FROM duly.bulk_operations
                               WHERE tenant = $1 AND ended_at IS NULL
                               LIMIT $12) AS live) < $12
RETURNING tenant, id, action, state, filter, delay_s, rate_per_s, canary, matched, has_more, done,
          refused, sample, actor, created_at, updated_at, ended_at, error, epoch, failures, position

-- name: read_operation
-- One operation with its progress.
SELECT tenant, id, action, state, filter, delay_s, rate_per_s, canary, matched, has_more, done,
       refused, sample, actor, created_at, updated_at, ended_at, error, epoch, failures, position
  FROM duly.bulk_operations
 WHERE tenant = $1 AND id = $2

-- name: list_operations
-- A tenant's operations, newest first; there are few, because ended ones are deleted in time.
SELECT tenant, id, action, state, filter, delay_s, rate_per_s, canary, matched, has_more, done,
       refused, sample, actor, created_at, updated_at, ended_at, error, epoch, failures, position
  FROM duly.bulk_operations
 WHERE tenant = $1 AND (created_at, id) < ($2, $3)
 ORDER BY created_at DESC, id DESC
 LIMIT $4

-- name: stop_operation
-- For good. It waits for a batch that runs, and the next one finds another state.
UPDATE duly.bulk_operations
   SET state = 'STOPPED', epoch = epoch + 1, updated_at = duly.now(), ended_at = duly.now()
 WHERE tenant = $1 AND id = $2 AND state IN ('RUNNING', 'PAUSED_AFTER_CANARY')
RETURNING id

-- name: continue_operation
-- After the canary: the rest follows at the same rate, without a further pause.
UPDATE duly.bulk_operations
   SET state = 'RUNNING', epoch = epoch + 1, updated_at = duly.now(), due_at = duly.now(),
       canary = NULL
 WHERE tenant = $1 AND id = $2 AND state = 'PAUSED_AFTER_CANARY'
RETURNING id

-- name: find_running
-- Operations of all tenants whose next batch comes first, and how long until then.
SELECT tenant, id, epoch,
       greatest(0, extract(epoch FROM due_at - duly.now()))::double precision AS wait_s
  FROM duly.bulk_operations
 WHERE state = 'RUNNING'
 ORDER BY due_at
 LIMIT $1

-- name: lock_operation
-- A batch belongs to the process that locks the row as it was found; another one passes it by.
SELECT tenant, id, action, state, filter, delay_s, rate_per_s, canary, matched, has_more, done,
       refused, sample, actor, created_at, updated_at, ended_at, error, epoch, failures, position
  FROM duly.bulk_operations
 WHERE tenant = $1 AND id = $2 AND epoch = $3 AND state = 'RUNNING' AND due_at <= duly.now()
   FOR UPDATE SKIP LOCKED

-- name: record_batch
-- In the commit of the moves that it counts. The next batch is due when the rate has room for what this
-- one changed; a delay of more than a second is not caught up.
UPDATE duly.bulk_operations
   SET epoch = epoch + 1, failures = 0, error = NULL, position = $4, state = $5,
       done = done + $6, refused = refused + $7,
       matched = CASE WHEN $5 = 'DONE' THEN done + refused + $6 + $7
                      ELSE greatest(matched, done + refused + $6 + $7) END,
       has_more = has_more AND $5 <> 'DONE',
       due_at = greatest(due_at, duly.now() - interval '1 second')
                + make_interval(secs => ($6 + $7) / rate_per_s),
       updated_at = duly.now(),
       ended_at = CASE WHEN $5 = 'DONE' THEN duly.now() END
 WHERE tenant = $1 AND id = $2 AND epoch = $3 AND state = 'RUNNING'
RETURNING done, refused

-- name: record_failure
-- A batch that was rolled back: it is tried again after a pause, and given up after so many in a row.
UPDATE duly.bulk_operations
   SET epoch = epoch + 1, failures = failures + 1, error = $4,
       due_at = duly.now() + make_interval(secs => $5), updated_at = duly.now(),
       state = CASE WHEN failures + 1 >= $6 THEN 'FAILED' ELSE 'RUNNING' END,
       ended_at = CASE WHEN failures + 1 >= $6 THEN duly.now() END
 WHERE tenant = $1 AND id = $2 AND epoch = $3 AND state = 'RUNNING'
RETURNING state

-- name: delete_old_operations
-- What ended long ago, a bounded batch at a time.
DELETE FROM duly.bulk_operations
 USING (SELECT tenant, id FROM duly.bulk_operations
         WHERE ended_at < duly.now() - make_interval(secs => $1)
         ORDER BY ended_at
         LIMIT $2) AS old
 WHERE bulk_operations.tenant = old.tenant AND bulk_operations.id = old.id
RETURNING bulk_operations.id
