-- name: forward
-- Submitting inside a producer's own transaction: one function that does what store/submit.py does
-- for one task, for a role that can do nothing else.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'duly_producer') THEN
        BEGIN
            CREATE ROLE duly_producer NOLOGIN NOINHERIT;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;
        END;
    END IF;
END
$$;

-- Pools are numbered as store/pools.py does it. A new one is other creators' to wait for until the
-- caller's transaction ends.
CREATE FUNCTION duly.pool_number(tenant integer, name text) RETURNS smallint
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
DECLARE
    known smallint;
BEGIN
    FOR race IN 1..100 LOOP
        SELECT pools.number INTO known FROM duly.pools
         WHERE pools.tenant = pool_number.tenant AND pools.name = pool_number.name;
        IF FOUND THEN
            RETURN known;
        END IF;
        INSERT INTO duly.pools (tenant, number, name)
        SELECT pool_number.tenant, (SELECT coalesce(max(pools.number), 0) + 1 FROM duly.pools
                                     WHERE pools.tenant = pool_number.tenant), pool_number.name
            ON CONFLICT DO NOTHING;
    END LOOP;
    RAISE EXCEPTION 'a pool number was lost to others a hundred times';
EXCEPTION
    WHEN check_violation THEN
        RAISE EXCEPTION 'the tenant has 10000 pools already, and more are not allowed'
            USING ERRCODE = 'DU004';
END
$$;

-- Which lanes the caller's transaction is the first to use. They reach `placements` at its commit and
-- not before: a row there that stays uncommitted for long would hold up every submit to that lane.
CREATE TABLE duly.new_placements (
    tenant integer NOT NULL,
    shard  smallint NOT NULL,
    lane   smallint NOT NULL
);
CREATE FUNCTION duly.publish_placements() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    -- All of them at the first row, in the order of everybody else; nobody sees another's rows.
    WITH own AS (DELETE FROM duly.new_placements RETURNING tenant, shard, lane)
    INSERT INTO duly.placements (tenant, shard, lane)
    SELECT DISTINCT tenant, shard, lane FROM own ORDER BY tenant, shard, lane
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER publish_at_commit AFTER INSERT ON duly.new_placements
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION duly.publish_placements();

-- The task that a key stands for, or null when it stands for `task_id` from now on. A known key is
-- read before it is claimed, because claiming locks it until the caller's transaction ends.
CREATE FUNCTION duly.claim_key(tenant integer, key text, request_hash bytea, task_id uuid) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
#variable_conflict use_column
DECLARE
    key_at smallint := duly.key_shard(claim_key.tenant, claim_key.key);
    known record;
BEGIN
    FOR race IN 1..100 LOOP
        SELECT held.request_hash, held.task_id INTO known
          FROM duly.idempotency_keys held
         WHERE held.shard = key_at AND held.tenant = claim_key.tenant AND held.key = claim_key.key
           AND held.expires_at > duly.now();
        IF FOUND AND known.request_hash <> claim_key.request_hash THEN
            RAISE EXCEPTION 'the idempotency key is known with another request'
                USING ERRCODE = 'DU003', DETAIL = format('It stands for task %s.', known.task_id);
        ELSIF FOUND THEN
            RETURN known.task_id;
        END IF;
        INSERT INTO duly.idempotency_keys AS held (shard, tenant, key, request_hash, task_id, expires_at)
        VALUES (key_at, claim_key.tenant, claim_key.key, claim_key.request_hash, claim_key.task_id,
                duly.now() + interval '7 days')
            ON CONFLICT (shard, tenant, key) DO UPDATE
           SET request_hash = excluded.request_hash, task_id = excluded.task_id,
               expires_at = excluded.expires_at
         WHERE held.expires_at <= duly.now();
        IF FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'an idempotency key was lost to others a hundred times';
END
$$;

-- Where store/submit.py places a task: at home if its tenant has a cap, so that one owner counts all
-- of it; by its concurrency key; else anywhere within the tenant's spread.
CREATE FUNCTION duly.choose_shard(tenant integer, spread integer, is_capped boolean, key text)
RETURNS smallint LANGUAGE sql VOLATILE
RETURN CASE WHEN is_capped THEN duly.tenant_shard(tenant, 1, 0)
            WHEN key IS NOT NULL THEN duly.key_shard(tenant, key)
            ELSE duly.tenant_shard(tenant, spread, floor(random() * 1024)::integer) END;

