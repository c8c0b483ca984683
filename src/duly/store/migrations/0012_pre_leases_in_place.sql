-- name: forward
-- A lease that leaves its row where it is touches no index, if its page has room for the leased
-- version of every row on it: fewer rows to a page. Lane 0 no longer holds all leases; those that
-- stay in place are named by a lookout, so that they are found when they run out.
-- Vacuum gives no pages back: it would lock everybody out to do so, and they are soon needed again.
ALTER TABLE duly.timers SET (fillfactor = 43, vacuum_truncate = false);
-- Not validated: the stronger one held for every row, and reading all of them would block.
ALTER TABLE duly.timers DROP CONSTRAINT timers_check1;
ALTER TABLE duly.timers ADD CONSTRAINT timers_lane_0_is_leased
    CHECK (holder IS NOT NULL OR lane <> 0) NOT VALID;

-- Only for those who say that they look by tenant (`tenant > 0`, which is always so): where the table
-- seems empty, because all of it is dead or new, keys would be looked up here as well, by walking
-- whatever stands before them, and the plan would be kept.
DROP INDEX duly.timers_due;
CREATE INDEX timers_due ON duly.timers (tenant, shard, lane, due_at, id) WHERE tenant > 0;

-- At this instant, look at these leases, in the order of their ids. A row for each batch that was
-- leased in place.
CREATE TABLE duly.lookouts (
    shard   smallint NOT NULL,
    tenant  integer NOT NULL,
    look_at timestamptz NOT NULL,
    number  bigint GENERATED ALWAYS AS IDENTITY,
    ids     uuid[] NOT NULL,
    PRIMARY KEY (tenant, shard, look_at, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
-- Short enough for its row: a table for long values would cost as much again.
ALTER TABLE duly.lookouts ALTER COLUMN ids SET STORAGE MAIN;

GRANT SELECT, INSERT, UPDATE, DELETE ON duly.lookouts TO duly_engine;
GRANT SELECT ON duly.lookouts TO duly_tenant;

ALTER TABLE duly.lookouts ENABLE ROW LEVEL SECURITY;
ALTER TABLE duly.lookouts FORCE ROW LEVEL SECURITY;
DO $$
BEGIN
    EXECUTE format('CREATE POLICY every_row ON duly.lookouts TO %I, duly_engine '
                   'USING (true) WITH CHECK (true)', current_user);
END
$$;
CREATE POLICY own_rows ON duly.lookouts TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- Everything of this migration. What is leased in place moves to where leases used to be.
UPDATE duly.timers SET lane = 0, due_at = lease_until WHERE holder IS NOT NULL AND lane <> 0;
DROP TABLE duly.lookouts;
DROP INDEX duly.timers_due;
CREATE INDEX timers_due ON duly.timers (tenant, shard, lane, due_at, id);
ALTER TABLE duly.timers DROP CONSTRAINT timers_lane_0_is_leased;
ALTER TABLE duly.timers ADD CONSTRAINT timers_check1 CHECK ((holder IS NULL) = (lane <> 0));
ALTER TABLE duly.timers RESET (fillfactor, vacuum_truncate, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_insert_scale_factor,
    autovacuum_analyze_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE duly.timers SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);
