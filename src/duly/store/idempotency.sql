-- name: find_key
-- What one key stands for, while it lives.
SELECT request_hash, task_id
  FROM duly.idempotency_keys
 WHERE shard = $1 AND tenant = $2 AND key = $3 AND expires_at > duly.now()

-- name: extend_key
-- A debounced task was put off: its key stands for it as long. Another task's key is left alone.
UPDATE duly.idempotency_keys SET expires_at = duly.now() + make_interval(secs => $5)
 WHERE shard = $1 AND tenant = $2 AND key = $3 AND task_id = $4
RETURNING key

-- name: free_key
-- Its task has started or ended: the next submit is another task.
DELETE FROM duly.idempotency_keys
 WHERE shard = $1 AND tenant = $2 AND key = $3 AND task_id = $4
RETURNING key

-- name: delete_expired_keys
-- A bounded batch of keys whose time to live is over.
DELETE FROM duly.idempotency_keys
 WHERE (shard, tenant, key) IN (
       SELECT shard, tenant, key FROM duly.idempotency_keys
        WHERE expires_at <= duly.now()
        ORDER BY expires_at LIMIT $1)
   AND expires_at <= duly.now()
RETURNING key
