-- The schema after every migration, for reading only: duly never runs this file.
-- Write it again with `make schema`; a test fails when it is stale.

CREATE SCHEMA duly;

CREATE FUNCTION duly.concurrency_key_of(policy text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((policy)::jsonb ->> 'concurrency_key'::text);

CREATE FUNCTION duly.concurrency_limit_of(policy text) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((policy)::jsonb ? 'concurrency_key'::text) THEN COALESCE((((policy)::jsonb ->> 'concurrency_limit'::text))::integer, 1) ELSE NULL::integer END;

CREATE FUNCTION duly.create_partition(parent text, month date) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '500ms'
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
    WHEN duplicate_table OR unique_violation THEN RETURN NULL;
END
$$;

CREATE FUNCTION duly.current_tenant() RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (NULLIF(current_setting('duly.tenant'::text, true), ''::text))::integer;

CREATE FUNCTION duly.delete_finished(month date, finished_before timestamp with time zone, after_shard smallint, after_id uuid, examine_max integer) RETURNS TABLE(examined integer, deleted integer, last_shard smallint, last_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '500ms'
    AS $_$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
BEGIN
    -- Old months only ever empty; the current one is where new tasks go.
    IF upper_bound > duly.id_bound(duly.now()) OR to_regclass('duly.tasks_' || suffix) IS NULL
       OR to_regclass('duly.attempts_' || suffix) IS NULL THEN
        RETURN QUERY SELECT 0, 0, after_shard, after_id;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format($statement$
        WITH candidates AS MATERIALIZED (
            SELECT tasks.shard, tasks.id
              FROM duly.%1$I AS tasks
             WHERE (tasks.shard, tasks.id) > ($1, $2)
             ORDER BY tasks.shard, tasks.id
             LIMIT least($3, 10000)
        ), finished AS MATERIALIZED (
            SELECT candidates.shard, candidates.id
              FROM candidates
             WHERE EXISTS (SELECT FROM duly.%2$I AS attempts
                            WHERE attempts.shard = candidates.shard
                              AND attempts.id = candidates.id
                              AND attempts.state IS NOT NULL
                              AND attempts.ended_at < $4)
               AND NOT EXISTS (SELECT FROM duly.timers
                                WHERE timers.shard = candidates.shard
                                  AND timers.id = candidates.id)
        ), forgotten AS (
            DELETE FROM duly.%2$I AS attempts
             USING finished
             WHERE attempts.shard = finished.shard AND attempts.id = finished.id
        ), gone AS (
            DELETE FROM duly.%1$I AS tasks
             USING finished
             WHERE tasks.shard = finished.shard AND tasks.id = finished.id
            RETURNING 1
        ), final AS (
            SELECT candidates.shard, candidates.id
              FROM candidates
             ORDER BY candidates.shard DESC, candidates.id DESC
             LIMIT 1
        )
        SELECT (SELECT count(*) FROM candidates)::integer,
               (SELECT count(*) FROM gone)::integer,
               coalesce((SELECT final.shard FROM final), $1),
               coalesce((SELECT final.id FROM final), $2)
        $statement$, 'tasks_' || suffix, 'attempts_' || suffix)
        USING after_shard, after_id, examine_max, finished_before;
END
$_$;

CREATE FUNCTION duly.drop_partition(month date, finished_before timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '500ms'
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

CREATE FUNCTION duly.host_of(url text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN lower("substring"(url, '^[A-Za-z]+://([^/?#]+)'::text));

CREATE FUNCTION duly.id_bound(instant timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (rpad(lpad(to_hex((floor((EXTRACT(epoch FROM instant) * (1000)::numeric)))::bigint), 12, '0'::text), 32, '0'::text))::uuid;

CREATE FUNCTION duly.lane_of(pool smallint, priority smallint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((1 + (pool * 3)) + CASE WHEN (priority >= 7) THEN 0 WHEN (priority >= 3) THEN 1 ELSE 2 END))::smallint;

CREATE FUNCTION duly.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN COALESCE((NULLIF(current_setting('duly.test_now'::text, true), ''::text))::timestamp with time zone, now());

CREATE FUNCTION duly.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TABLE duly.api_keys (
    id text NOT NULL,
    tenant integer NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    reach text NOT NULL,
    types text[],
    secret_hash bytea,
    signing_secret bytea,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    rotated_from text,
    CONSTRAINT api_keys_check CHECK (((secret_hash IS NULL) <> (signing_secret IS NULL))),
    CONSTRAINT api_keys_check1 CHECK (((reach = 'tenant'::text) OR (role = ANY (ARRAY['operator'::text, 'admin'::text])))),
    CONSTRAINT api_keys_reach_check CHECK ((reach = ANY (ARRAY['tenant'::text, 'installation'::text]))),
    CONSTRAINT api_keys_role_check CHECK ((role = ANY (ARRAY['producer'::text, 'worker'::text, 'operator'::text, 'admin'::text])))
);

ALTER TABLE ONLY duly.api_keys FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.attempts (
    shard smallint NOT NULL,
    charged smallint NOT NULL,
    fence integer NOT NULL,
    tenant integer NOT NULL,
    id uuid NOT NULL,
    holder uuid,
    started_at timestamp with time zone,
    ended_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    state text,
    reason text,
    result text,
    error text,
    CONSTRAINT attempts_charged_check CHECK ((charged >= 0)),
    CONSTRAINT attempts_check CHECK (((outcome <> 'completed'::text) OR (state = 'COMPLETED'::text))),
    CONSTRAINT attempts_check1 CHECK ((ended_at >= started_at)),
    CONSTRAINT attempts_outcome_check CHECK ((outcome = ANY (ARRAY['completed'::text, 'failed'::text, 'rejected'::text, 'cancelled'::text, 'released'::text, 'snoozed'::text, 'lease_lost'::text, 'expired'::text]))),
    CONSTRAINT attempts_state_check CHECK ((state = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text])))
)
PARTITION BY RANGE (id);

ALTER TABLE ONLY duly.attempts FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.audit (
    tenant integer NOT NULL,
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail text NOT NULL
);

ALTER TABLE ONLY duly.audit FORCE ROW LEVEL SECURITY;

ALTER TABLE duly.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duly.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duly.breakers (
    tenant integer NOT NULL,
    host text NOT NULL,
    open_until timestamp with time zone NOT NULL,
    reason text NOT NULL
);

ALTER TABLE ONLY duly.breakers FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.dead_letters (
    shard smallint NOT NULL,
    pool smallint NOT NULL,
    priority smallint NOT NULL,
    attempts smallint NOT NULL,
    tenant integer NOT NULL,
    timeout_ms integer NOT NULL,
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    run_at timestamp with time zone NOT NULL,
    failed_at timestamp with time zone NOT NULL,
    reason text NOT NULL,
    fingerprint text NOT NULL,
    type text NOT NULL,
    payload text,
    policy text,
    url text,
    execution_key text NOT NULL,
    tags jsonb,
    error text,
    replayed_as uuid,
    CONSTRAINT dead_letters_reason_check CHECK ((reason = ANY (ARRAY['exhausted'::text, 'rejected'::text, 'non_retryable'::text, 'expired'::text, 'poison'::text])))
);

ALTER TABLE ONLY duly.dead_letters FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.idempotency_keys (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    task_id uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE duly.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE duly.nodes (
    id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    roles text[] NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE duly.nonces (
    key_id text NOT NULL,
    nonce text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE duly.ownership (
    kind text NOT NULL,
    number smallint NOT NULL,
    holder uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    void_at timestamp with time zone NOT NULL,
    CONSTRAINT ownership_kind_check CHECK ((kind = ANY (ARRAY['slot'::text, 'maintenance'::text])))
);

CREATE TABLE duly.pauses (
    tenant integer NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    paused_at timestamp with time zone NOT NULL,
    CONSTRAINT pauses_check CHECK (((kind = 'tenant'::text) = (name = ''::text))),
    CONSTRAINT pauses_kind_check CHECK ((kind = ANY (ARRAY['tenant'::text, 'type'::text, 'pool'::text])))
);

ALTER TABLE ONLY duly.pauses FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.placements (
    tenant integer NOT NULL,
    shard smallint NOT NULL,
    lane smallint NOT NULL
);

ALTER TABLE ONLY duly.placements FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.pools (
    tenant integer NOT NULL,
    number smallint NOT NULL,
    name text NOT NULL,
    CONSTRAINT pools_number_check CHECK (((number >= 1) AND (number <= 10000)))
);

ALTER TABLE ONLY duly.pools FORCE ROW LEVEL SECURITY;

CREATE UNLOGGED TABLE duly.rate_levels (
    tenant integer NOT NULL,
    tokens double precision NOT NULL,
    rate double precision NOT NULL,
    burst double precision NOT NULL,
    told_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY duly.rate_levels FORCE ROW LEVEL SECURITY;

CREATE UNLOGGED TABLE duly.ready_tickets (
    tenant integer NOT NULL,
    pool smallint NOT NULL,
    band smallint NOT NULL,
    shard smallint NOT NULL,
    fence integer NOT NULL,
    sequence bigint NOT NULL,
    id uuid NOT NULL,
    deadline timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

ALTER TABLE duly.ready_tickets ALTER COLUMN sequence ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duly.ready_tickets_sequence_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duly.remembered_calls (
    tenant integer NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    status smallint NOT NULL,
    answer text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY duly.remembered_calls FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.stats (
    minute timestamp with time zone NOT NULL,
    tenant integer NOT NULL,
    type text NOT NULL,
    submitted bigint DEFAULT 0 NOT NULL,
    started bigint DEFAULT 0 NOT NULL,
    completed bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    retried bigint DEFAULT 0 NOT NULL,
    lag bigint[] NOT NULL,
    run_time bigint[] NOT NULL
);

ALTER TABLE ONLY duly.stats FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.task_types (
    tenant integer NOT NULL,
    name text NOT NULL,
    schema text,
    defaults text,
    keys text[],
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY duly.task_types FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.tasks (
    shard smallint NOT NULL,
    pool smallint NOT NULL,
    priority smallint NOT NULL,
    tenant integer NOT NULL,
    timeout_ms integer NOT NULL,
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    run_at timestamp with time zone NOT NULL,
    start_by timestamp with time zone,
    type text NOT NULL,
    payload text,
    policy text,
    url text,
    execution_key text,
    tags jsonb,
    replay_of uuid,
    CONSTRAINT tasks_priority_check CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT tasks_shard_check CHECK (((shard >= 0) AND (shard <= 1023)))
)
PARTITION BY RANGE (id);

ALTER TABLE ONLY duly.tasks FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.tenants (
    id integer NOT NULL,
    name text NOT NULL,
    weight real DEFAULT 1 NOT NULL,
    in_flight_max integer,
    dispatch_rate double precision,
    dispatch_burst double precision,
    spread smallint DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    submit_rate double precision,
    submit_burst double precision,
    stored_max bigint,
    CONSTRAINT tenants_dispatch_burst_check CHECK ((dispatch_burst >= (1)::double precision)),
    CONSTRAINT tenants_dispatch_rate_check CHECK ((dispatch_rate > (0)::double precision)),
    CONSTRAINT tenants_in_flight_max_check CHECK ((in_flight_max > 0)),
    CONSTRAINT tenants_spread_check CHECK ((spread = ANY (ARRAY[1, 2, 4, 8, 16, 32, 64]))),
    CONSTRAINT tenants_stored_max_check CHECK ((stored_max > 0)),
    CONSTRAINT tenants_submit_burst_check CHECK ((submit_burst >= (1)::double precision)),
    CONSTRAINT tenants_submit_rate_check CHECK ((submit_rate > (0)::double precision)),
    CONSTRAINT tenants_weight_check CHECK (((weight >= (0.01)::double precision) AND (weight <= (100)::double precision)))
);

ALTER TABLE ONLY duly.tenants FORCE ROW LEVEL SECURITY;

ALTER TABLE duly.tenants ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME duly.tenants_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duly.timers (
    shard smallint NOT NULL,
    lane smallint NOT NULL,
    pool smallint NOT NULL,
    priority smallint NOT NULL,
    attempt smallint DEFAULT 0 NOT NULL,
    losses smallint DEFAULT 0 NOT NULL,
    confirmed boolean DEFAULT false NOT NULL,
    cancel_requested boolean DEFAULT false NOT NULL,
    tenant integer NOT NULL,
    fence integer DEFAULT 0 NOT NULL,
    timeout_ms integer NOT NULL,
    id uuid NOT NULL,
    due_at timestamp with time zone,
    start_by timestamp with time zone,
    holder uuid,
    started_at timestamp with time zone,
    lease_until timestamp with time zone,
    type text NOT NULL,
    concurrency_key text,
    concurrency_limit integer,
    host text,
    progress text,
    CONSTRAINT timers_check CHECK (((holder IS NULL) = (lease_until IS NULL))),
    CONSTRAINT timers_check1 CHECK (((holder IS NULL) = (lane <> 0))),
    CONSTRAINT timers_check2 CHECK (((holder IS NOT NULL) OR (NOT cancel_requested)))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_scale_factor='0.2', autovacuum_analyze_scale_factor='0.2', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY duly.timers FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.tombstones (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    id uuid NOT NULL,
    purged_at timestamp with time zone NOT NULL,
    actor text NOT NULL
);

ALTER TABLE ONLY duly.tombstones FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workers (
    tenant integer NOT NULL,
    id text NOT NULL,
    holder uuid NOT NULL,
    pools text[] NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY duly.workers FORCE ROW LEVEL SECURITY;

ALTER TABLE ONLY duly.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duly.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (shard, id, fence);

ALTER TABLE ONLY duly.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duly.breakers
    ADD CONSTRAINT breakers_pkey PRIMARY KEY (tenant, host);

ALTER TABLE ONLY duly.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (shard, tenant, key);

ALTER TABLE ONLY duly.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);

ALTER TABLE ONLY duly.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duly.nonces
    ADD CONSTRAINT nonces_pkey PRIMARY KEY (key_id, nonce);

ALTER TABLE ONLY duly.ownership
    ADD CONSTRAINT ownership_pkey PRIMARY KEY (kind, number);

ALTER TABLE ONLY duly.pauses
    ADD CONSTRAINT pauses_pkey PRIMARY KEY (tenant, kind, name);

ALTER TABLE ONLY duly.placements
    ADD CONSTRAINT placements_pkey PRIMARY KEY (tenant, shard, lane);

ALTER TABLE ONLY duly.pools
    ADD CONSTRAINT pools_pkey PRIMARY KEY (tenant, number);

ALTER TABLE ONLY duly.pools
    ADD CONSTRAINT pools_tenant_name_key UNIQUE (tenant, name);

ALTER TABLE ONLY duly.rate_levels
    ADD CONSTRAINT rate_levels_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY duly.ready_tickets
    ADD CONSTRAINT ready_tickets_pkey PRIMARY KEY (tenant, pool, band, sequence);

ALTER TABLE ONLY duly.remembered_calls
    ADD CONSTRAINT remembered_calls_pkey PRIMARY KEY (tenant, key);

ALTER TABLE ONLY duly.stats
    ADD CONSTRAINT stats_pkey PRIMARY KEY (tenant, type, minute);

ALTER TABLE ONLY duly.task_types
    ADD CONSTRAINT task_types_pkey PRIMARY KEY (tenant, name);

ALTER TABLE ONLY duly.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.tenants
    ADD CONSTRAINT tenants_name_key UNIQUE (name);

ALTER TABLE ONLY duly.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duly.timers
    ADD CONSTRAINT timers_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.tombstones
    ADD CONSTRAINT tombstones_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (tenant, id);

CREATE INDEX api_keys_of_tenant ON duly.api_keys USING btree (tenant, id);

CREATE INDEX dead_letters_of_tenant ON duly.dead_letters USING btree (tenant, failed_at, id);

CREATE INDEX idempotency_keys_expiry ON duly.idempotency_keys USING btree (expires_at);

CREATE INDEX nonces_expiry ON duly.nonces USING btree (expires_at);

CREATE INDEX remembered_calls_expiry ON duly.remembered_calls USING btree (expires_at);

CREATE INDEX stats_by_minute ON duly.stats USING btree (minute, tenant, type);

CREATE INDEX tasks_of_tenant ON ONLY duly.tasks USING btree (tenant, id);

CREATE INDEX timers_due ON duly.timers USING btree (tenant, shard, lane, due_at, id);

CREATE TRIGGER audit_is_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON duly.audit FOR EACH STATEMENT EXECUTE FUNCTION duly.refuse_change();

ALTER TABLE duly.api_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.attempts ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.audit ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.breakers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.dead_letters ENABLE ROW LEVEL SECURITY;

CREATE POLICY every_row ON duly.api_keys TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.attempts TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.audit TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.breakers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.dead_letters TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.pauses TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.placements TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.pools TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.rate_levels TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.remembered_calls TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.stats TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.task_types TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.tasks TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.tenants TO duly_owner, duly_engine USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.timers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.tombstones TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY own_rows ON duly.api_keys TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.attempts TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.audit TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.breakers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.dead_letters TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.pauses TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.placements TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.pools TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.rate_levels TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.remembered_calls TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.stats TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.task_types TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.tasks TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.tenants TO duly_tenant USING ((id = duly.current_tenant()));

CREATE POLICY own_rows ON duly.timers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.tombstones TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

ALTER TABLE duly.pauses ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.placements ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.pools ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.rate_levels ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.remembered_calls ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.stats ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.task_types ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.tasks ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.tenants ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.timers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.tombstones ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workers ENABLE ROW LEVEL SECURITY;

GRANT USAGE ON SCHEMA duly TO duly_engine;
GRANT USAGE ON SCHEMA duly TO duly_tenant;
GRANT USAGE ON SCHEMA duly TO duly_purger;

REVOKE ALL ON FUNCTION duly.create_partition(parent text, month date) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.create_partition(parent text, month date) TO duly_engine;

REVOKE ALL ON FUNCTION duly.delete_finished(month date, finished_before timestamp with time zone, after_shard smallint, after_id uuid, examine_max integer) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.delete_finished(month date, finished_before timestamp with time zone, after_shard smallint, after_id uuid, examine_max integer) TO duly_engine;

REVOKE ALL ON FUNCTION duly.drop_partition(month date, finished_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.drop_partition(month date, finished_before timestamp with time zone) TO duly_engine;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.api_keys TO duly_engine;
GRANT SELECT,INSERT,UPDATE ON TABLE duly.api_keys TO duly_tenant;

GRANT SELECT,INSERT ON TABLE duly.attempts TO duly_engine;
GRANT SELECT ON TABLE duly.attempts TO duly_purger;
GRANT SELECT,INSERT ON TABLE duly.attempts TO duly_tenant;

GRANT UPDATE(result) ON TABLE duly.attempts TO duly_purger;

GRANT UPDATE(error) ON TABLE duly.attempts TO duly_purger;

GRANT SELECT,INSERT ON TABLE duly.audit TO duly_engine;
GRANT SELECT,INSERT ON TABLE duly.audit TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.breakers TO duly_engine;
GRANT SELECT ON TABLE duly.breakers TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.dead_letters TO duly_engine;
GRANT SELECT,DELETE ON TABLE duly.dead_letters TO duly_purger;
GRANT SELECT,DELETE,UPDATE ON TABLE duly.dead_letters TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.idempotency_keys TO duly_engine;

GRANT SELECT ON TABLE duly.migrations TO duly_engine;
GRANT SELECT ON TABLE duly.migrations TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.nodes TO duly_engine;
GRANT SELECT ON TABLE duly.nodes TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.nonces TO duly_engine;

GRANT SELECT,UPDATE ON TABLE duly.ownership TO duly_engine;
GRANT SELECT ON TABLE duly.ownership TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.pauses TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.pauses TO duly_tenant;

GRANT SELECT,INSERT ON TABLE duly.placements TO duly_engine;
GRANT SELECT,INSERT ON TABLE duly.placements TO duly_tenant;

GRANT SELECT,INSERT ON TABLE duly.pools TO duly_engine;
GRANT SELECT ON TABLE duly.pools TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.rate_levels TO duly_engine;
GRANT SELECT ON TABLE duly.rate_levels TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.ready_tickets TO duly_engine;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.remembered_calls TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.remembered_calls TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.stats TO duly_engine;
GRANT SELECT ON TABLE duly.stats TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.task_types TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.task_types TO duly_tenant;

GRANT SELECT,INSERT ON TABLE duly.tasks TO duly_engine;
GRANT SELECT ON TABLE duly.tasks TO duly_purger;
GRANT SELECT,INSERT ON TABLE duly.tasks TO duly_tenant;

GRANT UPDATE(payload) ON TABLE duly.tasks TO duly_purger;

GRANT UPDATE(execution_key) ON TABLE duly.tasks TO duly_purger;

GRANT UPDATE(tags) ON TABLE duly.tasks TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.tenants TO duly_engine;
GRANT SELECT ON TABLE duly.tenants TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.timers TO duly_engine;
GRANT SELECT ON TABLE duly.timers TO duly_purger;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.timers TO duly_tenant;

GRANT SELECT ON TABLE duly.tombstones TO duly_engine;
GRANT SELECT,INSERT ON TABLE duly.tombstones TO duly_purger;
GRANT SELECT ON TABLE duly.tombstones TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workers TO duly_engine;
GRANT SELECT ON TABLE duly.workers TO duly_tenant;
