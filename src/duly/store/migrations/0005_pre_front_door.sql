-- name: forward
-- What the front door needs: keys, task types, live workers, the audit, remembered calls and nonces,
-- more limits of a tenant, and row-level security wherever a statement serves one tenant.

-- A weight of 0.01 as `real` is a little less, which its own check refused.
ALTER TABLE duly.tenants
    ALTER COLUMN weight TYPE double precision,
    ADD COLUMN submit_rate double precision CHECK (submit_rate > 0),
    ADD COLUMN submit_burst double precision CHECK (submit_burst >= 1),
    ADD COLUMN stored_max bigint CHECK (stored_max > 0);

-- A bearer key leaves only its hash here. A key for signed requests must leave its secret: whoever
-- verifies an HMAC can also make one.
CREATE TABLE duly.api_keys (
    id             text PRIMARY KEY,
    tenant         integer NOT NULL,
    name           text NOT NULL,
    role           text NOT NULL CHECK (role IN ('producer', 'worker', 'operator', 'admin')),
    reach          text NOT NULL CHECK (reach IN ('tenant', 'installation')),
    types          text[],
    secret_hash    bytea,
    signing_secret bytea,
    created_at     timestamptz NOT NULL,
    created_by     text NOT NULL,
    expires_at     timestamptz,
    revoked_at     timestamptz,
    rotated_from   text,
    CHECK ((secret_hash IS NULL) <> (signing_secret IS NULL)),
    CHECK (reach = 'tenant' OR role IN ('operator', 'admin'))
);
CREATE INDEX api_keys_of_tenant ON duly.api_keys (tenant, id);

