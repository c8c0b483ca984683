-- name: forward
-- A breaker that let a probe through and saw it succeed gives its host the work back by and by.
ALTER TABLE duly.breakers ADD COLUMN ramp_at timestamptz;
GRANT DELETE ON duly.breakers TO duly_tenant;

-- name: reverse
-- Everything of this migration.
REVOKE DELETE ON duly.breakers FROM duly_tenant;
ALTER TABLE duly.breakers DROP COLUMN ramp_at;
