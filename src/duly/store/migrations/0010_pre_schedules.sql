-- name: forward
-- Schedules: what recurs, when it is due next, and the ledger of every occurrence.

-- domain/ids.py says the same.
CREATE FUNCTION duly.shard_of(id uuid) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (((get_byte(uuid_send(id), 6) & 15) << 6) | (get_byte(uuid_send(id), 7) >> 2))::smallint;

-- What was asked. Lives in its tenant's home shard. `task` is the template as it was written;
-- `template` is the submission it stands for, with the defaults of its type at that time.
CREATE TABLE duly.schedules (
    shard            smallint NOT NULL,
    tenant           integer NOT NULL,
    id               uuid NOT NULL,
    name             text NOT NULL,
    cron             text,
    every_s          integer,
    timezone         text NOT NULL,
    dst_gap          text NOT NULL,
    dst_repeat       text NOT NULL,
    misfire          text NOT NULL,
    misfire_window_s double precision NOT NULL,
    overlap          text NOT NULL,
    max_running      integer,
    jitter_s         double precision NOT NULL,
    start_at         timestamptz,
    end_at           timestamptz,
    max_fires        integer,
    exclude_dates    date[] NOT NULL,
    type             text NOT NULL,
    task             text NOT NULL,
    template         text NOT NULL,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    -- An interval counts from here, whatever is edited later.
    anchor_at        timestamptz NOT NULL,
    paused_at        timestamptz,
    paused_by        text,
    pause_reason     text,
    PRIMARY KEY (shard, id),
    UNIQUE (shard, tenant, name),
    CHECK ((cron IS NULL) <> (every_s IS NULL)),
    CHECK (dst_gap IN ('shift', 'skip')),
    CHECK (dst_repeat IN ('first', 'second', 'both')),
    CHECK (misfire IN ('fire_all', 'coalesce', 'skip')),
    CHECK (overlap IN ('allow', 'skip', 'queue_one', 'cancel_previous')),
    CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    CHECK ((paused_at IS NULL) = (pause_reason IS NULL))
);

-- Lists of one tenant, newest first.
CREATE INDEX schedules_of_tenant ON duly.schedules (tenant, id);

-- The schedule's timer. Everything up to `cursor_at` has its verdict; `nominal_at` is the next
-- occurrence and `due_at` the instant to look at it (with the schedule's own jitter); both are null
-- when there is none. The fence rises with every firing and every change of the definition.
-- `running` are tasks that it made and that may still live, where the overlap policy asks.
CREATE TABLE duly.schedule_timers (
    shard      smallint NOT NULL,
    tenant     integer NOT NULL,
    fence      integer NOT NULL DEFAULT 0,
    fires      integer NOT NULL DEFAULT 0,
    id         uuid NOT NULL,
    cursor_at  timestamptz NOT NULL,
    nominal_at timestamptz,
    due_at     timestamptz,
    running    uuid[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (shard, id),
    CHECK ((nominal_at IS NULL) = (due_at IS NULL)),
    CHECK (nominal_at > cursor_at)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX schedule_timers_due ON duly.schedule_timers (shard, due_at, id);

-- Every occurrence that was expected, with its one verdict; the row gates the task.
CREATE TABLE duly.occurrences (
    shard      smallint NOT NULL,
    tenant     integer NOT NULL,
    schedule   uuid NOT NULL,
    nominal_at timestamptz NOT NULL,
    decided_at timestamptz NOT NULL,
    late_s     real NOT NULL,
    verdict    text NOT NULL,
    task       uuid,
    PRIMARY KEY (shard, schedule, nominal_at),
    CHECK (verdict IN ('FIRED', 'LATE', 'COALESCED', 'SKIPPED_MISFIRE', 'SKIPPED_DST',
                       'SKIPPED_OVERLAP', 'SKIPPED_PAUSED', 'EXCLUDED', 'TRIGGERED', 'BACKFILLED')),
    CHECK ((task IS NOT NULL) = (verdict IN ('FIRED', 'LATE', 'TRIGGERED', 'BACKFILLED')))
);

-- For retention alone: rows come in this order, so a small index is enough.
CREATE INDEX occurrences_decided ON duly.occurrences USING brin (decided_at);

-- How close two fires of one schedule may be.
ALTER TABLE duly.tenants
    ADD COLUMN schedule_s_min integer NOT NULL DEFAULT 1 CHECK (schedule_s_min BETWEEN 1 AND 86400);

GRANT SELECT, INSERT, UPDATE, DELETE ON duly.schedules, duly.schedule_timers, duly.occurrences
    TO duly_engine;
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.schedules, duly.schedule_timers TO duly_tenant;
GRANT SELECT, INSERT, UPDATE ON duly.occurrences TO duly_tenant;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['schedules', 'schedule_timers', 'occurrences'] LOOP
        EXECUTE format('ALTER TABLE duly.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE duly.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY every_row ON duly.%I TO %I, duly_engine '
                       'USING (true) WITH CHECK (true)', name, current_user);
        EXECUTE format('CREATE POLICY own_rows ON duly.%I TO duly_tenant '
                       'USING (tenant + 0 = duly.current_tenant()) '
                       'WITH CHECK (tenant + 0 = duly.current_tenant())', name);
    END LOOP;
END
$$;

-- name: reverse
-- Everything of this migration. Tasks that schedules made stay.
ALTER TABLE duly.tenants DROP COLUMN schedule_s_min;
DROP TABLE duly.occurrences;
DROP TABLE duly.schedule_timers;
DROP TABLE duly.schedules;
DROP FUNCTION duly.shard_of(uuid);
