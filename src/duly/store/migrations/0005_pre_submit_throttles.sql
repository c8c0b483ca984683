-- name: forward
-- When the next task of a throttle may start. A key is a digest, in the shard of its own hash, like an
-- idempotency key.
CREATE TABLE duly.submit_throttles (
    shard   smallint NOT NULL,
    tenant  integer NOT NULL,
    key     text NOT NULL,
    next_at timestamptz NOT NULL,
    PRIMARY KEY (shard, tenant, key)
);
CREATE INDEX submit_throttles_expiry ON duly.submit_throttles (next_at);
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.submit_throttles TO duly_engine;

-- name: reverse
-- Tasks that were stored keep their instants; later ones are not held apart from them.
DROP TABLE duly.submit_throttles;
