-- name: forward
-- The heart: two append-only tables, one small mutable one, and what stands beside them.

-- The lane of an unleased task (domain/task.py lane_of is the same sum); lane 0 is for leased ones.
CREATE FUNCTION duly.lane_of(pool smallint, priority smallint) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (1 + pool * 3 + CASE WHEN priority >= 7 THEN 0 WHEN priority >= 3 THEN 1 ELSE 2 END)::smallint;

-- What the gates look at, taken from the request: the webhook's host, and the concurrency key.
CREATE FUNCTION duly.host_of(url text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(substring(url FROM '^[A-Za-z]+://([^/?#]+)'));

CREATE FUNCTION duly.concurrency_key_of(policy text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN policy::jsonb ->> 'concurrency_key';

CREATE FUNCTION duly.concurrency_limit_of(policy text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN policy::jsonb ? 'concurrency_key'
            THEN coalesce((policy::jsonb ->> 'concurrency_limit')::integer, 1) END;

-- The smallest id that can be placed at an instant (domain/ids.py partition_bound).
CREATE FUNCTION duly.id_bound(instant timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN rpad(lpad(to_hex(floor(extract(epoch FROM instant) * 1000)::bigint), 12, '0'), 32, '0')::uuid;

-- Pools are named by users and numbered here, so that a timer carries two bytes. Number 0 is the
-- pool of webhooks and has no row.
CREATE TABLE duly.pools (
    tenant integer NOT NULL,
    number smallint NOT NULL CHECK (number BETWEEN 1 AND 10000),
    name   text NOT NULL,
    PRIMARY KEY (tenant, number),
    UNIQUE (tenant, name)
);

-- What was asked. Inserted at submit, never updated; only the purging role may blank a payload.
CREATE TABLE duly.tasks (
    shard         smallint NOT NULL,
    pool          smallint NOT NULL,
    priority      smallint NOT NULL,
    tenant        integer NOT NULL,
    timeout_ms    integer NOT NULL,
    id            uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    start_by      timestamptz,
    type          text NOT NULL,
    payload       text,
    policy        text,
    url           text,
    execution_key text,
    tags          jsonb,
    replay_of     uuid,
    PRIMARY KEY (shard, id),
    CHECK (shard BETWEEN 0 AND 1023),
    CHECK (priority BETWEEN 0 AND 9)
) PARTITION BY RANGE (id);

-- Lists, newest first, of one tenant.
CREATE INDEX tasks_of_tenant ON duly.tasks (tenant, id);

-- How each attempt ended. Inserted when it ends, never updated: the record of every lease.
CREATE TABLE duly.attempts (
    shard      smallint NOT NULL,
    charged    smallint NOT NULL,
    fence      integer NOT NULL,
    tenant     integer NOT NULL,
    id         uuid NOT NULL,
    holder     uuid,
    started_at timestamptz,
    ended_at   timestamptz NOT NULL,
    outcome    text NOT NULL,
    state      text,
    reason     text,
    result     text,
    error      text,
    PRIMARY KEY (shard, id, fence),
    CHECK (charged >= 0),
    CHECK (outcome IN ('completed', 'failed', 'rejected', 'cancelled', 'released', 'snoozed',
                       'lease_lost', 'expired')),
    CHECK (state IN ('COMPLETED', 'FAILED', 'CANCELLED')),
    CHECK (outcome <> 'completed' OR state = 'COMPLETED'),
    CHECK (ended_at >= started_at)
) PARTITION BY RANGE (id);

-- The only thing that moves: one narrow row for each live task. `due_at` is the next instant at
-- which something must happen: fire, retry, or look at a lease; null while a node waits.
CREATE TABLE duly.timers (
    shard             smallint NOT NULL,
    lane              smallint NOT NULL,
    pool              smallint NOT NULL,
    priority          smallint NOT NULL,
    attempt           smallint NOT NULL DEFAULT 0,
    losses            smallint NOT NULL DEFAULT 0,
    confirmed         boolean NOT NULL DEFAULT false,
    cancel_requested  boolean NOT NULL DEFAULT false,
    tenant            integer NOT NULL,
    fence             integer NOT NULL DEFAULT 0,
    timeout_ms        integer NOT NULL,
    id                uuid NOT NULL,
    due_at            timestamptz,
    start_by          timestamptz,
    holder            uuid,
    started_at        timestamptz,
    lease_until       timestamptz,
    type              text NOT NULL,
    concurrency_key   text,
    concurrency_limit integer,
    host              text,
    progress          text,
    PRIMARY KEY (shard, id),
    CHECK ((holder IS NULL) = (lease_until IS NULL)),
    CHECK ((holder IS NULL) = (lane <> 0)),
    CHECK (holder IS NOT NULL OR NOT cancel_requested)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);

-- Loading: what is due in one lane. Tenant first, so that the planner never takes it for a lookup
-- by key; id last, so that a page can end inside a herd of equal instants.
CREATE INDEX timers_due ON duly.timers (tenant, shard, lane, due_at, id);

-- Which (tenant, shard, lane) have ever had work: loads probe exactly these.
CREATE TABLE duly.placements (
    tenant integer NOT NULL,
    shard  smallint NOT NULL,
    lane   smallint NOT NULL,
    PRIMARY KEY (tenant, shard, lane)
);

-- Tasks that failed for good, each with its own copy of what was asked: partitions come and go.
CREATE TABLE duly.dead_letters (
    shard         smallint NOT NULL,
    pool          smallint NOT NULL,
    priority      smallint NOT NULL,
    attempts      smallint NOT NULL,
    tenant        integer NOT NULL,
    timeout_ms    integer NOT NULL,
    id            uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    run_at        timestamptz NOT NULL,
    failed_at     timestamptz NOT NULL,
    reason        text NOT NULL,
    fingerprint   text NOT NULL,
    type          text NOT NULL,
    payload       text,
    policy        text,
    url           text,
    execution_key text NOT NULL,
    tags          jsonb,
    error         text,
    replayed_as   uuid,
    PRIMARY KEY (shard, id),
    CHECK (reason IN ('exhausted', 'rejected', 'non_retryable', 'expired', 'poison'))
);

-- Lists of one tenant, newest failure first.
CREATE INDEX dead_letters_of_tenant ON duly.dead_letters (tenant, failed_at, id);

-- A key lives in the shard of its own hash, never the task's, so it is found after spread changed.
CREATE TABLE duly.idempotency_keys (
    shard        smallint NOT NULL,
    tenant       integer NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    task_id      uuid NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (shard, tenant, key)
);

CREATE INDEX idempotency_keys_expiry ON duly.idempotency_keys (expires_at);

-- What is left of a purged task: that it was, and who erased it.
CREATE TABLE duly.tombstones (
    shard     smallint NOT NULL,
    tenant    integer NOT NULL,
    id        uuid NOT NULL,
    purged_at timestamptz NOT NULL,
    actor     text NOT NULL,
    PRIMARY KEY (shard, id)
);

-- Erasing is a role of its own: the engine itself cannot change what was asked or recorded.
GRANT SELECT, INSERT ON duly.tasks, duly.attempts TO duly_engine;
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.timers, duly.dead_letters, duly.idempotency_keys
    TO duly_engine;
GRANT SELECT, INSERT ON duly.pools, duly.placements TO duly_engine;
GRANT SELECT ON duly.tombstones TO duly_engine;
GRANT SELECT ON duly.tasks, duly.attempts, duly.dead_letters, duly.timers, duly.tombstones
    TO duly_purger;
GRANT INSERT ON duly.tombstones TO duly_purger;
GRANT UPDATE (payload, execution_key, tags) ON duly.tasks TO duly_purger;
GRANT UPDATE (result, error) ON duly.attempts TO duly_purger;
GRANT DELETE ON duly.dead_letters TO duly_purger;

-- Partitions are made by the owner's hand, so that the engine's login needs no right to change the
-- schema. CREATE then ATTACH: CREATE ... PARTITION OF would queue every insert behind it.
CREATE FUNCTION duly.create_partition(parent text, month date) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    child text := format('%s_%s', parent, to_char(month, 'YYYY_MM'));
    starts timestamptz := date_trunc('month', month::timestamp) AT TIME ZONE 'UTC';
    ends timestamptz := (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC';
BEGIN
    IF parent NOT IN ('tasks', 'attempts') THEN
        RAISE EXCEPTION 'duly.% has no partitions', parent;
    END IF;
    IF to_regclass('duly.' || child) IS NOT NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('CREATE TABLE duly.%I (LIKE duly.%I INCLUDING ALL)', child, parent);
    EXECUTE format('ALTER TABLE duly.%I ATTACH PARTITION duly.%I FOR VALUES FROM (%L) TO (%L)',
                   parent, child, duly.id_bound(starts), duly.id_bound(ends));
    RETURN child;
EXCEPTION
    -- Somebody made it at the same moment; the name of its row type is what we collided on.
    WHEN duplicate_table OR duplicate_object OR unique_violation THEN RETURN NULL;
END
$$;

-- Drops one month, tasks and attempts together, if under the lock no timer points into it and its
-- newest finish is old enough. Answers why not, or null when it is gone. The SHARE lock on the two
-- old tables keeps late writers out while we look, and leaves every other month alone.
CREATE FUNCTION duly.drop_partition(month date, finished_before timestamptz) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    lower_bound uuid := duly.id_bound(date_trunc('month', month::timestamp) AT TIME ZONE 'UTC');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
    newest timestamptz;
BEGIN
    IF upper_bound > duly.id_bound(duly.now()) THEN
        RETURN 'current';
    END IF;
    EXECUTE format('LOCK TABLE duly.%I, duly.%I IN SHARE MODE',
                   'tasks_' || suffix, 'attempts_' || suffix);
    IF EXISTS (SELECT FROM generate_series(0, 1023) AS probe(shard)
                WHERE EXISTS (SELECT FROM duly.timers
                               WHERE timers.shard = probe.shard
                                 AND timers.id >= lower_bound AND timers.id < upper_bound)) THEN
        RETURN 'live';
    END IF;
    EXECUTE format('SELECT max(ended_at) FROM duly.%I', 'attempts_' || suffix) INTO newest;
    IF newest >= finished_before THEN
        RETURN 'recent';
    END IF;
    EXECUTE format('DROP TABLE duly.%I', 'tasks_' || suffix);
    EXECUTE format('DROP TABLE duly.%I', 'attempts_' || suffix);
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION duly.create_partition(text, date) FROM PUBLIC;
REVOKE ALL ON FUNCTION duly.drop_partition(date, timestamptz) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION duly.create_partition(text, date) TO duly_engine;
GRANT EXECUTE ON FUNCTION duly.drop_partition(date, timestamptz) TO duly_engine;

-- name: reverse
-- Everything of this migration.
DROP FUNCTION duly.drop_partition(date, timestamptz);
DROP FUNCTION duly.create_partition(text, date);
DROP TABLE duly.tombstones;
DROP TABLE duly.idempotency_keys;
DROP TABLE duly.dead_letters;
DROP TABLE duly.placements;
DROP TABLE duly.timers;
DROP TABLE duly.attempts;
DROP TABLE duly.tasks;
DROP TABLE duly.pools;
DROP FUNCTION duly.id_bound(timestamptz);
DROP FUNCTION duly.concurrency_limit_of(text);
DROP FUNCTION duly.concurrency_key_of(text);
DROP FUNCTION duly.host_of(text);
DROP FUNCTION duly.lane_of(smallint, smallint);
