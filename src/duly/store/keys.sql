-- name: read_key
-- A credential and its tenant's name in one look, so that a call needs one answer to know who asks.
SELECT keys.id, keys.tenant, tenants.name AS tenant_name, keys.name, keys.role, keys.reach,
       keys.types, keys.secret_hash, keys.signing_secret,
       keys.revoked_at IS NULL AND (keys.expires_at IS NULL OR keys.expires_at > duly.now())
           AS is_live,
       keys.expires_at, tenants.suspended_at IS NOT NULL AS is_suspended, keys.request_rate
  FROM duly.api_keys keys
  JOIN duly.tenants ON tenants.id = keys.tenant
 WHERE keys.id = $1

-- name: create_key
-- The caller draws the id; a collision is a refusal, never another's key overwritten.
INSERT INTO duly.api_keys (id, tenant, name, role, reach, types, secret_hash, signing_secret,
                           created_at, created_by, expires_at, rotated_from, request_rate)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, duly.now(), $9,
        duly.now() + make_interval(secs => $10), $11, $12)
RETURNING id, tenant, name, role, reach, types, signing_secret IS NOT NULL AS is_signing, created_at,
          created_by, expires_at, revoked_at, rotated_from, request_rate

-- name: list_keys
-- A tenant's keys in the order of their ids; never what verifies them.
SELECT id, tenant, name, role, reach, types, signing_secret IS NOT NULL AS is_signing, created_at,
       created_by, expires_at, revoked_at, rotated_from, request_rate
  FROM duly.api_keys
 WHERE tenant = $1 AND id > $2
 ORDER BY id
 LIMIT $3

-- name: find_key
-- One key of one tenant; never what verifies it.
SELECT id, tenant, name, role, reach, types, signing_secret IS NOT NULL AS is_signing, created_at,
       created_by, expires_at, revoked_at, rotated_from, request_rate
  FROM duly.api_keys
 WHERE tenant = $1 AND id = $2

-- name: lock_key
-- Before a rotation: of two at once, the second sees what the first one made.
SELECT id, tenant, name, role, reach, types, signing_secret IS NOT NULL AS is_signing, created_at,
       created_by, expires_at, revoked_at, rotated_from, request_rate
  FROM duly.api_keys
 WHERE tenant = $1 AND id = $2
   FOR UPDATE

-- name: judge_rotation
-- A statement after the lock, so that it sees what was committed while we waited for it.
SELECT keys.revoked_at IS NULL AND (keys.expires_at IS NULL OR keys.expires_at > duly.now())
           AS is_live,
       (SELECT later.id
          FROM duly.api_keys later
         WHERE later.tenant = $1 AND later.rotated_from = $2
         LIMIT 1) AS successor
  FROM duly.api_keys keys
 WHERE keys.tenant = $1 AND keys.id = $2

-- name: read_known_ids
-- Which of these are keys of this tenant.
SELECT id FROM duly.api_keys WHERE tenant = $1 AND id = ANY ($2::text[])

-- name: revoke_key
-- The first revocation stands; a key that is revoked already keeps its instant.
UPDATE duly.api_keys
   SET revoked_at = coalesce(revoked_at, duly.now())
 WHERE tenant = $1 AND id = $2
RETURNING id, tenant, name, role, reach, types, signing_secret IS NOT NULL AS is_signing, created_at,
          created_by, expires_at, revoked_at, rotated_from, request_rate

-- name: limit_key
-- How many calls a second it may make; null is any number. Its row is locked.
UPDATE duly.api_keys
   SET request_rate = $3
 WHERE tenant = $1 AND id = $2
RETURNING id, tenant, name, role, reach, types, signing_secret IS NOT NULL AS is_signing, created_at,
          created_by, expires_at, revoked_at, rotated_from, request_rate

-- name: expire_key
-- After a rotation both keys live until the old one's end, which is only ever brought nearer.
UPDATE duly.api_keys
   SET expires_at = least(expires_at, duly.now() + make_interval(secs => $3))
 WHERE tenant = $1 AND id = $2 AND revoked_at IS NULL
RETURNING expires_at

-- name: count_keys
-- To keep the number of a tenant's keys bounded.
SELECT count(*) AS keys FROM duly.api_keys WHERE tenant = $1

-- name: delete_dead_keys
-- Room for new ones, when a tenant has as many as it may; the audit remembers these.
DELETE FROM duly.api_keys
 WHERE tenant = $1 AND (revoked_at IS NOT NULL OR expires_at <= duly.now())
RETURNING id

-- name: exists_any_key
-- Has anybody a way in?
SELECT EXISTS (SELECT FROM duly.api_keys) AS is_any

-- name: exists_admin_key
-- Whether a live key administers the installation; without one, a key can be made only here.
SELECT EXISTS (SELECT FROM duly.api_keys
                WHERE role = 'admin' AND reach = 'installation' AND revoked_at IS NULL
                  AND (expires_at IS NULL OR expires_at > duly.now())) AS is_any

-- name: lock_first_key
-- Two processes that start at once make one first key.
SELECT pg_advisory_xact_lock(7305011)

-- name: claim_nonce
-- Nothing inserted: this signed request was used before.
INSERT INTO duly.nonces (key_id, nonce, expires_at)
VALUES ($1, $2, duly.now() + make_interval(secs => $3))
    ON CONFLICT DO NOTHING
RETURNING nonce

-- name: delete_expired_nonces
-- A bounded batch of nonces whose signatures are too old to be used anyway.
DELETE FROM duly.nonces
 WHERE (key_id, nonce) IN (
       SELECT key_id, nonce FROM duly.nonces
        WHERE expires_at <= duly.now()
        ORDER BY expires_at LIMIT $1)
RETURNING nonce