-- What a tenant says of a kind of task. `defaults` are fields of a submission; `keys` names who may
-- submit it, and NULL lets everybody.
CREATE TABLE duly.task_types (
    tenant     integer NOT NULL,
    name       text NOT NULL,
    schema     text,
    defaults   text,
    keys       text[],
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- The users' own processes, as they were last heard of.
CREATE TABLE duly.workers (
    tenant     integer NOT NULL,
    id         text NOT NULL,
    holder     uuid NOT NULL,
    pools      text[] NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);

-- Who did what to the control plane. Only ever appended to.
CREATE TABLE duly.audit (
    tenant  integer NOT NULL,
    id      bigint GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL,
    actor   text NOT NULL,
    action  text NOT NULL,
    subject text NOT NULL,
    detail  text NOT NULL,
    PRIMARY KEY (tenant, id)
);

CREATE FUNCTION duly.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;
-- A row trigger would not see a TRUNCATE.
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON duly.audit
    FOR EACH STATEMENT EXECUTE FUNCTION duly.refuse_change();

-- Answers to control-plane calls that carried an idempotency key, so that a retry changes nothing.
CREATE TABLE duly.remembered_calls (
    tenant       integer NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    status       smallint NOT NULL,
    answer       text NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX remembered_calls_expiry ON duly.remembered_calls (expires_at);

-- A signed request may be used once; this is how its nonce is known again, on every node.
CREATE TABLE duly.nonces (
    key_id     text NOT NULL,
    nonce      text NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (key_id, nonce)
);
CREATE INDEX nonces_expiry ON duly.nonces (expires_at);

-- How full a tenant's dispatch bucket was when its owner last said so; only `explain` reads it.
CREATE UNLOGGED TABLE duly.rate_levels (
    tenant  integer PRIMARY KEY,
    tokens  double precision NOT NULL,
    rate    double precision NOT NULL,
    burst   double precision NOT NULL,
    told_at timestamptz NOT NULL
);

GRANT SELECT, INSERT, UPDATE, DELETE
    ON duly.api_keys, duly.task_types, duly.workers, duly.remembered_calls, duly.nonces,
       duly.rate_levels
    TO duly_engine;
GRANT SELECT, INSERT ON duly.audit TO duly_engine, duly_tenant;
GRANT SELECT ON duly.tenants, duly.tasks, duly.attempts, duly.timers, duly.dead_letters, duly.pauses,
       duly.breakers, duly.placements, duly.pools, duly.tombstones, duly.stats, duly.workers,
       duly.rate_levels, duly.ownership, duly.nodes
    TO duly_tenant;
GRANT INSERT ON duly.tasks, duly.attempts, duly.timers, duly.placements TO duly_tenant;
GRANT UPDATE, DELETE ON duly.timers, duly.dead_letters TO duly_tenant;
GRANT SELECT, INSERT, UPDATE, DELETE
    ON duly.pauses, duly.task_types, duly.remembered_calls, duly.api_keys
    TO duly_tenant;

-- Whose rows the transaction may see. Unset: nobody's.
CREATE FUNCTION duly.current_tenant() RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE
RETURN nullif(current_setting('duly.tenant', true), '')::integer;

-- How full a lane of the tenant is, or the one of all webhooks: a number, and nobody's tickets.
CREATE FUNCTION duly.lane_depth(lane_pool smallint, lane_band smallint, most integer) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN (SELECT count(*)
              FROM (SELECT FROM duly.ready_tickets
                     WHERE tenant = CASE WHEN lane_pool = 0 THEN 0 ELSE duly.current_tenant() END
                       AND pool = lane_pool
                       AND band = lane_band
                     LIMIT most) AS counted);
END
$$;
REVOKE ALL ON FUNCTION duly.lane_depth FROM PUBLIC;
GRANT EXECUTE ON FUNCTION duly.lane_depth TO duly_tenant;

-- The second wall: under duly_tenant a statement that forgot its tenant finds nothing. The sum keeps
-- the planner from walking a tenant's index for what a key names.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tasks', 'attempts', 'timers', 'dead_letters', 'pauses', 'breakers',
                                'placements', 'pools', 'tombstones', 'stats', 'api_keys',
                                'task_types', 'workers', 'audit', 'remembered_calls',
                                'rate_levels'] LOOP
        EXECUTE format('ALTER TABLE duly.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE duly.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY every_row ON duly.%I TO %I, duly_engine, duly_purger '
                       'USING (true) WITH CHECK (true)', name, current_user);
        EXECUTE format('CREATE POLICY own_rows ON duly.%I TO duly_tenant '
                       'USING (tenant + 0 = duly.current_tenant()) '
                       'WITH CHECK (tenant + 0 = duly.current_tenant())', name);
    END LOOP;
    ALTER TABLE duly.tenants ENABLE ROW LEVEL SECURITY;
    ALTER TABLE duly.tenants FORCE ROW LEVEL SECURITY;
    EXECUTE format('CREATE POLICY every_row ON duly.tenants TO %I, duly_engine '
                   'USING (true) WITH CHECK (true)', current_user);
    CREATE POLICY own_rows ON duly.tenants TO duly_tenant USING (id = duly.current_tenant());
END
$$;

-- name: reverse
-- Everything of this migration, the walls first.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tasks', 'attempts', 'timers', 'dead_letters', 'pauses', 'breakers',
                                'placements', 'pools', 'tombstones', 'stats', 'tenants'] LOOP
        EXECUTE format('DROP POLICY every_row ON duly.%I', name);
        EXECUTE format('DROP POLICY own_rows ON duly.%I', name);
        EXECUTE format('ALTER TABLE duly.%I NO FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE duly.%I DISABLE ROW LEVEL SECURITY', name);
    END LOOP;
END
$$;
DROP TABLE duly.rate_levels;
DROP TABLE duly.nonces;
DROP TABLE duly.remembered_calls;
DROP TABLE duly.audit;
DROP FUNCTION duly.refuse_change();
DROP TABLE duly.workers;
DROP TABLE duly.task_types;
DROP TABLE duly.api_keys;
DROP FUNCTION duly.lane_depth;
DROP FUNCTION duly.current_tenant();
REVOKE ALL ON duly.tenants, duly.tasks, duly.attempts, duly.timers, duly.dead_letters, duly.pauses,
       duly.breakers, duly.placements, duly.pools, duly.tombstones, duly.stats, duly.ownership,
       duly.nodes
  FROM duly_tenant;
ALTER TABLE duly.tenants
    ALTER COLUMN weight TYPE real USING greatest(weight, 0.010001)::real,
    DROP COLUMN submit_rate, DROP COLUMN submit_burst, DROP COLUMN stored_max;
