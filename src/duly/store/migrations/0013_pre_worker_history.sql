-- name: forward
-- What each worker process did from its first contact to its last: kept when the worker is long gone.
CREATE TABLE duly.worker_history (
    tenant        integer NOT NULL,
    holder        uuid NOT NULL,
    id            text NOT NULL,
    sdk           text NOT NULL,
    version       text NOT NULL,
    pools         text[] NOT NULL,
    -- How many attempts it runs at a time; 0 is unknown.
    slots         integer NOT NULL CHECK (slots >= 0),
    first_seen_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL,
    completed     bigint NOT NULL DEFAULT 0,
    failed        bigint NOT NULL DEFAULT 0,
    lost          bigint NOT NULL DEFAULT 0,
    other         bigint NOT NULL DEFAULT 0,
    busy_s        double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, holder)
) WITH (fillfactor = 70);
CREATE INDEX worker_history_by_time ON duly.worker_history (tenant, last_seen_at, holder);
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.worker_history TO duly_engine;
GRANT SELECT ON duly.worker_history TO duly_tenant;
ALTER TABLE duly.worker_history ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.worker_history TO CURRENT_USER, duly_engine, duly_purger USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.worker_history TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- Only shown; nothing decides by it.
DROP TABLE duly.worker_history;