-- From the start of this month to the end of the last partition, as store/partitions.py has it.
CREATE FUNCTION duly.clamp_placement(instant timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog
AS $$
DECLARE
    first timestamptz := date_trunc('month', duly.now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    last timestamptz := (
        SELECT (max(to_date(right(child.relname, 7), 'YYYY_MM')) + interval '1 month') AT TIME ZONE 'UTC'
          FROM pg_inherits
          JOIN pg_class child ON child.oid = pg_inherits.inhrelid
         WHERE pg_inherits.inhparent = 'duly.tasks'::regclass);
BEGIN
    RETURN least(greatest(instant, first), last - interval '1 millisecond');
END
$$;

-- The rows of store/submit.sql, for one task whose key, if it has one, was won.
CREATE FUNCTION duly.store_task(task_id uuid, tenant integer, shard smallint, pool smallint, type text,
    payload json, fires_at timestamptz, start_by timestamptz, options jsonb) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
#variable_conflict use_column
<<wanted>>
DECLARE
    priority smallint := coalesce((options ->> 'priority')::numeric, 5)::smallint;
    lane smallint := duly.lane_of(store_task.pool, priority);
    timeout_ms integer := round(coalesce((options -> 'timeout_s')::double precision, 60) * 1000);
    policy text := duly.policy_text(options, store_task.start_by);
    due_at timestamptz := greatest(fires_at, duly.now());
BEGIN
    INSERT INTO duly.new_placements (tenant, shard, lane)
    SELECT store_task.tenant, store_task.shard, wanted.lane
     WHERE NOT EXISTS (SELECT FROM duly.placements AS known
                        WHERE known.tenant = store_task.tenant AND known.shard = store_task.shard
                          AND known.lane = wanted.lane)
       AND NOT EXISTS (SELECT FROM duly.new_placements AS known
                        WHERE known.tenant = store_task.tenant AND known.shard = store_task.shard
                          AND known.lane = wanted.lane);
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, start_by,
                            type, payload, policy, url, execution_key, tags)
    VALUES (store_task.shard, task_id, store_task.tenant, store_task.pool, wanted.priority,
            wanted.timeout_ms, duly.now(), fires_at, store_task.start_by, store_task.type,
            store_task.payload::text, wanted.policy, options -> 'target' ->> 'url',
            options ->> 'idempotency_key', options -> 'tags');
    INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms, due_at, start_by, type,
                             concurrency_key, concurrency_limit, host)
    VALUES (store_task.shard, task_id, store_task.tenant, wanted.lane, store_task.pool,
            wanted.priority, wanted.timeout_ms, wanted.due_at, store_task.start_by,
            store_task.type, duly.concurrency_key_of(wanted.policy),
            duly.concurrency_limit_of(wanted.policy), duly.host_of(options -> 'target' ->> 'url'));
    RETURN wanted.due_at;
END
$$;

-- One task in the caller's own transaction: stored if that commits, and gone if it does not.
CREATE FUNCTION duly.submit_task(tenant text, type text, payload json DEFAULT 'null',
    run_at timestamptz DEFAULT NULL, delay_s double precision DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, options jsonb DEFAULT '{}', ring boolean DEFAULT true) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
#variable_conflict use_column
DECLARE
    content json := coalesce(payload, 'null');
    wait_s double precision := coalesce(delay_s, 0);
    asked jsonb := coalesce(options, '{}');
    used jsonb;
    problems jsonb;
    owner record;
    shard smallint;
    pool smallint := 0;
    fires_at timestamptz;
    hash bytea;
    task_id uuid;
    known_id uuid;
