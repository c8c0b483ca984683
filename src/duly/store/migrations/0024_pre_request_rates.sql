-- name: forward
-- How many calls a second a key may make, for all processes together; null: any number. Its bucket is
-- drawn from as that of the submit rates, and goes with its key.
ALTER TABLE duly.api_keys
    ADD COLUMN request_rate double precision CHECK (request_rate > 0);
CREATE TABLE duly.request_tokens (
    key_id     text PRIMARY KEY REFERENCES duly.api_keys (id) ON DELETE CASCADE,
    tokens     double precision NOT NULL CHECK (tokens >= 0),
    granted    double precision NOT NULL CHECK (granted >= 0),
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.request_tokens TO duly_engine;

-- name: reverse
-- Everything of this migration.
DROP TABLE duly.request_tokens;
ALTER TABLE duly.api_keys DROP COLUMN request_rate;
