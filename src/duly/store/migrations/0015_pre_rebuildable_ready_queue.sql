-- name: forward
-- After a promotion an unlogged table is empty and an unlogged sequence may be unreadable, for ever:
-- nothing unlogged depends on a sequence, and the ready queue can be emptied by the engine, also when
-- it cannot be read.

-- What is in it is published again. An unreadable one is readable after this.
TRUNCATE duly.ready_tickets;
-- The publisher's place: the database's time in microseconds plus the ticket's number in its batch.
-- Two publishers may draw the same, so no key. The default is for processes of the version before.
ALTER TABLE duly.ready_tickets ALTER COLUMN sequence DROP IDENTITY;
ALTER TABLE duly.ready_tickets ALTER COLUMN sequence
    SET DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
ALTER TABLE duly.ready_tickets DROP CONSTRAINT ready_tickets_pkey;
CREATE INDEX ready_tickets_lane ON duly.ready_tickets (tenant, pool, band, sequence);

-- A few rows that are written every few seconds: logged, they need no rebuilding.
TRUNCATE duly.rate_levels;
ALTER TABLE duly.rate_levels SET LOGGED;

-- Empties the ready queue without reading it: new files for the table and its index. Several processes
-- meet the same fault at once; only those that saw the files which are still in use do it.
CREATE FUNCTION duly.rebuild_ready_tickets(seen_filenode oid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '2s'
AS $$
BEGIN
    LOCK TABLE duly.ready_tickets IN ACCESS EXCLUSIVE MODE;
    IF pg_relation_filenode('duly.ready_tickets') IS DISTINCT FROM seen_filenode THEN
        RETURN false;
    END IF;
    TRUNCATE duly.ready_tickets;
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION duly.rebuild_ready_tickets(oid) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION duly.rebuild_ready_tickets(oid) TO duly_engine;

-- name: reverse
-- Everything of this migration.
DROP FUNCTION duly.rebuild_ready_tickets(oid);
TRUNCATE duly.rate_levels;
ALTER TABLE duly.rate_levels SET UNLOGGED;
TRUNCATE duly.ready_tickets;
DROP INDEX duly.ready_tickets_lane;
ALTER TABLE duly.ready_tickets ALTER COLUMN sequence DROP DEFAULT;
ALTER TABLE duly.ready_tickets ALTER COLUMN sequence ADD GENERATED ALWAYS AS IDENTITY;
ALTER TABLE duly.ready_tickets ADD PRIMARY KEY (tenant, pool, band, sequence);
