-- name: read_live_secrets
-- What a tenant's webhooks are signed with now, the newest first: a receiver that knows any of them
-- can verify the request.
SELECT secret
  FROM duly.webhook_secrets
 WHERE tenant = $1 AND (expires_at IS NULL OR expires_at > duly.now())
 ORDER BY created_at DESC, id
 LIMIT $2

-- name: make_first_secret
-- So that no request leaves unsigned. One row, first writer wins; one that ran out is replaced.
INSERT INTO duly.webhook_secrets AS known (tenant, id, secret, created_at, created_by)
SELECT $1, $2, $3, duly.now(), 'duly'
 WHERE NOT EXISTS (SELECT FROM duly.webhook_secrets
                    WHERE tenant = $1 AND (expires_at IS NULL OR expires_at > duly.now()))
    ON CONFLICT (tenant, id) DO UPDATE
   SET secret = excluded.secret, created_at = excluded.created_at, expires_at = NULL
 WHERE known.expires_at <= duly.now()
RETURNING known.id

-- name: lock_secrets
-- Of two that rotate at once, the second sees what the first one made. Held until the commit.
SELECT pg_advisory_xact_lock(7305012, $1)

-- name: expire_secrets
-- The end of those before is only ever brought nearer.
UPDATE duly.webhook_secrets
   SET expires_at = least(expires_at, duly.now() + make_interval(secs => $2))
 WHERE tenant = $1 AND (expires_at IS NULL OR expires_at > duly.now())
RETURNING id

-- name: delete_expired_secrets
-- What signs nothing any more is worth nothing to anybody but a thief.
DELETE FROM duly.webhook_secrets WHERE tenant = $1 AND expires_at <= duly.now()
RETURNING id

-- name: create_secret
-- The caller draws the id; a collision is a refusal, never another secret overwritten.
INSERT INTO duly.webhook_secrets (tenant, id, secret, created_at, created_by)
VALUES ($1, $2, $3, duly.now(), $4)
RETURNING id, created_at, created_by, expires_at

-- name: list_secrets
-- Those that sign, newest first; never what they sign with.
SELECT id, created_at, created_by, expires_at
  FROM duly.webhook_secrets
 WHERE tenant = $1 AND (expires_at IS NULL OR expires_at > duly.now())
 ORDER BY created_at DESC, id
 LIMIT $2

-- name: delete_secret
-- At once: for one that leaked.
DELETE FROM duly.webhook_secrets WHERE tenant = $1 AND id = $2
RETURNING id
