-- name: forward
-- What handlers logged, in bounded chunks: `lines` is a JSON array. Kept by time, apart from the task.
CREATE TABLE duly.task_logs (
    shard  smallint NOT NULL,
    tenant integer NOT NULL,
    fence  integer NOT NULL,
    seq    smallint NOT NULL CHECK (seq >= 0),
    id     uuid NOT NULL,
    at     timestamptz NOT NULL,
    lines  text NOT NULL,
    PRIMARY KEY (shard, id, fence, seq)
);
-- For retention alone: rows come in this order, so a small index is enough.
CREATE INDEX task_logs_by_time ON duly.task_logs USING brin (at);
GRANT SELECT, INSERT, DELETE ON duly.task_logs TO duly_engine;
GRANT SELECT, DELETE ON duly.task_logs TO duly_purger;
GRANT SELECT ON duly.task_logs TO duly_tenant;
ALTER TABLE duly.task_logs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.task_logs TO CURRENT_USER, duly_engine, duly_purger USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.task_logs TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- Logs are not needed by anything that runs.
DROP TABLE duly.task_logs;
