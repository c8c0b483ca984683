-- name: forward
-- A role that fails on any node is seen by `duly status` and `duly doctor`: role and cause, by the node.
ALTER TABLE duly.nodes ADD COLUMN failing jsonb NOT NULL DEFAULT '{}';

-- name: reverse
-- Everything of this migration.
ALTER TABLE duly.nodes DROP COLUMN failing;
