-- The inbox of a program that acts once: which steps of which executions it has done. A row is written
-- in the program's own transaction, so that it is there exactly if the effect is. Kept for 30 days.
CREATE TABLE IF NOT EXISTS duly_inbox (
    -- The same in every attempt of a task, and in a replay.
    execution_key text NOT NULL,
    step          text NOT NULL,
    -- Who did it.
    task_id       text NOT NULL,
    fence         bigint NOT NULL,
    done_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (execution_key, step)
);
CREATE INDEX IF NOT EXISTS duly_inbox_done_at ON duly_inbox (done_at);
