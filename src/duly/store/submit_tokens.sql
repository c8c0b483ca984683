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
