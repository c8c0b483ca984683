-- name: claim_call
-- The first to come runs; a second with the same key waits here for the first one's end, and then
-- finds its answer. A key past its time to live counts as free.
INSERT INTO duly.remembered_calls AS held (tenant, key, request_hash, status, answer, expires_at)
VALUES ($1, $2, $3, 0, '', duly.now() + make_interval(secs => $4))
    ON CONFLICT (tenant, key) DO UPDATE
   SET request_hash = excluded.request_hash,
       status = excluded.status,
       answer = excluded.answer,
       expires_at = excluded.expires_at
 WHERE held.expires_at <= duly.now()
RETURNING tenant

-- name: read_call
-- How the first call with this key was answered; a second statement, to see what it committed.
SELECT request_hash, status, answer FROM duly.remembered_calls WHERE tenant = $1 AND key = $2

-- name: keep_answer
-- In the transaction of the call itself: the answer is remembered if and only if it happened.
UPDATE duly.remembered_calls SET status = $3, answer = $4 WHERE tenant = $1 AND key = $2

-- name: bound_call_wait
-- Another request with the same key may take long; a caller must not hang behind it.
SET LOCAL lock_timeout = '5s'

-- name: delete_expired_calls
-- A bounded batch of answers whose time to live is over.
DELETE FROM duly.remembered_calls
 WHERE (tenant, key) IN (
       SELECT tenant, key FROM duly.remembered_calls
        WHERE expires_at <= duly.now()
        ORDER BY expires_at LIMIT $1)
   AND expires_at <= duly.now()
RETURNING key
