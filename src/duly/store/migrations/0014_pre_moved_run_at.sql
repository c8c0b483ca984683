-- name: forward
-- The fire time of a task that was rescheduled; null: as in `tasks`, which is never updated. A retry
-- moves `due_at` alone. Each attempt keeps the one it was leased for, so that it outlives the timer.
ALTER TABLE duly.timers ADD COLUMN run_at timestamptz;
ALTER TABLE duly.attempts ADD COLUMN run_at timestamptz;

-- name: reverse
-- Both columns; rescheduled tasks show the instant that was first asked for again.
ALTER TABLE duly.attempts DROP COLUMN run_at;
ALTER TABLE duly.timers DROP COLUMN run_at;
