-- name: lease_submit_tokens
-- Refill and take in one statement, on the row as it is when its lock is got: calls of all processes
-- draw from one bucket. The limits are those of this instant. A statement that waited for the row may
-- be older than it: time never runs back in it. No row: the tenant has no rate.
INSERT INTO duly.submit_tokens AS bucket (tenant, tokens, granted, updated_at)
SELECT limits.id, limits.burst - limits.granted, limits.granted, duly.now()
  FROM (SELECT tenants.id, bursts.burst,
               duly.tokens_granted(bursts.burst, bursts.burst, $2, $3, tenants.submit_rate * $4)
                   AS granted
          FROM duly.tenants
         CROSS JOIN LATERAL (SELECT greatest(coalesce(tenants.submit_burst, tenants.submit_rate), 1)
                                        AS burst) AS bursts
         WHERE tenants.id = $1 AND tenants.submit_rate IS NOT NULL) AS limits
    ON CONFLICT (tenant) DO UPDATE
   SET (tokens, granted, updated_at) = (
       SELECT refilled.tokens - taken.granted, taken.granted,
              greatest(bucket.updated_at, excluded.updated_at)
         FROM duly.tenants
        CROSS JOIN LATERAL (
              SELECT greatest(coalesce(tenants.submit_burst, tenants.submit_rate), 1) AS burst,
                     greatest(extract(epoch FROM excluded.updated_at - bucket.updated_at), 0)
                         * tenants.submit_rate AS gained) AS since
        CROSS JOIN LATERAL (
              SELECT least(bucket.tokens + since.gained, since.burst) AS tokens) AS refilled
        CROSS JOIN LATERAL (
              SELECT duly.tokens_granted(refilled.tokens, since.burst, $2, $3,
                                         tenants.submit_rate * $4) AS granted) AS taken
        WHERE tenants.id = bucket.tenant)
RETURNING bucket.granted, bucket.tokens

-- name: lease_request_tokens
-- The same for the calls of one key, of which a second's worth may be saved up. No row: the key has no
-- rate, or is gone.
INSERT INTO duly.request_tokens AS bucket (key_id, tokens, granted, updated_at)
SELECT limits.id, limits.burst - limits.granted, limits.granted, duly.now()
  FROM (SELECT keys.id, bursts.burst,
               duly.tokens_granted(bursts.burst, bursts.burst, $2, $3, keys.request_rate * $4)
                   AS granted
          FROM duly.api_keys keys
         CROSS JOIN LATERAL (SELECT greatest(keys.request_rate, 1) AS burst) AS bursts
         WHERE keys.id = $1 AND keys.request_rate IS NOT NULL) AS limits
    ON CONFLICT (key_id) DO UPDATE
   SET (tokens, granted, updated_at) = (
       SELECT refilled.tokens - taken.granted, taken.granted,
              greatest(bucket.updated_at, excluded.updated_at)
         FROM duly.api_keys keys
        CROSS JOIN LATERAL (
              SELECT greatest(keys.request_rate, 1) AS burst,
                     greatest(extract(epoch FROM excluded.updated_at - bucket.updated_at), 0)
                         * keys.request_rate AS gained) AS since
        CROSS JOIN LATERAL (
              SELECT least(bucket.tokens + since.gained, since.burst) AS tokens) AS refilled
        CROSS JOIN LATERAL (
              SELECT duly.tokens_granted(refilled.tokens, since.burst, $2, $3,
                                         keys.request_rate * $4) AS granted) AS taken
        WHERE keys.id = bucket.key_id)
RETURNING bucket.granted, bucket.tokens
