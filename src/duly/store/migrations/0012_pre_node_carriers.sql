-- name: forward
-- What each process says of its carrier: which one, where, and why it takes no tickets. NULL of a process
-- that runs older code.
ALTER TABLE duly.nodes ADD COLUMN carrier jsonb;

-- name: reverse
-- Only shown; nothing decides by it.
ALTER TABLE duly.nodes DROP COLUMN carrier;
