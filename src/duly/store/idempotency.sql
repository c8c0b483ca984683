-- name: find_key
-- What one key stands for, while it lives.
SELECT request_hash, task_id
  FROM duly.idempotency_keys
 WHERE shard = $1 AND tenant = $2 AND key = $3 AND expires_at > duly.now()

-- name: delete_expired_keys
-- A bounded batch of keys whose time to live is over.
DELETE FROM duly.idempotency_keys
 WHERE (shard, tenant, key) IN (
       SELECT shard, tenant, key FROM duly.idempotency_keys
        WHERE expires_at <= duly.now()
        ORDER BY expires_at LIMIT $1)
   AND expires_at <= duly.now()
RETURNING key
