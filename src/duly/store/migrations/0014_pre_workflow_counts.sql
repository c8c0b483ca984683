-- name: forward
-- Living workflows are counted every few seconds; among those of a month that ended they would be
-- looked for one by one.
CREATE INDEX workflows_living ON duly.workflows (created_at) WHERE ended_at IS NULL;

-- name: reverse
-- For figures only.
DROP INDEX duly.workflows_living;
