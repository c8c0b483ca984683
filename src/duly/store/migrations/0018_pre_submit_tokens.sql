-- name: forward
-- One token bucket for each tenant with a submit rate: processes that serve the API lease slices of
-- it. `granted` is what the last lease got, which a RETURNING could not tell otherwise.
CREATE TABLE duly.submit_tokens (
    tenant     integer PRIMARY KEY,
    tokens     double precision NOT NULL CHECK (tokens >= 0),
    granted    double precision NOT NULL CHECK (granted >= 0),
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Nothing below `need`; else up to `wanted`, and of a bucket that is more than half full a slice more.
CREATE FUNCTION duly.tokens_granted(tokens double precision, burst double precision,
    need double precision, wanted double precision, slice double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN tokens < need THEN 0
            ELSE greatest(least(tokens, wanted), least(slice, tokens - burst / 2)) END;

GRANT SELECT, INSERT, UPDATE, DELETE ON duly.submit_tokens TO duly_engine;

-- name: reverse
-- Each process has a bucket of its own again.
DROP TABLE duly.submit_tokens;
DROP FUNCTION duly.tokens_granted;
