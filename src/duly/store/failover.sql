-- name: is_standby
-- A primary that was demoted in place goes on answering, and takes no writes.
SELECT pg_is_in_recovery()
