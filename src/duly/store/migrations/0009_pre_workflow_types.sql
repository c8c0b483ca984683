-- name: forward
-- Workflow types: definitions of workflows in versions that never change. And what runs of them need.

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

-- When a node is due again, or since when it is held because its workflow is paused. A function, because
-- it must see a pause that committed while its caller waited for the lock of the workflow.
CREATE FUNCTION duly.due_or_held(node uuid, wanted_at timestamptz, OUT due_at timestamptz,
                                 OUT held_due_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    IF EXISTS (SELECT FROM duly.workflows
                WHERE workflows.shard = duly.shard_of(node)
                  AND workflows.id = duly.workflow_of(node)
                  AND workflows.paused_at IS NOT NULL) THEN
        held_due_at := wanted_at;
    ELSE
        due_at := wanted_at;
    END IF;
END
$$;

-- What is done to all workflows that match a filter.
ALTER TABLE duly.bulk_operations
    DROP CONSTRAINT bulk_operations_action_check,
    ADD CONSTRAINT bulk_operations_action_check
        CHECK (action IN ('cancel', 'replay', 'reschedule', 'run_now', 'purge', 'cancel_workflows',
                          'pause_workflows', 'unpause_workflows', 'resume_workflows'));

-- name: reverse
-- Runs of types go on: their graphs are their own. Nodes that were held wait for a cancel.
DELETE FROM duly.bulk_operations WHERE action LIKE '%workflows';
ALTER TABLE duly.bulk_operations
    DROP CONSTRAINT bulk_operations_action_check,
    ADD CONSTRAINT bulk_operations_action_check
        CHECK (action IN ('cancel', 'replay', 'reschedule', 'run_now', 'purge'));
DROP FUNCTION duly.due_or_held;
DROP TABLE duly.workflow_types;
