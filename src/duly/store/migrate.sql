-- name: create_ledger
-- The ledger must exist before the first migration can be recorded in it.
CREATE SCHEMA IF NOT EXISTS duly;
CREATE TABLE IF NOT EXISTS duly.migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.now()
)

-- name: has_ledger
-- A database that duly never touched has no ledger; asking must not create one.
SELECT to_regclass('duly.migrations') IS NOT NULL AS has_ledger

-- name: applied
-- What this database already has.
SELECT number, name, applied_at FROM duly.migrations ORDER BY number

-- name: schema_version
-- For the readiness probe: one cheap read that also proves the database answers.
SELECT coalesce(max(number), 0) AS number FROM duly.migrations

-- name: record
-- In the same transaction as the migration itself, so that a crash leaves both or neither.
INSERT INTO duly.migrations (number, name) VALUES ($1, $2)

-- name: forget
-- In the same transaction as the reverse.
DELETE FROM duly.migrations WHERE number = $1

-- name: try_lock
-- One migrator at a time; a killed one drops the lock with its session.
SELECT pg_try_advisory_lock(hashtext('duly.migrations')) AS locked

-- name: set_lock_timeout
-- A migration that waits for a lock makes every later statement wait behind it: give up and retry.
SET LOCAL lock_timeout = '2s'
