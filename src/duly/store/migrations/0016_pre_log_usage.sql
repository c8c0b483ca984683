-- name: forward
-- How much each tenant's handlers logged in a day: past its quota lines are dropped.
CREATE TABLE duly.log_usage (
    tenant integer NOT NULL,
    day    date NOT NULL,
    bytes  bigint NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (tenant, day)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.log_usage TO duly_engine;
GRANT SELECT ON duly.log_usage TO duly_tenant;
ALTER TABLE duly.log_usage ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.log_usage TO CURRENT_USER, duly_engine, duly_purger USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.log_usage TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- Quotas begin anew.
DROP TABLE duly.log_usage;
