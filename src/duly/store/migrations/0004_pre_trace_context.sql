-- name: forward
-- The W3C trace context of the caller, carried to every attempt. Null for most tasks, which costs a bit.
ALTER TABLE duly.tasks ADD COLUMN traceparent text;
ALTER TABLE duly.tasks ADD CHECK (length(traceparent) = 55);

-- name: reverse
-- Attempts of tasks that are live begin a trace of their own from then on.
ALTER TABLE duly.tasks DROP COLUMN traceparent;
