-- name: forward
-- Notifications: who is told of dead letters, missed schedules and broken bounds, and what is still to be told.

-- One row for each notification of a tenant. `minute` and `sent`: how many messages left in the last minute
-- that had one. `held`: what came beyond its bound, summed (JSON), for the first message of the next one.
-- `lag_since`, `failing_since`: since when a bound is broken.
CREATE TABLE duly.notifications (
    tenant              integer NOT NULL,
    per_minute          smallint NOT NULL CHECK (per_minute > 0),
    sent                smallint NOT NULL DEFAULT 0,
    on_dead_letters     boolean NOT NULL,
    on_missed_schedules boolean NOT NULL,
    lag_s               double precision CHECK (lag_s > 0),
    failures_per_minute double precision CHECK (failures_per_minute > 0),
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    minute              timestamptz NOT NULL,
    lag_since           timestamptz,
    failing_since       timestamptz,
    name                text NOT NULL,
    created_by          text NOT NULL,
    url                 text NOT NULL,
    headers             text,
    held                text,
    PRIMARY KEY (tenant, name)
);

-- What happened and has not been told. Written in the transaction in which it happened, and deleted in
-- the one that stores the task which tells it.
CREATE TABLE duly.notification_events (
    number       bigint GENERATED ALWAYS AS IDENTITY,
    tenant       integer NOT NULL,
    at           timestamptz NOT NULL,
    notification text NOT NULL,
    event        text NOT NULL CHECK (event IN ('dead_letter', 'missed_schedule', 'lag', 'failures')),
    facts        text NOT NULL,
    PRIMARY KEY (tenant, notification, number)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON duly.notifications, duly.notification_events TO duly_engine;
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.notifications TO duly_tenant;
GRANT SELECT, INSERT, DELETE ON duly.notification_events TO duly_tenant;
ALTER TABLE duly.notifications ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE duly.notification_events ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.notifications TO CURRENT_USER, duly_engine, duly_purger
    USING (true) WITH CHECK (true);
CREATE POLICY every_row ON duly.notification_events TO CURRENT_USER, duly_engine, duly_purger
    USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.notifications TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());
CREATE POLICY own_rows ON duly.notification_events TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
-- What has not been told is not told; everything it would have told of stays.
DROP TABLE duly.notification_events;
DROP TABLE duly.notifications;
