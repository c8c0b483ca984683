-- name: forward
-- Bulk operations: one action on everything that a filter matches, in small commits at a rate.

-- One row for each operation. A batch (a small commit) locks the row, changes what the filter matches behind
-- `position`, and counts it here. `epoch` rises with every change of the row: what read an older one
-- changes nothing. `due_at` is when the next batch may run, by the rate. `canary`: it pauses after so many.
CREATE TABLE duly.bulk_operations (
    tenant     integer NOT NULL,
    epoch      integer NOT NULL DEFAULT 0,
    failures   smallint NOT NULL DEFAULT 0,
    canary     integer,
    matched    bigint NOT NULL,
    done       bigint NOT NULL DEFAULT 0,
    refused    bigint NOT NULL DEFAULT 0,
    rate_per_s double precision NOT NULL CHECK (rate_per_s > 0),
    delay_s    double precision,
    id         uuid NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    due_at     timestamptz NOT NULL,
    ended_at   timestamptz,
    has_more   boolean NOT NULL,
    action     text NOT NULL,
    state      text NOT NULL DEFAULT 'RUNNING',
    filter     text NOT NULL,
    sample     text NOT NULL,
    actor      text NOT NULL,
    position   text,
    error      text,
    PRIMARY KEY (tenant, id),
    CHECK (action IN ('cancel', 'replay', 'reschedule', 'run_now', 'purge')),
    CHECK (state IN ('RUNNING', 'PAUSED_AFTER_CANARY', 'DONE', 'STOPPED', 'FAILED')),
    CHECK ((ended_at IS NULL) = (state IN ('RUNNING', 'PAUSED_AFTER_CANARY')))
);
CREATE INDEX bulk_operations_due ON duly.bulk_operations (due_at) WHERE state = 'RUNNING';
CREATE INDEX bulk_operations_ended ON duly.bulk_operations (ended_at) WHERE ended_at IS NOT NULL;
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.bulk_operations TO duly_engine, duly_tenant;
ALTER TABLE duly.bulk_operations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.bulk_operations TO CURRENT_USER, duly_engine, duly_purger
    USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.bulk_operations TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- Operations that run stop where they are; what they did stays done.
DROP TABLE duly.bulk_operations;
