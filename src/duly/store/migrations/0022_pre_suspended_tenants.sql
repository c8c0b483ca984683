-- name: forward
-- A tenant whose credentials are refused and whose tasks wait, since when; null: it is not.
ALTER TABLE duly.tenants ADD COLUMN suspended_at timestamptz;

-- name: reverse
-- Everything of this migration.
ALTER TABLE duly.tenants DROP COLUMN suspended_at;