BEGIN
    SELECT tenants.id, tenants.spread, tenants.in_flight_max INTO owner
      FROM duly.tenants WHERE tenants.name = submit_task.tenant;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no tenant %', quote_nullable(submit_task.tenant) USING ERRCODE = 'DU002';
    ELSIF jsonb_typeof(asked) <> 'object' THEN
        RAISE EXCEPTION 'the task is not valid: options is not an object'
            USING ERRCODE = 'DU001', DETAIL = '[{"pointer": "", "detail": "options is not an object"}]';
    END IF;
    asked := duly.members_given(asked);
    used := coalesce((SELECT duly.members_given(kinds.defaults::jsonb) FROM duly.task_types AS kinds
                       WHERE kinds.tenant = owner.id AND kinds.name = submit_task.type), '{}') || asked;
    problems := duly.submission_problems(submit_task.type, content, submit_task.run_at, wait_s,
                                         submit_task.start_by, used, duly.now());
    IF problems IS NOT NULL THEN
        RAISE EXCEPTION 'the task is not valid: % %', problems -> 0 ->> 'pointer', problems -> 0 ->> 'detail'
            USING ERRCODE = 'DU001', DETAIL = problems::text;
    END IF;
    shard := duly.choose_shard(owner.id, owner.spread, owner.in_flight_max IS NOT NULL,
                               used ->> 'concurrency_key');
    fires_at := coalesce(submit_task.run_at, duly.now() + make_interval(secs => wait_s));
    task_id := duly.make_task_id(duly.clamp_placement(greatest(fires_at, duly.now())), shard,
                                 gen_random_uuid());
    IF used ? 'idempotency_key' THEN
        hash := sha256(convert_to(jsonb_build_array(
            submit_task.type, replace(content::text, '\u0000', '\ufdd0')::jsonb,
            extract(epoch FROM submit_task.run_at), wait_s, extract(epoch FROM submit_task.start_by),
            asked - 'idempotency_key')::text, 'UTF8'));
        known_id := duly.claim_key(owner.id, used ->> 'idempotency_key', hash, task_id);
        IF known_id IS NOT NULL THEN
            RETURN known_id;
        END IF;
    END IF;
    IF used -> 'target' ->> 'url' IS NULL THEN
        pool := duly.pool_number(owner.id, coalesce(used -> 'target' ->> 'pool', 'default'));
    END IF;
    -- The submitter allowed a smear; the id stays where the task was asked for.
    fires_at := fires_at + make_interval(secs => random() * coalesce((used -> 'jitter_s')::float8, 0));
    fires_at := duly.store_task(task_id, owner.id, shard, pool, submit_task.type, content, fires_at,
                                submit_task.start_by, used);
    -- Further away it is found by loading; a lost ring costs time, never a task.
    IF ring AND fires_at <= duly.now() + interval '10 seconds' THEN
        PERFORM pg_notify('duly_doorbell', format(
            '[%s,%s,%s,"%s"]', owner.id, shard,
            duly.lane_of(pool, coalesce((used ->> 'priority')::numeric, 5)::smallint),
            duly.instant_text(fires_at)));
    END IF;
    RETURN task_id;
END
$$;

-- What payloads of a type must look like, for whoever can check it before submitting; or null.
CREATE FUNCTION duly.task_type_schema(tenant text, type text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN (SELECT kinds.schema
              FROM duly.tenants
              JOIN duly.task_types AS kinds ON kinds.tenant = tenants.id
             WHERE tenants.name = task_type_schema.tenant AND kinds.name = task_type_schema.type);
END
$$;

REVOKE ALL ON FUNCTION duly.submit_task, duly.task_type_schema, duly.publish_placements FROM PUBLIC;
GRANT USAGE ON SCHEMA duly TO duly_producer;
GRANT EXECUTE ON FUNCTION duly.submit_task, duly.task_type_schema TO duly_producer, duly_engine;

-- name: reverse
-- Everything of this migration; the role stays, since other databases of the server may use it.
DROP FUNCTION duly.task_type_schema;
DROP FUNCTION duly.submit_task;
DROP FUNCTION duly.store_task;
DROP FUNCTION duly.clamp_placement;
DROP FUNCTION duly.choose_shard;
DROP FUNCTION duly.claim_key;
DROP TABLE duly.new_placements;
DROP FUNCTION duly.publish_placements;
DROP FUNCTION duly.pool_number;
REVOKE ALL ON SCHEMA duly FROM duly_producer;
