-- name: forward
-- Workflow types: definitions of workflows in versions that never change.

-- `definition` as it was written, to be shown; `template` with all defaults filled in, to be started
-- without a caller.
CREATE TABLE duly.workflow_types (
    tenant     integer NOT NULL,
    version    integer NOT NULL,
    nodes      integer NOT NULL,
    created_at timestamptz NOT NULL,
    name       text NOT NULL,
    digest     bytea NOT NULL,
    definition text NOT NULL,
    template   text NOT NULL,
    PRIMARY KEY (tenant, name, version),
    CHECK (version > 0)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.workflow_types TO duly_engine, duly_tenant;
GRANT SELECT ON duly.workflow_types TO duly_purger;
ALTER TABLE duly.workflow_types ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.workflow_types TO CURRENT_USER, duly_engine, duly_purger
    USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.workflow_types TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- Runs of types go on: their graphs are their own.
DROP TABLE duly.workflow_types;
