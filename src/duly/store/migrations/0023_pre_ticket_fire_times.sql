-- name: forward
-- With the scheduler in another process than its consumers, how long a task was ready can only be told
-- by who takes its ticket: the ticket says since when, in seconds since 1970. Null in tickets of
-- processes of the version before.
ALTER TABLE duly.ready_tickets ADD COLUMN fires_at double precision;

-- name: reverse
-- Everything of this migration.
ALTER TABLE duly.ready_tickets DROP COLUMN fires_at;
