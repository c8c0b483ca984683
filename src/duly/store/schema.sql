-- The schema after every migration, for reading only: duly never runs this file.
-- Write it again with `make schema`; a test fails when it is stale.

CREATE SCHEMA duly;

CREATE FUNCTION duly.character_name(value text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ('U+'::text || lpad(upper(to_hex(ascii(value))), GREATEST(4, length(to_hex(ascii(value)))), '0'::text));

CREATE FUNCTION duly.key_shard(tenant integer, key text) RETURNS smallint
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog'
    AS $$
DECLARE
    digest bytea := sha256(convert_to(tenant || ':' || key, 'UTF8'));
BEGIN
    RETURN ((get_byte(digest, 0) << 8 | get_byte(digest, 1)) >> 6)::smallint;
END
$$;

CREATE FUNCTION duly.tenant_shard(tenant integer, spread integer, choice integer) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((((((tenant)::bigint * '2654435761'::bigint) & '4294967295'::bigint) >> 22))::integer # (choice % spread)))::smallint;

CREATE FUNCTION duly.choose_shard(tenant integer, spread integer, is_capped boolean, key text) RETURNS smallint
    LANGUAGE sql
    RETURN CASE WHEN (key IS NOT NULL) THEN duly.key_shard(tenant, key) WHEN is_capped THEN duly.tenant_shard(tenant, 1, 0) ELSE duly.tenant_shard(tenant, spread, (floor((random() * (1024)::double precision)))::integer) END;

CREATE FUNCTION duly.claim_key(tenant integer, key text, request_hash bytea, task_id uuid) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
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

CREATE FUNCTION duly.clamp_placement(instant timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog'
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
    -- Another session created it at the same moment; the name of its row type is what we collided
    -- on.
    WHEN duplicate_table OR duplicate_object OR unique_violation THEN RETURN NULL;
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
               AND (NOT duly.is_node(candidates.id)
                    OR NOT EXISTS (SELECT FROM duly.workflows
                                    WHERE workflows.shard = candidates.shard
                                      AND workflows.id = duly.workflow_of(candidates.id)))
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
    -- Nodes and their results are kept as long as their workflow.
    IF EXISTS (SELECT FROM generate_series(0, 1023) AS probe(shard)
                WHERE EXISTS (SELECT FROM duly.workflows
                               WHERE workflows.shard = probe.shard
                                 AND workflows.id >= lower_bound AND workflows.id < upper_bound)) THEN
        RETURN 'workflows';
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

CREATE FUNCTION duly.due_or_held(node uuid, wanted_at timestamp with time zone, OUT due_at timestamp with time zone, OUT held_due_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
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

CREATE FUNCTION duly.invisible_characters() RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]'::text;

CREATE FUNCTION duly.text_reason(value jsonb, characters_max integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (value IS NULL) THEN NULL::text WHEN (jsonb_typeof(value) <> 'string'::text) THEN 'is not text'::text WHEN ((char_length((value #>> '{}'::text[])) < 1) OR (char_length((value #>> '{}'::text[])) > characters_max)) THEN format('is not from 1 to %s characters'::text, characters_max) WHEN ((value #>> '{}'::text[]) ~ duly.invisible_characters()) THEN ('contains '::text || duly.character_name("substring"((value #>> '{}'::text[]), duly.invisible_characters()))) ELSE NULL::text END;

CREATE FUNCTION duly.entries_reason(entries jsonb, entries_max integer, name_pattern text, name_max integer, value_max integer) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (entries IS NULL) THEN NULL::text WHEN (jsonb_typeof(entries) <> 'object'::text) THEN 'is not an object'::text ELSE (SELECT CASE WHEN (count(*) > entries_reason.entries_max) THEN format('has more than %s entries'::text, entries_reason.entries_max) WHEN bool_or((duly.text_reason(to_jsonb(jsonb_each.key), entries_reason.name_max) IS NOT NULL)) THEN ('has a name that '::text || min(duly.text_reason(to_jsonb(jsonb_each.key), entries_reason.name_max))) WHEN bool_or((jsonb_each.key !~ entries_reason.name_pattern)) THEN ('has a name that does not match '::text || entries_reason.name_pattern) WHEN bool_or(((jsonb_each.value <> '""'::jsonb) AND (duly.text_reason(jsonb_each.value, entries_reason.value_max) IS NOT NULL))) THEN ('has a value that '::text || min(duly.text_reason(jsonb_each.value, entries_reason.value_max)) FILTER (WHERE (jsonb_each.value <> '""'::jsonb))) ELSE NULL::text END AS "case" FROM jsonb_each(entries_reason.entries) jsonb_each(key, value)) END;

CREATE FUNCTION duly.fan_in(rule smallint, pending bigint, completed bigint, failed bigint, skipped bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE rule WHEN 0 THEN CASE WHEN ((failed + skipped) > 0) THEN '-1'::integer WHEN (pending = 0) THEN 1 ELSE 0 END WHEN 1 THEN CASE WHEN (failed > 0) THEN '-1'::integer WHEN (pending = 0) THEN 1 ELSE 0 END WHEN 2 THEN CASE WHEN (pending = 0) THEN 1 ELSE 0 END WHEN 3 THEN CASE WHEN (completed > 0) THEN 1 WHEN (pending = 0) THEN '-1'::integer ELSE 0 END WHEN 4 THEN CASE WHEN (failed > 0) THEN 1 WHEN (pending = 0) THEN '-1'::integer ELSE 0 END ELSE NULL::integer END;

CREATE FUNCTION duly.has_callback(id uuid) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((get_byte(uuid_send(id), 7) & 3) = 1);

CREATE FUNCTION duly.host_of(url text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (strpos(url, '://'::text) > 0) THEN NULLIF(lower(split_part(split_part(split_part(substr(url, (strpos(url, '://'::text) + 3)), '/'::text, 1), '?'::text, 1), '#'::text, 1)), ''::text) ELSE NULL::text END;

CREATE FUNCTION duly.id_bound(instant timestamp with time zone) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (rpad(lpad(to_hex((floor((EXTRACT(epoch FROM instant) * (1000)::numeric)))::bigint), 12, '0'::text), 32, '0'::text))::uuid;

CREATE FUNCTION duly.idempotency_key_reason(value jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (value IS NULL) THEN NULL::text WHEN (jsonb_typeof(value) <> 'string'::text) THEN 'is not text'::text WHEN ((char_length((value #>> '{}'::text[])) < 1) OR (char_length((value #>> '{}'::text[])) > 255)) THEN 'is not from 1 to 255 characters'::text WHEN ((value #>> '{}'::text[]) ~ '[^!-~]'::text) THEN (('contains '::text || duly.character_name("substring"((value #>> '{}'::text[]), '[^!-~]'::text))) || '; a key is visible ASCII without spaces'::text) ELSE NULL::text END;

CREATE FUNCTION duly.instant_text(instant timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN replace(to_char((instant AT TIME ZONE 'UTC'::text), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'::text), '.000000Z'::text, 'Z'::text);

CREATE FUNCTION duly.is_node(id uuid) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((get_byte(uuid_send(id), 7) & 2) = 2);

CREATE FUNCTION duly.lane_depth(lane_pool smallint, lane_band smallint, most integer) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog'
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

CREATE FUNCTION duly.lock_workflows(ids uuid[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    PERFORM
       FROM (SELECT DISTINCT duly.workflow_of(node.id) AS id FROM unnest(ids) AS node(id)) AS named
       JOIN duly.workflows
         ON workflows.shard = duly.shard_of(named.id) AND workflows.id = named.id
      ORDER BY workflows.shard, workflows.id
        FOR NO KEY UPDATE OF workflows;
    RETURN true;
END
$$;

CREATE FUNCTION duly.make_task_id(placed timestamp with time zone, shard smallint, random uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((("left"(replace((duly.id_bound(placed))::text, '-'::text, ''::text), 12) || '7'::text) || lpad(to_hex(((shard)::integer << 2)), 3, '0'::text)) || "right"(replace((random)::text, '-'::text, ''::text), 16)))::uuid;

CREATE FUNCTION duly.members_given(object jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT COALESCE(jsonb_object_agg(jsonb_each.key, jsonb_each.value), '{}'::jsonb) AS "coalesce" FROM jsonb_each(members_given.object) jsonb_each(key, value) WHERE (jsonb_each.value <> 'null'::jsonb));

CREATE FUNCTION duly.node_id(workflow uuid, number integer) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (("left"((workflow)::text, 30) || lpad(to_hex(number), 6, '0'::text)))::uuid;

CREATE FUNCTION duly.node_number(id uuid) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((('x'::text || "right"((id)::text, 6)))::bit(24))::integer;

CREATE FUNCTION duly.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN COALESCE((NULLIF(current_setting('duly.test_now'::text, true), ''::text))::timestamp with time zone, now());

CREATE FUNCTION duly.number_reason(value jsonb, lowest numeric, highest numeric, is_whole boolean) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (value IS NULL) THEN NULL::text WHEN (jsonb_typeof(value) <> 'number'::text) THEN 'is not a number'::text WHEN (((value)::numeric < lowest) OR ((value)::numeric > highest)) THEN format('is not from %s to %s'::text, lowest, highest) WHEN (is_whole AND (((value)::numeric % (1)::numeric) <> (0)::numeric)) THEN 'is not a whole number'::text ELSE NULL::text END;

CREATE FUNCTION duly.payload_reason(payload json) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog'
    AS $_$
DECLARE
    readable text := replace(payload::text, '\u0000', '\ufdd0');
    document jsonb;
BEGIN
    IF octet_length(payload::text) > 65536 THEN
        RETURN format('is %s bytes, and 65536 is the most', octet_length(payload::text));
    END IF;
    BEGIN
        document := readable::jsonb;
    EXCEPTION
        WHEN data_exception THEN RETURN 'is not JSON that every reader takes: ' || SQLERRM;
    END;
    IF jsonb_path_exists(document, 'strict $.**{63 to last} ? (@.type() == "object" || @.type() == "array")') THEN
        RETURN 'is nested deeper than 63 levels';
    END IF;
    IF jsonb_path_exists(document, 'strict $.** ? (@.type() == "number") ? (@ > 1.7976931348623157e308 || @ < -1.7976931348623157e308)') THEN
        RETURN 'has a number out of range';
    END IF;
    IF strpos(readable, ':') > 0 AND EXISTS (
        WITH RECURSIVE parts(part) AS (
            SELECT readable::json
             UNION ALL
            SELECT inner_part.value
              FROM parts
             CROSS JOIN LATERAL (
                   SELECT value FROM json_each(CASE json_typeof(part) WHEN 'object' THEN part END)
                    UNION ALL
                   SELECT value FROM json_array_elements(CASE json_typeof(part) WHEN 'array' THEN part END)
                   ) AS inner_part
             WHERE json_typeof(part) IN ('object', 'array'))
        SELECT FROM parts
         WHERE json_typeof(part) = 'object'
           AND (SELECT count(*) <> count(DISTINCT name) FROM json_object_keys(part) AS name)) THEN
        RETURN 'has an object with two members of one name';
    END IF;
    RETURN NULL;
END
$_$;

CREATE FUNCTION duly.policy_text(options jsonb, start_by timestamp with time zone) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog'
    AS $$
DECLARE
    retry jsonb := options -> 'retry';
    usual text := '{"max_attempts":5,"backoff":"exponential","initial_s":2.0,"factor":2.0,'
               || '"max_s":3600.0,"jitter":true,"non_retryable":[]}';
    parts text[];
    part text;
BEGIN
    part := format(
        '{"max_attempts":%s,"backoff":%s,"initial_s":%s,"factor":%s,"max_s":%s,"jitter":%s,"non_retryable":%s%s}',
        coalesce((retry ->> 'max_attempts')::numeric::integer, 5),
        coalesce(retry -> 'backoff', '"exponential"'),
        duly.seconds_text(retry -> 'initial_s', '2.0'), duly.seconds_text(retry -> 'factor', '2.0'),
        duly.seconds_text(retry -> 'max_s', '3600.0'), coalesce(retry -> 'jitter', 'true'),
        (SELECT format('[%s]', string_agg(kind::text, ',' ORDER BY rank))
           FROM jsonb_array_elements(retry -> 'non_retryable') WITH ORDINALITY AS kinds(kind, rank)),
        CASE WHEN retry -> 'retry_4xx' = 'true' THEN ',"retry_4xx":true' END);
    parts := ARRAY[
        CASE WHEN part <> usual THEN '"retry":' || part END,
        '"timeout_s":' || nullif(duly.seconds_text(options -> 'timeout_s', '60.0'), '60.0'),
        '"start_by":"' || duly.instant_text(start_by) || '"',
        '"jitter_s":' || nullif(duly.seconds_text(options -> 'jitter_s', '0.0'), '0.0'),
        '"concurrency_key":' || (options -> 'concurrency_key')::text,
        '"concurrency_limit":' || (options ->> 'concurrency_limit')::numeric::integer,
        (SELECT '"headers":{' || string_agg(to_json(key)::text || ':' || value::text, ',') || '}'
           FROM jsonb_each(options -> 'target' -> 'headers'))];
    RETURN '{' || nullif(array_to_string(parts, ','), '') || '}';
END
$$;

CREATE FUNCTION duly.pool_number(tenant integer, name text) RETURNS smallint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
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

CREATE FUNCTION duly.publish_placements() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    -- All of them at the first row, in the order of all other writers; no session sees another's
    -- rows.
    WITH own AS (DELETE FROM duly.new_placements RETURNING tenant, shard, queue)
    INSERT INTO duly.placements (tenant, shard, queue)
    SELECT DISTINCT tenant, shard, queue FROM own ORDER BY tenant, shard, queue
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE FUNCTION duly.rebuild_ready_tickets(seen_filenode oid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    SET lock_timeout TO '2s'
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

CREATE FUNCTION duly.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE FUNCTION duly.release_children(ended_ids uuid[], ended_states text[], first_child integer DEFAULT 0) RETURNS TABLE(id uuid, tenant integer, shard smallint, queue smallint, fence integer, due_at timestamp with time zone, priority smallint, type text, concurrency_key text, concurrency_limit integer, host text)
    LANGUAGE plpgsql STRICT
    SET search_path TO 'pg_catalog'
    AS $$
#variable_conflict use_column
DECLARE
    -- A level of a cascade is taken whole; after so many skips the next one is left to a timer.
    skipped_max CONSTANT integer := 1000;
    skipped_count integer := 0;
    wave uuid[] := ended_ids;
    wave_states text[] := ended_states;
    active uuid[];
    paused uuid[];
    stopped uuid[];
    undone uuid[];
    ended_workflows uuid[];
    released duly.timers[];
    stepping duly.timers[];
    sources_ended uuid[];
    doomed uuid[];
BEGIN
    LOOP
        IF first_child > 0 THEN
            -- These were counted when they ended: only children that came after that are told.
            SELECT array_agg(named.id), array_agg(named.id) FILTER (WHERE workflows.paused_at IS NOT NULL)
              INTO active, paused
              FROM (SELECT DISTINCT duly.workflow_of(node.id) AS id FROM unnest(wave) AS node(id)) AS named
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(named.id) AND workflows.id = named.id;
        ELSE
            WITH counts AS (
                SELECT duly.workflow_of(node.id) AS workflow, count(*) AS ended,
                       count(*) FILTER (WHERE node.state = 'COMPLETED') AS completed,
                       count(*) FILTER (WHERE node.state = 'FAILED') AS failed,
                       count(*) FILTER (WHERE node.state = 'SKIPPED') AS skipped,
                       count(*) FILTER (WHERE node.state = 'CANCELLED') AS cancelled,
                       count(item.map_number) FILTER (WHERE node.state = 'FAILED') AS items_failed,
                       count(item.map_number) FILTER (WHERE node.state = 'CANCELLED') AS items_cancelled,
                       count(*) FILTER (WHERE node.state = 'FAILED' AND item.map_number IS NULL)
                           AS nodes_failed
                  FROM unnest(wave, wave_states) AS node(id, state)
                  LEFT JOIN LATERAL (
                       SELECT made.map_number FROM duly.workflow_nodes AS made
                        WHERE node.state IN ('FAILED', 'CANCELLED')
                          AND duly.node_number(node.id) > 10000
                          AND made.shard = duly.shard_of(node.id) AND made.id = node.id) AS item ON true
                 GROUP BY 1
            ), counted AS (
                UPDATE duly.workflows
                   SET live = workflows.live - counts.ended,
                       completed = workflows.completed + counts.completed,
                       failed = workflows.failed + counts.failed,
                       skipped = workflows.skipped + counts.skipped,
                       cancelled = workflows.cancelled + counts.cancelled,
                       items_failed = workflows.items_failed + counts.items_failed,
                       items_cancelled = workflows.items_cancelled + counts.items_cancelled,
                       stop_reason = duly.stop_reason_after(workflows.stop_reason, workflows.on_failure,
                                                            counts.nodes_failed),
                       compensated = workflows.compensated
                           + CASE WHEN workflows.compensating_at IS NULL THEN 0
                                  ELSE counts.completed END,
                       compensations_failed = workflows.compensations_failed
                           + CASE WHEN workflows.compensating_at IS NULL THEN 0
                                  ELSE counts.failed + counts.cancelled END,
                       (compensating_at, ended_at, state) = (
                           SELECT CASE WHEN is_undone
                                       THEN coalesce(workflows.compensating_at, duly.now())
                                       ELSE workflows.compensating_at END,
                                  CASE WHEN is_over AND NOT is_undone THEN duly.now() END,
                                  CASE WHEN is_over AND NOT is_undone THEN ends_as END
                             FROM (SELECT *, is_over AND workflows.on_failure = 'compensate'
                                             AND ends_as = 'FAILED' AS is_undone
                                     FROM (SELECT workflows.live = counts.ended AS is_over,
                                                  duly.workflow_end(
                               duly.stop_reason_after(workflows.stop_reason, workflows.on_failure,
                                                      counts.nodes_failed),
                               workflows.failed - workflows.items_failed + counts.nodes_failed,
                               workflows.cancelled - workflows.items_cancelled
                                   + counts.cancelled - counts.items_cancelled,
                               workflows.skipped + counts.skipped) AS ends_as) AS end_now) AS judged)
                  FROM counts
                 WHERE workflows.shard = duly.shard_of(counts.workflow)
                   AND workflows.id = counts.workflow
             RETURNING workflows.id, workflows.live, workflows.stop_reason, workflows.paused_at,
                       workflows.ended_at, workflows.compensating_at, counts.nodes_failed
            )
            SELECT array_agg(counted.id) FILTER (
                       WHERE live > 0 AND (stop_reason IS NULL OR compensating_at IS NOT NULL
                                                                  AND stop_reason <> 'cancelled')),
                   array_agg(counted.id) FILTER (WHERE paused_at IS NOT NULL),
                   array_agg(counted.id) FILTER (
                       WHERE live > 0 AND stop_reason = 'failure' AND nodes_failed > 0
                         AND compensating_at IS NULL),
                   array_agg(counted.id) FILTER (WHERE live = 0 AND ended_at IS NULL),
                   array_agg(counted.id) FILTER (WHERE ended_at IS NOT NULL)
              INTO active, paused, stopped, undone, ended_workflows
              FROM counted;
        END IF;

        IF stopped IS NOT NULL OR undone IS NOT NULL THEN
            DELETE FROM duly.workflow_timers
             USING unnest(undone) AS asked(id)
             WHERE workflow_timers.shard = duly.shard_of(asked.id)
               AND workflow_timers.workflow = asked.id;
            RETURN QUERY
            INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
            SELECT workflows.shard, workflows.tenant, workflows.id, asked.kind, duly.now()
              FROM (SELECT unnest(stopped) AS id, 'cancel' AS kind
                     UNION ALL
                    SELECT unnest(undone), 'compensate') AS asked
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(asked.id) AND workflows.id = asked.id
                ON CONFLICT DO NOTHING
         RETURNING workflow, tenant, shard, NULL::smallint, NULL::integer, due_at, NULL::smallint,
                   NULL, NULL, NULL::integer, NULL;
        END IF;
        IF ended_workflows IS NOT NULL THEN
            RETURN QUERY SELECT * FROM duly.workflow_ended(ended_workflows);
        END IF;
        EXIT WHEN active IS NULL;

        IF 'CANCELLED' = ANY (wave_states) THEN
            RETURN QUERY
            INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at)
            SELECT maps.shard, maps.tenant, maps.workflow, 'map', maps.node, duly.now()
              FROM unnest(wave, wave_states) AS ended(id, state)
              JOIN duly.workflow_maps AS maps
                ON maps.shard = duly.shard_of(ended.id)
               AND maps.workflow = duly.workflow_of(ended.id)
               AND maps.node = duly.node_number(ended.id)
             WHERE ended.state = 'CANCELLED'
               AND duly.node_number(ended.id) <= 10000
               AND duly.workflow_of(ended.id) = ANY (active)
                ON CONFLICT (shard, workflow, kind, node) DO UPDATE
               SET due_at = least(held.due_at, excluded.due_at), fence = held.fence + 1
         RETURNING held.workflow, held.tenant, held.shard, NULL::smallint, NULL::integer, held.due_at,
                   NULL::smallint, NULL, NULL, NULL::integer, NULL;
        END IF;

        -- Only nodes that wait: a release comes once, and parents that end later change nothing. Of an
        -- open map, the items are such parents, and a cancelled one counts as skipped, which no item is;
        -- the end of its other parents is only told.
        WITH child AS (
            SELECT parent.shard, duly.node_id(node.id, edge.number) AS id,
                   parent.map_number IS NOT NULL AS is_item, count(*) AS ended,
                   count(*) FILTER (WHERE node.state = 'COMPLETED') AS completed,
                   count(*) FILTER (WHERE node.state IN ('FAILED', 'CANCELLED')
                                      AND (parent.map_number IS NULL OR node.state = 'FAILED'))
                       AS failed,
                   count(*) FILTER (WHERE node.state = 'SKIPPED'
                                       OR parent.map_number IS NOT NULL AND node.state = 'CANCELLED')
                       AS skipped
              FROM unnest(wave, wave_states) AS node(id, state)
              JOIN duly.workflow_nodes AS parent
                ON parent.shard = duly.shard_of(node.id) AND parent.id = node.id
             CROSS JOIN LATERAL unnest(parent.children) AS edge(number)
             WHERE duly.workflow_of(node.id) = ANY (active)
               AND edge.number >= first_child
             GROUP BY 1, 2, 3
        ), judged AS (
            SELECT timers.shard, timers.id, rule.delay_ms, rule.is_step,
                   duly.workflow_of(child.id) = ANY (coalesce(paused, '{}')) AS is_paused,
                   child.is_item, timers.started_at IS NOT NULL AS is_open_map,
                   coalesce(timers.parents_failed + child.failed > timers.items_failed_max
                            OR timers.parents_pending > timers.items_mark
                               AND timers.parents_pending - child.ended <= timers.items_mark, false)
                       AS wants_items,
                   timers.parents_pending - child.ended AS pending,
                   timers.parents_completed + child.completed AS completed,
                   timers.parents_failed + child.failed AS failed,
                   timers.parents_skipped + child.skipped AS skipped,
                   duly.fan_in(timers.wait_rule, timers.parents_pending - child.ended,
                               timers.parents_completed + child.completed,
                               timers.parents_failed + child.failed,
                               timers.parents_skipped + child.skipped) AS verdict
              FROM child
              JOIN duly.timers ON timers.shard = child.shard AND timers.id = child.id
              JOIN duly.workflow_nodes AS rule ON rule.shard = child.shard AND rule.id = child.id
             WHERE timers.parents_pending IS NOT NULL
        ), counted AS (
            UPDATE duly.timers
               SET parents_pending = CASE WHEN judged.verdict <> 1 THEN judged.pending END,
                   parents_completed = CASE WHEN judged.verdict <> 1 OR is_open_map THEN judged.completed END,
                   parents_failed = CASE WHEN judged.verdict <> 1 OR is_open_map THEN judged.failed END,
                   parents_skipped = CASE WHEN judged.verdict <> 1 OR is_open_map THEN judged.skipped END,
                   wait_rule = CASE WHEN judged.verdict <> 1 THEN timers.wait_rule END,
                   due_at = CASE WHEN judged.verdict = 1 AND NOT is_step AND NOT is_paused THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END,
                   held_due_at = CASE WHEN judged.verdict = 1 AND NOT is_step AND is_paused THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END,
                   run_at = CASE WHEN judged.verdict = 1 THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END
              FROM judged
             WHERE timers.shard = judged.shard AND timers.id = judged.id
               AND (timers.started_at IS NOT NULL) = judged.is_item
               AND timers.parents_pending IS NOT NULL
         RETURNING timers AS timer, judged.verdict, judged.is_step, judged.is_paused,
                   judged.wants_items
        )
        SELECT array_agg(timer) FILTER (WHERE verdict = 1 AND NOT is_step AND NOT is_paused),
               array_agg(timer) FILTER (WHERE is_step AND (verdict = 1 OR verdict = 0 AND wants_items)),
               array_agg((timer).id) FILTER (WHERE verdict = -1),
               (SELECT array_agg(judged.id) FROM judged
                 WHERE judged.is_open_map AND NOT judged.is_item)
          INTO released, stepping, doomed, sources_ended
          FROM counted;

        IF sources_ended IS NOT NULL THEN
            stepping := stepping || ARRAY(
                SELECT timers FROM unnest(sources_ended) AS asked(id)
                  JOIN duly.timers
                    ON timers.shard = duly.shard_of(asked.id) AND timers.id = asked.id
                 WHERE timers.id <> ALL (coalesce(ARRAY(SELECT step.id FROM unnest(stepping) AS step),
                                                  '{}')));
        END IF;
        IF stepping IS NOT NULL THEN
            RETURN QUERY
            WITH armed AS (
                INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at)
                SELECT step.shard, step.tenant, duly.workflow_of(step.id),
                       CASE WHEN step.started_at IS NULL THEN 'step' ELSE 'map' END,
                       duly.node_number(step.id),
                       CASE WHEN step.started_at IS NULL THEN step.run_at ELSE duly.now() END
                  FROM unnest(stepping) AS step
                    ON CONFLICT (shard, workflow, kind, node) DO UPDATE
                   SET due_at = least(held.due_at, excluded.due_at), fence = held.fence + 1
             RETURNING held.workflow, held.tenant, held.shard, held.due_at
            )
            SELECT DISTINCT ON (armed.workflow) armed.workflow, armed.tenant, armed.shard, NULL::smallint,
                   NULL::integer, armed.due_at, NULL::smallint, NULL, NULL, NULL::integer, NULL
              FROM armed
             ORDER BY armed.workflow, armed.due_at;
        END IF;

        RETURN QUERY
        SELECT free.id, free.tenant, free.shard, free.queue, free.fence, free.due_at, free.priority,
               free.type, free.concurrency_key, free.concurrency_limit, free.host
          FROM unnest(released) AS free;
        EXIT WHEN doomed IS NULL;
        first_child := 0;

        WITH ended AS (
            DELETE FROM duly.timers
             USING unnest(doomed) AS asked(id)
             WHERE timers.shard = duly.shard_of(asked.id)
               AND timers.id = asked.id
               AND timers.parents_pending IS NOT NULL
         RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, 0 AS charged,
                   NULL::uuid AS holder, NULL::timestamptz AS started_at, timers.run_at,
                   'skipped' AS outcome, 'SKIPPED' AS state, NULL AS reason, NULL AS error,
                   NULL AS result
        ),
recorded AS (
    INSERT INTO duly.attempts (shard, id, fence, tenant, charged, holder, started_at, ended_at,
                               outcome, state, reason, error, result, run_at)
    SELECT shard, id, fence, tenant, charged, holder, started_at,
           greatest(duly.now(), started_at), outcome, state, reason, error, result, run_at
      FROM ended
)
        SELECT array_agg(ended.id), array_agg(ended.state) INTO wave, wave_states FROM ended;

        skipped_count := skipped_count + cardinality(wave);
        IF skipped_count > skipped_max THEN
            RETURN QUERY
            INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, node, due_at, cursor)
            SELECT workflows.shard, workflows.tenant, workflows.id, 'cascade',
                   min(duly.node_number(skipped.id)), duly.now(),
                   string_agg(duly.node_number(skipped.id)::text, ' ')
              FROM unnest(wave) AS skipped(id)
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(skipped.id)
               AND workflows.id = duly.workflow_of(skipped.id)
             GROUP BY workflows.shard, workflows.tenant, workflows.id
         RETURNING workflow, tenant, shard, NULL::smallint, NULL::integer, due_at, NULL::smallint,
                   NULL, NULL, NULL::integer, NULL;
            EXIT;
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION duly.reserved_reason(headers jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT CASE WHEN bool_or(((lower(header.name) ~ '^(content-|duly-|proxy-|webhook-|x-forwarded-)'::text) OR (lower(header.name) = ANY (ARRAY['accept-encoding'::text, 'connection'::text, 'date'::text, 'expect'::text, 'forwarded'::text, 'host'::text, 'http2-settings'::text, 'idempotency-key'::text, 'keep-alive'::text, 'te'::text, 'trailer'::text, 'transfer-encoding'::text, 'upgrade'::text, 'user-agent'::text, 'via'::text, 'traceparent'::text, 'tracestate'::text, 'x-real-ip'::text])))) THEN 'may not set a header that is duly''s own or frames the request'::text WHEN bool_or((header.value !~ '^([!-~]([ -~]*[!-~])?)?$'::text)) THEN 'has a value that is not printable ASCII'::text WHEN (count(*) <> count(DISTINCT lower(header.name))) THEN 'has a name twice'::text ELSE NULL::text END AS "case" FROM jsonb_each_text(CASE jsonb_typeof(reserved_reason.headers) WHEN 'object'::text THEN reserved_reason.headers ELSE NULL::jsonb END) header(name, value));

CREATE FUNCTION duly.unknown_members(object jsonb, place text, known text[]) RETURNS TABLE(pointer text, reason text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT ((unknown_members.place || '/'::text) || "left"(replace(replace(key.key, '~'::text, '~0'::text), '/'::text, '~1'::text), 64)),
     'is not a known field'::text
    FROM jsonb_object_keys(
         CASE jsonb_typeof(unknown_members.object)
             WHEN 'object'::text THEN unknown_members.object
             ELSE NULL::jsonb
         END) key(key)
   WHERE (key.key <> ALL (unknown_members.known));
END;

CREATE FUNCTION duly.retry_problems(retry jsonb) RETURNS TABLE(pointer text, reason text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT checks.pointer,
     checks.reason
    FROM ( VALUES ('/retry'::text,
                 CASE
                     WHEN (jsonb_typeof(retry_problems.retry) <> 'object'::text) THEN 'is not an object'::text
                     ELSE NULL::text
                 END), ('/retry/max_attempts'::text,duly.number_reason((retry_problems.retry -> 'max_attempts'::text), (1)::numeric, (100)::numeric, true)), ('/retry/backoff'::text,
                 CASE
                     WHEN ((retry_problems.retry -> 'backoff'::text) <> ALL (ARRAY['"fixed"'::jsonb, '"exponential"'::jsonb])) THEN 'is fixed or exponential'::text
                     ELSE NULL::text
                 END), ('/retry/initial_s'::text,duly.number_reason((retry_problems.retry -> 'initial_s'::text), (0)::numeric, (2592000)::numeric, false)), ('/retry/factor'::text,duly.number_reason((retry_problems.retry -> 'factor'::text), (1)::numeric, (100)::numeric, false)), ('/retry/max_s'::text,duly.number_reason((retry_problems.retry -> 'max_s'::text), (0)::numeric, (2592000)::numeric, false)), ('/retry/jitter'::text,
                 CASE
                     WHEN (jsonb_typeof((retry_problems.retry -> 'jitter'::text)) <> 'boolean'::text) THEN 'is not true or false'::text
                     ELSE NULL::text
                 END), ('/retry/retry_4xx'::text,
                 CASE
                     WHEN (jsonb_typeof((retry_problems.retry -> 'retry_4xx'::text)) <> 'boolean'::text) THEN 'is not true or false'::text
                     ELSE NULL::text
                 END), ('/retry/non_retryable'::text,
                 CASE
                     WHEN (jsonb_typeof((retry_problems.retry -> 'non_retryable'::text)) <> 'array'::text) THEN 'is not a list'::text
                     WHEN (jsonb_array_length((retry_problems.retry -> 'non_retryable'::text)) > 32) THEN 'has more than 32 entries'::text
                     WHEN (EXISTS ( SELECT
                        FROM jsonb_array_elements((retry_problems.retry -> 'non_retryable'::text)) kind(value)
                       WHERE (jsonb_typeof(kind.value) <> 'string'::text))) THEN 'has an entry that is not text'::text
                     WHEN (EXISTS ( SELECT
                        FROM jsonb_array_elements_text((retry_problems.retry -> 'non_retryable'::text)) kind(value)
                       WHERE (((length(kind.value) < 1) OR (length(kind.value) > 128)) OR (kind.value ~ duly.invisible_characters())))) THEN 'has an entry that is too long or not plain text'::text
                     ELSE NULL::text
                 END)) checks(pointer, reason)
 UNION ALL
  SELECT unknown.pointer,
     unknown.reason
    FROM duly.unknown_members(retry_problems.retry, '/retry'::text, ARRAY['max_attempts'::text, 'backoff'::text, 'initial_s'::text, 'factor'::text, 'max_s'::text, 'jitter'::text, 'non_retryable'::text, 'retry_4xx'::text]) unknown(pointer, reason);
END;

CREATE FUNCTION duly.seconds_text(value jsonb, usual text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN COALESCE(CASE WHEN (((value)::double precision)::text ~ '[.e]'::text) THEN ((value)::double precision)::text ELSE (((value)::double precision)::text || '.0'::text) END, usual);

CREATE FUNCTION duly.shard_of(id uuid) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((((get_byte(uuid_send(id), 6) & 15) << 6) | (get_byte(uuid_send(id), 7) >> 2)))::smallint;

CREATE FUNCTION duly.stop_reason_after(stop_reason text, on_failure text, failed bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((stop_reason IS NULL) AND (on_failure = ANY (ARRAY['stop'::text, 'compensate'::text])) AND (failed > 0)) THEN 'failure'::text ELSE stop_reason END;

CREATE FUNCTION duly.stop_workflows_of(owner integer, nodes uuid[]) RETURNS TABLE(node uuid, workflow uuid, shard smallint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH inside AS (
        SELECT workflows.parent_node, workflows.id, workflows.shard, workflows.tenant, workflows.ended_at
          FROM unnest(nodes) AS asked(id)
          JOIN duly.timers
            ON timers.shard = duly.shard_of(asked.id) AND timers.id = asked.id
          JOIN duly.workflows
            ON workflows.shard = duly.shard_of(asked.id)
           AND workflows.parent_node = asked.id
           AND workflows.tenant + 0 = owner
    ), armed AS (
        INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
        SELECT inside.shard, inside.tenant, inside.id, 'stop', duly.now()
          FROM inside
         WHERE inside.ended_at IS NULL
            ON CONFLICT DO NOTHING
    )
    SELECT inside.parent_node, inside.id, inside.shard FROM inside;
END
$$;

CREATE FUNCTION duly.store_task(task_id uuid, tenant integer, shard smallint, pool smallint, type text, payload json, fires_at timestamp with time zone, start_by timestamp with time zone, options jsonb) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog'
    AS $$
#variable_conflict use_column
<<wanted>>
DECLARE
    priority smallint := coalesce((options ->> 'priority')::numeric, 5)::smallint;
    queue smallint := duly.timer_queue(store_task.pool, priority);
    timeout_ms integer := round(coalesce((options -> 'timeout_s')::double precision, 60) * 1000);
    policy text := duly.policy_text(options, store_task.start_by);
    due_at timestamptz := greatest(fires_at, duly.now());
BEGIN
    INSERT INTO duly.new_placements (tenant, shard, queue)
    SELECT store_task.tenant, store_task.shard, wanted.queue
     WHERE NOT EXISTS (SELECT FROM duly.placements AS known
                        WHERE known.tenant = store_task.tenant AND known.shard = store_task.shard
                          AND known.queue = wanted.queue)
       AND NOT EXISTS (SELECT FROM duly.new_placements AS known
                        WHERE known.tenant = store_task.tenant AND known.shard = store_task.shard
                          AND known.queue = wanted.queue);
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, start_by,
                            type, payload, policy, url, execution_key, tags)
    VALUES (store_task.shard, task_id, store_task.tenant, store_task.pool, wanted.priority,
            wanted.timeout_ms, duly.now(), fires_at, store_task.start_by, store_task.type,
            store_task.payload::text, wanted.policy, options -> 'target' ->> 'url',
            options ->> 'idempotency_key', options -> 'tags');
    INSERT INTO duly.timers (shard, id, tenant, queue, pool, priority, timeout_ms, due_at, start_by, type,
                             concurrency_key, concurrency_limit, host)
    VALUES (store_task.shard, task_id, store_task.tenant, wanted.queue, store_task.pool,
            wanted.priority, wanted.timeout_ms, wanted.due_at, store_task.start_by,
            store_task.type, duly.concurrency_key_of(wanted.policy),
            duly.concurrency_limit_of(wanted.policy), duly.host_of(options -> 'target' ->> 'url'));
    RETURN wanted.due_at;
END
$$;

CREATE FUNCTION duly.submission_problems(type text, payload json, run_at timestamp with time zone, delay_s double precision, start_by timestamp with time zone, options jsonb, now_at timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog'
    AS $_$
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_object('pointer', found.pointer, 'detail', found.reason))
          FROM (
            SELECT checks.pointer, checks.reason
              FROM (VALUES
                ('/type', CASE WHEN type IS NULL OR type !~ '^[a-z0-9][a-z0-9._-]{0,127}$'
                               THEN 'does not match [a-z0-9][a-z0-9._-]{0,127}' END),
                ('/payload', CASE WHEN strpos(payload::text, '\u0000') > 0
                                   AND payload::text ~ '(^|[^\\])(\\\\)*\\u0000'
                                  THEN 'contains the character U+0000, which no text may have'
                                  ELSE duly.payload_reason(payload) END),
                ('/run_at', CASE WHEN run_at < now_at - interval '7 days' THEN 'is more than 7 days ago'
                                 WHEN run_at > now_at + interval '3660 days' THEN 'is more than 3660 days ahead'
                            END),
                ('/delay_s', CASE WHEN delay_s NOT BETWEEN 0 AND 3660 * 86400
                                  THEN 'is not from 0 to 316224000'
                                  WHEN delay_s IS NOT NULL AND run_at IS NOT NULL
                                  THEN 'give run_at or delay_s, not both' END),
                ('/start_by', CASE WHEN start_by <= now_at THEN 'has passed already'
                                   WHEN start_by >= '9999-12-31 00:00Z' THEN 'is after the year 9999' END),
                ('/priority', duly.number_reason(options -> 'priority', 0, 9, true)),
                ('/timeout_s', duly.number_reason(options -> 'timeout_s', 0.1, 86400, false)),
                ('/jitter_s', duly.number_reason(options -> 'jitter_s', 0, 86400, false)),
                ('/idempotency_key', duly.idempotency_key_reason(options -> 'idempotency_key')),
                ('/concurrency_key', duly.text_reason(options -> 'concurrency_key', 255)),
                ('/concurrency_limit', CASE
                    WHEN options ? 'concurrency_limit' AND NOT options ? 'concurrency_key'
                    THEN 'needs a concurrency_key'
                    ELSE duly.number_reason(options -> 'concurrency_limit', 1, 10000, true) END),
                ('/tags', duly.entries_reason(options -> 'tags', 32, '', 64, 256))
                ) AS checks(pointer, reason)
             UNION ALL SELECT * FROM duly.target_problems(options -> 'target')
             UNION ALL SELECT * FROM duly.retry_problems(options -> 'retry')
             UNION ALL SELECT * FROM duly.unknown_members(options, '', ARRAY[
                'target', 'priority', 'retry', 'timeout_s', 'jitter_s', 'concurrency_key',
                'concurrency_limit', 'idempotency_key', 'tags'])
          ) AS found(pointer, reason)
         WHERE found.reason IS NOT NULL);
END
$_$;

CREATE FUNCTION duly.submit_task(tenant text, type text, payload json DEFAULT 'null'::json, run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, delay_s double precision DEFAULT NULL::double precision, start_by timestamp with time zone DEFAULT NULL::timestamp with time zone, options jsonb DEFAULT '{}'::jsonb, notify boolean DEFAULT true) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog'
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
    problems := duly.submission_problems(submit_task.type, content, submit_task.run_at, submit_task.delay_s,
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
    -- The submitter allowed jitter; the id stays where the task was asked for.
    fires_at := fires_at + make_interval(secs => random() * coalesce((used -> 'jitter_s')::float8, 0));
    fires_at := duly.store_task(task_id, owner.id, shard, pool, submit_task.type, content, fires_at,
                                submit_task.start_by, used);
    -- Further away it is found by loading; a lost hint costs time, never a task.
    IF notify AND fires_at <= duly.now() + interval '10 seconds' THEN
        PERFORM pg_notify('duly_doorbell', format(
            '[%s,%s,%s,"%s"]', owner.id, shard,
            duly.timer_queue(pool, coalesce((used ->> 'priority')::numeric, 5)::smallint),
            duly.instant_text(fires_at)));
    END IF;
    RETURN task_id;
END
$$;

CREATE FUNCTION duly.target_problems(target jsonb) RETURNS TABLE(pointer text, reason text)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT checks.pointer,
     checks.reason
    FROM ( VALUES ('/target'::text,
                 CASE
                     WHEN (jsonb_typeof(target_problems.target) <> 'object'::text) THEN 'is not an object'::text
                     WHEN (((target_problems.target ->> 'url'::text) IS NOT NULL) AND ((target_problems.target ->> 'pool'::text) IS NOT NULL)) THEN 'is a url or a pool, not both'::text
                     ELSE NULL::text
                 END), ('/target/url'::text,duly.text_reason(NULLIF((target_problems.target -> 'url'::text), 'null'::jsonb), 2048)), ('/target/pool'::text,
                 CASE
                     WHEN (((target_problems.target -> 'pool'::text) <> 'null'::jsonb) AND ((jsonb_typeof((target_problems.target -> 'pool'::text)) <> 'string'::text) OR ((target_problems.target ->> 'pool'::text) !~ '^[a-z0-9][a-z0-9._-]{0,63}$'::text))) THEN 'does not match [a-z0-9][a-z0-9._-]{0,63}'::text
                     ELSE NULL::text
                 END), ('/target/headers'::text,
                 CASE
                     WHEN (((target_problems.target ->> 'url'::text) IS NULL) AND ((target_problems.target -> 'headers'::text) <> '{}'::jsonb)) THEN 'belong to a url'::text
                     ELSE NULL::text
                 END), ('/target/headers'::text,COALESCE(duly.entries_reason((target_problems.target -> 'headers'::text), 32, '^[A-Za-z0-9][A-Za-z0-9-]{0,63}$'::text, 64, 1024), duly.reserved_reason((target_problems.target -> 'headers'::text))))) checks(pointer, reason)
 UNION ALL
  SELECT unknown.pointer,
     unknown.reason
    FROM duly.unknown_members(target_problems.target, '/target'::text, ARRAY['url'::text, 'pool'::text, 'headers'::text]) unknown(pointer, reason);
END;

CREATE FUNCTION duly.task_type_schema(tenant text, type text) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    RETURN (SELECT kinds.schema
              FROM duly.tenants
              JOIN duly.task_types AS kinds ON kinds.tenant = tenants.id
             WHERE tenants.name = task_type_schema.tenant AND kinds.name = task_type_schema.type);
END
$$;

CREATE FUNCTION duly.tenant_lane_depth(lane_pool smallint, lane_band smallint, most integer) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog'
    AS $$
BEGIN
    RETURN (SELECT count(*)
              FROM (SELECT FROM duly.ready_tickets
                     WHERE tenant = CASE WHEN lane_pool = 0 THEN 0 ELSE duly.current_tenant() END
                       AND pool = lane_pool
                       AND band = lane_band
                       AND coalesce(task_tenant, tenant) = duly.current_tenant()
                     LIMIT most) AS counted);
END
$$;

CREATE FUNCTION duly.timer_queue(pool smallint, priority smallint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (((1 + (pool * 3)) + CASE WHEN (priority >= 7) THEN 0 WHEN (priority >= 3) THEN 1 ELSE 2 END))::smallint;

CREATE FUNCTION duly.tokens_granted(tokens double precision, burst double precision, need double precision, wanted double precision, slice double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (tokens < need) THEN (0)::double precision ELSE GREATEST(LEAST(tokens, wanted), LEAST(slice, (tokens - (burst / (2)::double precision)))) END;

CREATE FUNCTION duly.workflow_end(stop_reason text, failed bigint, cancelled bigint, skipped bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (((failed + cancelled) + skipped) = 0) THEN 'COMPLETED'::text WHEN (stop_reason = 'cancelled'::text) THEN 'CANCELLED'::text WHEN ((stop_reason IS NOT NULL) OR (failed > 0)) THEN 'FAILED'::text WHEN (cancelled > 0) THEN 'CANCELLED'::text ELSE 'COMPLETED'::text END;

CREATE FUNCTION duly.workflow_ended(ended_ids uuid[]) RETURNS TABLE(id uuid, tenant integer, shard smallint, queue smallint, fence integer, due_at timestamp with time zone, priority smallint, type text, concurrency_key text, concurrency_limit integer, host text)
    LANGUAGE plpgsql STRICT
    SET search_path TO 'pg_catalog'
    AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM duly.workflow_timers
     USING unnest(ended_ids) AS asked(id)
     WHERE workflow_timers.shard = duly.shard_of(asked.id)
       AND workflow_timers.workflow = asked.id;
    -- A look at a workflow that has not ended yet may be under way: it is done again.
    RETURN QUERY
    INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at)
    SELECT told.shard, workflows.tenant, told.workflow, told.kind, told.node, duly.now()
      FROM unnest(ended_ids) AS asked(id)
      JOIN duly.workflows
        ON workflows.shard = duly.shard_of(asked.id) AND workflows.id = asked.id
     CROSS JOIN LATERAL (
           SELECT workflows.shard, workflows.id AS workflow, 'callback' AS kind, 0 AS node
            WHERE workflows.callback IS NOT NULL
            UNION ALL
           SELECT workflows.shard, workflows.id, 'next', 0 WHERE workflows.next_workflow IS NOT NULL
            UNION ALL
           SELECT duly.shard_of(workflows.parent_node), duly.workflow_of(workflows.parent_node),
                  'child', duly.node_number(workflows.parent_node)
            WHERE workflows.parent_node IS NOT NULL) AS told
        ON CONFLICT (shard, workflow, kind, node) DO UPDATE
       SET due_at = least(held.due_at, excluded.due_at), fence = held.fence + 1
 RETURNING held.workflow, held.tenant, held.shard, NULL::smallint, NULL::integer, held.due_at,
           NULL::smallint, NULL, NULL, NULL::integer, NULL;
END
$$;

CREATE FUNCTION duly.workflow_of(id uuid) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (("left"((id)::text, 30) || '000000'::text))::uuid;

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
    request_rate double precision,
    CONSTRAINT api_keys_check CHECK (((secret_hash IS NULL) <> (signing_secret IS NULL))),
    CONSTRAINT api_keys_check1 CHECK (((reach = 'tenant'::text) OR (role = ANY (ARRAY['viewer'::text, 'operator'::text, 'admin'::text])))),
    CONSTRAINT api_keys_reach_check CHECK ((reach = ANY (ARRAY['tenant'::text, 'installation'::text]))),
    CONSTRAINT api_keys_request_rate_check CHECK ((request_rate > (0)::double precision)),
    CONSTRAINT api_keys_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'producer'::text, 'worker'::text, 'operator'::text, 'admin'::text])))
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
    run_at timestamp with time zone,
    CONSTRAINT attempts_charged_check CHECK ((charged >= 0)),
    CONSTRAINT attempts_check CHECK (((outcome <> 'completed'::text) OR (state = 'COMPLETED'::text))),
    CONSTRAINT attempts_check1 CHECK ((ended_at >= started_at)),
    CONSTRAINT attempts_outcome_check CHECK ((outcome = ANY (ARRAY['completed'::text, 'failed'::text, 'rejected'::text, 'cancelled'::text, 'released'::text, 'snoozed'::text, 'lease_lost'::text, 'expired'::text, 'skipped'::text]))),
    CONSTRAINT attempts_state_check CHECK ((state = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'SKIPPED'::text])))
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
    reason text NOT NULL,
    ramp_at timestamp with time zone
);

ALTER TABLE ONLY duly.breakers FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.bulk_operations (
    tenant integer NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    failures smallint DEFAULT 0 NOT NULL,
    canary integer,
    matched bigint NOT NULL,
    done bigint DEFAULT 0 NOT NULL,
    refused bigint DEFAULT 0 NOT NULL,
    rate_per_s double precision NOT NULL,
    delay_s double precision,
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    has_more boolean NOT NULL,
    action text NOT NULL,
    state text DEFAULT 'RUNNING'::text NOT NULL,
    filter text NOT NULL,
    sample text NOT NULL,
    actor text NOT NULL,
    "position" text,
    error text,
    CONSTRAINT bulk_operations_action_check CHECK ((action = ANY (ARRAY['cancel'::text, 'replay'::text, 'reschedule'::text, 'run_now'::text, 'purge'::text, 'cancel_workflows'::text, 'pause_workflows'::text, 'unpause_workflows'::text, 'resume_workflows'::text]))),
    CONSTRAINT bulk_operations_check CHECK (((ended_at IS NULL) = (state = ANY (ARRAY['RUNNING'::text, 'PAUSED_AFTER_CANARY'::text])))),
    CONSTRAINT bulk_operations_rate_per_s_check CHECK ((rate_per_s > (0)::double precision)),
    CONSTRAINT bulk_operations_state_check CHECK ((state = ANY (ARRAY['RUNNING'::text, 'PAUSED_AFTER_CANARY'::text, 'DONE'::text, 'STOPPED'::text, 'FAILED'::text])))
);

ALTER TABLE ONLY duly.bulk_operations FORCE ROW LEVEL SECURITY;

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
    CONSTRAINT dead_letters_reason_check CHECK ((reason = ANY (ARRAY['exhausted'::text, 'rejected'::text, 'non_retryable'::text, 'expired'::text, 'poison'::text, 'items_failed'::text, 'invalid_items'::text, 'workflow_failed'::text])))
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

CREATE TABLE duly.installation_secrets (
    name text NOT NULL,
    secret bytea NOT NULL,
    CONSTRAINT installation_secrets_secret_check CHECK ((length(secret) >= 32))
);

CREATE TABLE duly.lease_expiry_batches (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    number bigint NOT NULL,
    ids uuid[] NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.1', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY duly.lease_expiry_batches ALTER COLUMN ids SET STORAGE MAIN;

ALTER TABLE ONLY duly.lease_expiry_batches FORCE ROW LEVEL SECURITY;

ALTER TABLE duly.lease_expiry_batches ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duly.lease_expiry_batches_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duly.log_usage (
    tenant integer NOT NULL,
    day date NOT NULL,
    bytes bigint NOT NULL,
    CONSTRAINT log_usage_bytes_check CHECK ((bytes >= 0))
);

ALTER TABLE ONLY duly.log_usage FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.migrations (
    number integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE duly.new_placements (
    tenant integer NOT NULL,
    shard smallint NOT NULL,
    queue smallint NOT NULL
);

CREATE TABLE duly.nodes (
    id uuid NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    roles text[] NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    failing jsonb DEFAULT '{}'::jsonb NOT NULL,
    carrier jsonb
);

CREATE TABLE duly.nonces (
    key_id text NOT NULL,
    nonce text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

CREATE TABLE duly.notification_events (
    number bigint NOT NULL,
    tenant integer NOT NULL,
    at timestamp with time zone NOT NULL,
    notification text NOT NULL,
    event text NOT NULL,
    facts text NOT NULL,
    CONSTRAINT notification_events_event_check CHECK ((event = ANY (ARRAY['dead_letter'::text, 'missed_schedule'::text, 'lag'::text, 'failures'::text])))
);

ALTER TABLE ONLY duly.notification_events FORCE ROW LEVEL SECURITY;

ALTER TABLE duly.notification_events ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME duly.notification_events_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE duly.notifications (
    tenant integer NOT NULL,
    per_minute smallint NOT NULL,
    sent smallint DEFAULT 0 NOT NULL,
    on_dead_letters boolean NOT NULL,
    on_missed_schedules boolean NOT NULL,
    lag_s double precision,
    failures_per_minute double precision,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    minute timestamp with time zone NOT NULL,
    lag_since timestamp with time zone,
    failing_since timestamp with time zone,
    name text NOT NULL,
    created_by text NOT NULL,
    url text NOT NULL,
    headers text,
    held text,
    CONSTRAINT notifications_failures_per_minute_check CHECK ((failures_per_minute > (0)::double precision)),
    CONSTRAINT notifications_lag_s_check CHECK ((lag_s > (0)::double precision)),
    CONSTRAINT notifications_per_minute_check CHECK ((per_minute > 0))
);

ALTER TABLE ONLY duly.notifications FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.occurrences (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    schedule uuid NOT NULL,
    nominal_at timestamp with time zone NOT NULL,
    decided_at timestamp with time zone NOT NULL,
    late_s real NOT NULL,
    verdict text NOT NULL,
    task uuid,
    CONSTRAINT occurrences_check CHECK (((task IS NOT NULL) = (verdict = ANY (ARRAY['FIRED'::text, 'LATE'::text, 'TRIGGERED'::text, 'BACKFILLED'::text])))),
    CONSTRAINT occurrences_verdict_check CHECK ((verdict = ANY (ARRAY['FIRED'::text, 'LATE'::text, 'COALESCED'::text, 'SKIPPED_MISFIRE'::text, 'SKIPPED_DST'::text, 'SKIPPED_OVERLAP'::text, 'SKIPPED_PAUSED'::text, 'EXCLUDED'::text, 'TRIGGERED'::text, 'BACKFILLED'::text])))
);

ALTER TABLE ONLY duly.occurrences FORCE ROW LEVEL SECURITY;

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
    queue smallint NOT NULL
);

ALTER TABLE ONLY duly.placements FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.pools (
    tenant integer NOT NULL,
    number smallint NOT NULL,
    name text NOT NULL,
    CONSTRAINT pools_number_check CHECK (((number >= 1) AND (number <= 10000)))
);

ALTER TABLE ONLY duly.pools FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.rate_levels (
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
    sequence bigint DEFAULT ((EXTRACT(epoch FROM clock_timestamp()) * (1000000)::numeric))::bigint NOT NULL,
    id uuid NOT NULL,
    deadline timestamp with time zone NOT NULL,
    fires_at double precision,
    task_tenant integer
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

CREATE TABLE duly.remembered_calls (
    tenant integer NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    status smallint NOT NULL,
    answer text NOT NULL,
    expires_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY duly.remembered_calls FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.request_tokens (
    key_id text NOT NULL,
    tokens double precision NOT NULL,
    granted double precision NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT request_tokens_granted_check CHECK ((granted >= (0)::double precision)),
    CONSTRAINT request_tokens_tokens_check CHECK ((tokens >= (0)::double precision))
)
WITH (fillfactor='50', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE duly.schedule_timers (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    fence integer DEFAULT 0 NOT NULL,
    fires integer DEFAULT 0 NOT NULL,
    id uuid NOT NULL,
    cursor_at timestamp with time zone NOT NULL,
    nominal_at timestamp with time zone,
    due_at timestamp with time zone,
    running uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    CONSTRAINT schedule_timers_check CHECK (((nominal_at IS NULL) = (due_at IS NULL))),
    CONSTRAINT schedule_timers_check1 CHECK ((nominal_at > cursor_at))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY duly.schedule_timers FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.schedules (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    id uuid NOT NULL,
    name text NOT NULL,
    cron text,
    every_s integer,
    timezone text NOT NULL,
    dst_gap text NOT NULL,
    dst_repeat text NOT NULL,
    misfire text NOT NULL,
    misfire_window_s double precision NOT NULL,
    overlap text NOT NULL,
    max_running integer,
    jitter_s double precision NOT NULL,
    start_at timestamp with time zone,
    end_at timestamp with time zone,
    max_fires integer,
    exclude_dates date[] NOT NULL,
    type text NOT NULL,
    task text NOT NULL,
    template text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    anchor_at timestamp with time zone NOT NULL,
    paused_at timestamp with time zone,
    paused_by text,
    pause_reason text,
    CONSTRAINT schedules_check CHECK (((cron IS NULL) <> (every_s IS NULL))),
    CONSTRAINT schedules_check1 CHECK (((paused_at IS NULL) = (paused_by IS NULL))),
    CONSTRAINT schedules_check2 CHECK (((paused_at IS NULL) = (pause_reason IS NULL))),
    CONSTRAINT schedules_dst_gap_check CHECK ((dst_gap = ANY (ARRAY['shift'::text, 'skip'::text]))),
    CONSTRAINT schedules_dst_repeat_check CHECK ((dst_repeat = ANY (ARRAY['first'::text, 'second'::text, 'both'::text]))),
    CONSTRAINT schedules_misfire_check CHECK ((misfire = ANY (ARRAY['fire_all'::text, 'coalesce'::text, 'skip'::text]))),
    CONSTRAINT schedules_overlap_check CHECK ((overlap = ANY (ARRAY['allow'::text, 'skip'::text, 'queue_one'::text, 'cancel_previous'::text])))
);

ALTER TABLE ONLY duly.schedules FORCE ROW LEVEL SECURITY;

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

CREATE TABLE duly.submit_throttles (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    key text NOT NULL,
    next_at timestamp with time zone NOT NULL
);

CREATE TABLE duly.submit_tokens (
    tenant integer NOT NULL,
    tokens double precision NOT NULL,
    granted double precision NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    CONSTRAINT submit_tokens_granted_check CHECK ((granted >= (0)::double precision)),
    CONSTRAINT submit_tokens_tokens_check CHECK ((tokens >= (0)::double precision))
)
WITH (fillfactor='50', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

CREATE TABLE duly.task_logs (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    fence integer NOT NULL,
    seq smallint NOT NULL,
    id uuid NOT NULL,
    at timestamp with time zone NOT NULL,
    lines text NOT NULL,
    CONSTRAINT task_logs_seq_check CHECK ((seq >= 0))
);

ALTER TABLE ONLY duly.task_logs FORCE ROW LEVEL SECURITY;

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
    traceparent text,
    CONSTRAINT tasks_priority_check CHECK (((priority >= 0) AND (priority <= 9))),
    CONSTRAINT tasks_shard_check CHECK (((shard >= 0) AND (shard <= 1023))),
    CONSTRAINT tasks_traceparent_check CHECK ((length(traceparent) = 55))
)
PARTITION BY RANGE (id);

ALTER TABLE ONLY duly.tasks FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.tenants (
    id integer NOT NULL,
    name text NOT NULL,
    weight double precision DEFAULT 1 NOT NULL,
    in_flight_max integer,
    dispatch_rate double precision,
    dispatch_burst double precision,
    spread smallint DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    submit_rate double precision,
    submit_burst double precision,
    stored_max bigint,
    schedule_s_min integer DEFAULT 1 NOT NULL,
    suspended_at timestamp with time zone,
    CONSTRAINT tenants_dispatch_burst_check CHECK ((dispatch_burst >= (1)::double precision)),
    CONSTRAINT tenants_dispatch_rate_check CHECK ((dispatch_rate > (0)::double precision)),
    CONSTRAINT tenants_in_flight_max_check CHECK ((in_flight_max > 0)),
    CONSTRAINT tenants_schedule_s_min_check CHECK (((schedule_s_min >= 1) AND (schedule_s_min <= 86400))),
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
    queue smallint NOT NULL,
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
    run_at timestamp with time zone,
    wait_rule smallint,
    parents_pending integer,
    parents_completed integer,
    parents_failed integer,
    parents_skipped integer,
    items_mark integer,
    items_failed_max integer,
    held_due_at timestamp with time zone,
    CONSTRAINT timers_check CHECK (((holder IS NULL) = (lease_until IS NULL))),
    CONSTRAINT timers_check2 CHECK (((holder IS NOT NULL) OR (NOT cancel_requested))),
    CONSTRAINT timers_queue_0_is_leased CHECK (((holder IS NOT NULL) OR (queue <> 0)))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_scale_factor='0.2', autovacuum_analyze_scale_factor='0.2', autovacuum_vacuum_cost_delay='0', fillfactor='43', vacuum_truncate='false');

ALTER TABLE ONLY duly.timers FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.tombstones (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    id uuid NOT NULL,
    purged_at timestamp with time zone NOT NULL,
    actor text NOT NULL
);

ALTER TABLE ONLY duly.tombstones FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.webhook_secrets (
    tenant integer NOT NULL,
    id text NOT NULL,
    secret bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    created_by text NOT NULL,
    expires_at timestamp with time zone
);

ALTER TABLE ONLY duly.webhook_secrets FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.worker_history (
    tenant integer NOT NULL,
    holder uuid NOT NULL,
    id text NOT NULL,
    sdk text NOT NULL,
    version text NOT NULL,
    pools text[] NOT NULL,
    slots integer NOT NULL,
    first_seen_at timestamp with time zone NOT NULL,
    last_seen_at timestamp with time zone NOT NULL,
    completed bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    lost bigint DEFAULT 0 NOT NULL,
    other bigint DEFAULT 0 NOT NULL,
    busy_s double precision DEFAULT 0 NOT NULL,
    CONSTRAINT worker_history_slots_check CHECK ((slots >= 0))
)
WITH (fillfactor='70');

ALTER TABLE ONLY duly.worker_history FORCE ROW LEVEL SECURITY;

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

CREATE TABLE duly.workflow_map_pages (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    node integer NOT NULL,
    first_index integer NOT NULL,
    items integer NOT NULL,
    workflow uuid NOT NULL,
    content text NOT NULL,
    CONSTRAINT workflow_map_pages_items_check CHECK ((items > 0))
);

ALTER TABLE ONLY duly.workflow_map_pages FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workflow_maps (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    node integer NOT NULL,
    made integer DEFAULT 0 NOT NULL,
    handed integer DEFAULT 0 NOT NULL,
    total integer,
    workflow uuid NOT NULL,
    earlier uuid,
    reason text,
    detail text,
    CONSTRAINT workflow_maps_check CHECK ((made <= COALESCE(total, handed)))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY duly.workflow_maps FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workflow_nodes (
    shard smallint NOT NULL,
    wait_rule smallint NOT NULL,
    tenant integer NOT NULL,
    id uuid NOT NULL,
    delay_ms bigint NOT NULL,
    name text NOT NULL,
    parents integer[] NOT NULL,
    children integer[] NOT NULL,
    kind smallint DEFAULT 0 NOT NULL,
    is_step boolean DEFAULT false NOT NULL,
    map_number integer,
    map_index integer,
    compensates integer,
    source uuid,
    spec text,
    CONSTRAINT workflow_nodes_check CHECK (((map_number IS NULL) = (map_index IS NULL))),
    CONSTRAINT workflow_nodes_check1 CHECK (((kind = 0) OR is_step)),
    CONSTRAINT workflow_nodes_kind_check CHECK (((kind >= 0) AND (kind <= 3))),
    CONSTRAINT workflow_nodes_wait_rule_check CHECK (((wait_rule >= 0) AND (wait_rule <= 4)))
);

ALTER TABLE ONLY duly.workflow_nodes FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workflow_signals (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    number integer NOT NULL,
    consumed_by integer,
    workflow uuid NOT NULL,
    received_at timestamp with time zone NOT NULL,
    consumed_at timestamp with time zone,
    name text NOT NULL,
    sender text NOT NULL,
    access text NOT NULL,
    payload text,
    idempotency_key text,
    request_hash bytea,
    CONSTRAINT workflow_signals_check CHECK (((consumed_by IS NULL) = (consumed_at IS NULL)))
);

ALTER TABLE ONLY duly.workflow_signals FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workflow_timers (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    fence integer DEFAULT 0 NOT NULL,
    node integer DEFAULT 0 NOT NULL,
    workflow uuid NOT NULL,
    due_at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    cursor text,
    tries smallint DEFAULT 0 NOT NULL,
    CONSTRAINT workflow_timers_kind_check CHECK ((kind = ANY (ARRAY['deadline'::text, 'cancel'::text, 'cascade'::text, 'callback'::text, 'step'::text, 'map'::text, 'wait'::text, 'compensate'::text, 'child'::text, 'stop'::text, 'resume'::text, 'next'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY duly.workflow_timers FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workflow_types (
    tenant integer NOT NULL,
    version integer NOT NULL,
    nodes integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    name text NOT NULL,
    digest bytea NOT NULL,
    definition text NOT NULL,
    template text NOT NULL,
    CONSTRAINT workflow_types_version_check CHECK ((version > 0))
);

ALTER TABLE ONLY duly.workflow_types FORCE ROW LEVEL SECURITY;

CREATE TABLE duly.workflows (
    shard smallint NOT NULL,
    tenant integer NOT NULL,
    nodes integer NOT NULL,
    edges integer NOT NULL,
    live integer NOT NULL,
    completed integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    skipped integer DEFAULT 0 NOT NULL,
    cancelled integer DEFAULT 0 NOT NULL,
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    deadline_at timestamp with time zone,
    ended_at timestamp with time zone,
    name text NOT NULL,
    on_failure text NOT NULL,
    state text,
    stop_reason text,
    callback text,
    tags jsonb,
    generated integer DEFAULT 0 NOT NULL,
    items_failed integer DEFAULT 0 NOT NULL,
    items_cancelled integer DEFAULT 0 NOT NULL,
    compensated integer DEFAULT 0 NOT NULL,
    compensations_failed integer DEFAULT 0 NOT NULL,
    depth smallint DEFAULT 0 NOT NULL,
    type_version integer,
    paused_at timestamp with time zone,
    compensating_at timestamp with time zone,
    resumed_from uuid,
    resumed_at timestamp with time zone,
    root uuid,
    parent_node uuid,
    next_workflow uuid,
    paused_by text,
    type text,
    CONSTRAINT workflows_check CHECK ((nodes = ((((live + completed) + failed) + skipped) + cancelled))),
    CONSTRAINT workflows_check1 CHECK ((((ended_at IS NULL) OR (live = 0)) AND ((live > 0) OR (ended_at IS NOT NULL) OR (compensating_at IS NOT NULL)))),
    CONSTRAINT workflows_check2 CHECK (((state IS NULL) = (ended_at IS NULL))),
    CONSTRAINT workflows_live_check CHECK ((live >= 0)),
    CONSTRAINT workflows_on_failure_check CHECK ((on_failure = ANY (ARRAY['finish_branches'::text, 'stop'::text, 'compensate'::text]))),
    CONSTRAINT workflows_state_check CHECK ((state = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text]))),
    CONSTRAINT workflows_stop_reason_check CHECK ((stop_reason = ANY (ARRAY['cancelled'::text, 'failure'::text, 'deadline'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');

ALTER TABLE ONLY duly.workflows FORCE ROW LEVEL SECURITY;

ALTER TABLE ONLY duly.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duly.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (shard, id, fence);

ALTER TABLE ONLY duly.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duly.breakers
    ADD CONSTRAINT breakers_pkey PRIMARY KEY (tenant, host);

ALTER TABLE ONLY duly.bulk_operations
    ADD CONSTRAINT bulk_operations_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duly.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (shard, tenant, key);

ALTER TABLE ONLY duly.installation_secrets
    ADD CONSTRAINT installation_secrets_pkey PRIMARY KEY (name);

ALTER TABLE ONLY duly.lease_expiry_batches
    ADD CONSTRAINT lease_expiry_batches_pkey PRIMARY KEY (tenant, shard, expires_at, number);

ALTER TABLE ONLY duly.log_usage
    ADD CONSTRAINT log_usage_pkey PRIMARY KEY (tenant, day);

ALTER TABLE ONLY duly.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (number);

ALTER TABLE ONLY duly.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY duly.nonces
    ADD CONSTRAINT nonces_pkey PRIMARY KEY (key_id, nonce);

ALTER TABLE ONLY duly.notification_events
    ADD CONSTRAINT notification_events_pkey PRIMARY KEY (tenant, notification, number);

ALTER TABLE ONLY duly.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (tenant, name);

ALTER TABLE ONLY duly.occurrences
    ADD CONSTRAINT occurrences_pkey PRIMARY KEY (shard, schedule, nominal_at);

ALTER TABLE ONLY duly.ownership
    ADD CONSTRAINT ownership_pkey PRIMARY KEY (kind, number);

ALTER TABLE ONLY duly.pauses
    ADD CONSTRAINT pauses_pkey PRIMARY KEY (tenant, kind, name);

ALTER TABLE ONLY duly.placements
    ADD CONSTRAINT placements_pkey PRIMARY KEY (tenant, shard, queue);

ALTER TABLE ONLY duly.pools
    ADD CONSTRAINT pools_pkey PRIMARY KEY (tenant, number);

ALTER TABLE ONLY duly.pools
    ADD CONSTRAINT pools_tenant_name_key UNIQUE (tenant, name);

ALTER TABLE ONLY duly.rate_levels
    ADD CONSTRAINT rate_levels_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY duly.remembered_calls
    ADD CONSTRAINT remembered_calls_pkey PRIMARY KEY (tenant, key);

ALTER TABLE ONLY duly.request_tokens
    ADD CONSTRAINT request_tokens_pkey PRIMARY KEY (key_id);

ALTER TABLE ONLY duly.schedule_timers
    ADD CONSTRAINT schedule_timers_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.schedules
    ADD CONSTRAINT schedules_shard_tenant_name_key UNIQUE (shard, tenant, name);

ALTER TABLE ONLY duly.stats
    ADD CONSTRAINT stats_pkey PRIMARY KEY (tenant, type, minute);

ALTER TABLE ONLY duly.submit_throttles
    ADD CONSTRAINT submit_throttles_pkey PRIMARY KEY (shard, tenant, key);

ALTER TABLE ONLY duly.submit_tokens
    ADD CONSTRAINT submit_tokens_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY duly.task_logs
    ADD CONSTRAINT task_logs_pkey PRIMARY KEY (shard, id, fence, seq);

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

ALTER TABLE ONLY duly.webhook_secrets
    ADD CONSTRAINT webhook_secrets_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duly.worker_history
    ADD CONSTRAINT worker_history_pkey PRIMARY KEY (tenant, holder);

ALTER TABLE ONLY duly.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (tenant, id);

ALTER TABLE ONLY duly.workflow_map_pages
    ADD CONSTRAINT workflow_map_pages_pkey PRIMARY KEY (shard, workflow, node, first_index);

ALTER TABLE ONLY duly.workflow_maps
    ADD CONSTRAINT workflow_maps_pkey PRIMARY KEY (shard, workflow, node);

ALTER TABLE ONLY duly.workflow_nodes
    ADD CONSTRAINT workflow_nodes_pkey PRIMARY KEY (shard, id);

ALTER TABLE ONLY duly.workflow_signals
    ADD CONSTRAINT workflow_signals_pkey PRIMARY KEY (shard, workflow, number);

ALTER TABLE ONLY duly.workflow_timers
    ADD CONSTRAINT workflow_timers_pkey PRIMARY KEY (shard, workflow, kind, node);

ALTER TABLE ONLY duly.workflow_types
    ADD CONSTRAINT workflow_types_pkey PRIMARY KEY (tenant, name, version);

ALTER TABLE ONLY duly.workflows
    ADD CONSTRAINT workflows_pkey PRIMARY KEY (shard, id);

CREATE INDEX api_keys_of_tenant ON duly.api_keys USING btree (tenant, id);

CREATE INDEX bulk_operations_due ON duly.bulk_operations USING btree (due_at) WHERE (state = 'RUNNING'::text);

CREATE INDEX bulk_operations_ended ON duly.bulk_operations USING btree (ended_at) WHERE (ended_at IS NOT NULL);

CREATE INDEX dead_letters_of_tenant ON duly.dead_letters USING btree (tenant, failed_at, id);

CREATE INDEX idempotency_keys_expiry ON duly.idempotency_keys USING btree (expires_at);

CREATE INDEX nonces_expiry ON duly.nonces USING btree (expires_at);

CREATE INDEX occurrences_decided ON duly.occurrences USING brin (decided_at);

CREATE INDEX ready_tickets_lane ON duly.ready_tickets USING btree (tenant, pool, band, sequence);

CREATE INDEX remembered_calls_expiry ON duly.remembered_calls USING btree (expires_at);

CREATE INDEX schedule_timers_due ON duly.schedule_timers USING btree (shard, due_at, id);

CREATE INDEX schedules_of_tenant ON duly.schedules USING btree (tenant, id);

CREATE INDEX stats_by_minute ON duly.stats USING btree (minute, tenant, type);

CREATE INDEX submit_throttles_expiry ON duly.submit_throttles USING btree (next_at);

CREATE INDEX task_logs_by_time ON duly.task_logs USING brin (at);

CREATE INDEX tasks_by_creation ON ONLY duly.tasks USING btree (tenant, created_at, id);

CREATE INDEX timers_due ON duly.timers USING btree (tenant, shard, queue, due_at, id) WHERE (tenant > 0);

CREATE INDEX worker_history_by_time ON duly.worker_history USING btree (tenant, last_seen_at, holder);

CREATE UNIQUE INDEX workflow_nodes_compensating ON duly.workflow_nodes USING btree (shard, duly.workflow_of(id), compensates) WHERE (compensates IS NOT NULL);

CREATE UNIQUE INDEX workflow_nodes_of_map ON duly.workflow_nodes USING btree (shard, duly.workflow_of(id), map_number, map_index) WHERE (map_number IS NOT NULL);

CREATE INDEX workflow_nodes_of_signal ON duly.workflow_nodes USING btree (shard, duly.workflow_of(id), (((spec)::jsonb #>> '{wait,signal}'::text[]))) WHERE (kind = 2);

CREATE INDEX workflow_signals_kept ON duly.workflow_signals USING btree (shard, workflow, name, number) WHERE (consumed_by IS NULL);

CREATE UNIQUE INDEX workflow_signals_keyed ON duly.workflow_signals USING btree (shard, workflow, idempotency_key) WHERE (idempotency_key IS NOT NULL);

CREATE INDEX workflow_timers_due ON duly.workflow_timers USING btree (due_at, shard);

CREATE INDEX workflows_ended ON duly.workflows USING btree (ended_at) WHERE (ended_at IS NOT NULL);

CREATE INDEX workflows_living ON duly.workflows USING btree (created_at) WHERE (ended_at IS NULL);

CREATE INDEX workflows_of_root ON duly.workflows USING btree (shard, root) WHERE (root IS NOT NULL);

CREATE INDEX workflows_of_tenant ON duly.workflows USING btree (tenant, id);

CREATE UNIQUE INDEX workflows_resumed ON duly.workflows USING btree (shard, root) WHERE ((root IS NOT NULL) AND (ended_at IS NULL));

CREATE INDEX workflows_within ON duly.workflows USING btree (shard, parent_node) WHERE (parent_node IS NOT NULL);

CREATE TRIGGER audit_is_append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON duly.audit FOR EACH STATEMENT EXECUTE FUNCTION duly.refuse_change();

CREATE CONSTRAINT TRIGGER publish_at_commit AFTER INSERT ON duly.new_placements DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION duly.publish_placements();

ALTER TABLE ONLY duly.request_tokens
    ADD CONSTRAINT request_tokens_key_id_fkey FOREIGN KEY (key_id) REFERENCES duly.api_keys(id) ON DELETE CASCADE;

ALTER TABLE duly.api_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.attempts ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.audit ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.breakers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.bulk_operations ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.dead_letters ENABLE ROW LEVEL SECURITY;

CREATE POLICY every_row ON duly.api_keys TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.attempts TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.audit TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.breakers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.bulk_operations TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.dead_letters TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.lease_expiry_batches TO duly_owner, duly_engine USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.log_usage TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.notification_events TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.notifications TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.occurrences TO duly_owner, duly_engine USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.pauses TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.placements TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.pools TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.rate_levels TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.remembered_calls TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.schedule_timers TO duly_owner, duly_engine USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.schedules TO duly_owner, duly_engine USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.stats TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.task_logs TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.task_types TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.tasks TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.tenants TO duly_owner, duly_engine USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.timers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.tombstones TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.webhook_secrets TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.worker_history TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflow_map_pages TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflow_maps TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflow_nodes TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflow_signals TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflow_timers TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflow_types TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

CREATE POLICY every_row ON duly.workflows TO duly_owner, duly_engine, duly_purger USING (true) WITH CHECK (true);

ALTER TABLE duly.lease_expiry_batches ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.log_usage ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.notification_events ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.notifications ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.occurrences ENABLE ROW LEVEL SECURITY;

CREATE POLICY own_rows ON duly.api_keys TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.attempts TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.audit TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.breakers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.bulk_operations TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.dead_letters TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.lease_expiry_batches TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.log_usage TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.notification_events TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.notifications TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.occurrences TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.pauses TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.placements TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.pools TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.rate_levels TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.remembered_calls TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.schedule_timers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.schedules TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.stats TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.task_logs TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.task_types TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.tasks TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.tenants TO duly_tenant USING ((id = duly.current_tenant()));

CREATE POLICY own_rows ON duly.timers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.tombstones TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.webhook_secrets TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.worker_history TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflow_map_pages TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflow_maps TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflow_nodes TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflow_signals TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflow_timers TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflow_types TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

CREATE POLICY own_rows ON duly.workflows TO duly_tenant USING (((tenant + 0) = duly.current_tenant())) WITH CHECK (((tenant + 0) = duly.current_tenant()));

ALTER TABLE duly.pauses ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.placements ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.pools ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.rate_levels ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.remembered_calls ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.schedule_timers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.schedules ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.stats ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.task_logs ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.task_types ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.tasks ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.tenants ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.timers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.tombstones ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.webhook_secrets ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.worker_history ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflow_map_pages ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflow_maps ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflow_nodes ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflow_signals ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflow_timers ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflow_types ENABLE ROW LEVEL SECURITY;

ALTER TABLE duly.workflows ENABLE ROW LEVEL SECURITY;

GRANT USAGE ON SCHEMA duly TO duly_engine;
GRANT USAGE ON SCHEMA duly TO duly_tenant;
GRANT USAGE ON SCHEMA duly TO duly_purger;
GRANT USAGE ON SCHEMA duly TO duly_producer;

REVOKE ALL ON FUNCTION duly.create_partition(parent text, month date) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.create_partition(parent text, month date) TO duly_engine;

REVOKE ALL ON FUNCTION duly.delete_finished(month date, finished_before timestamp with time zone, after_shard smallint, after_id uuid, examine_max integer) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.delete_finished(month date, finished_before timestamp with time zone, after_shard smallint, after_id uuid, examine_max integer) TO duly_engine;

REVOKE ALL ON FUNCTION duly.drop_partition(month date, finished_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.drop_partition(month date, finished_before timestamp with time zone) TO duly_engine;

REVOKE ALL ON FUNCTION duly.lane_depth(lane_pool smallint, lane_band smallint, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.lane_depth(lane_pool smallint, lane_band smallint, most integer) TO duly_tenant;

REVOKE ALL ON FUNCTION duly.publish_placements() FROM PUBLIC;

REVOKE ALL ON FUNCTION duly.rebuild_ready_tickets(seen_filenode oid) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.rebuild_ready_tickets(seen_filenode oid) TO duly_engine;

REVOKE ALL ON FUNCTION duly.submit_task(tenant text, type text, payload json, run_at timestamp with time zone, delay_s double precision, start_by timestamp with time zone, options jsonb, notify boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.submit_task(tenant text, type text, payload json, run_at timestamp with time zone, delay_s double precision, start_by timestamp with time zone, options jsonb, notify boolean) TO duly_producer;
GRANT ALL ON FUNCTION duly.submit_task(tenant text, type text, payload json, run_at timestamp with time zone, delay_s double precision, start_by timestamp with time zone, options jsonb, notify boolean) TO duly_engine;

REVOKE ALL ON FUNCTION duly.task_type_schema(tenant text, type text) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.task_type_schema(tenant text, type text) TO duly_producer;
GRANT ALL ON FUNCTION duly.task_type_schema(tenant text, type text) TO duly_engine;

REVOKE ALL ON FUNCTION duly.tenant_lane_depth(lane_pool smallint, lane_band smallint, most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION duly.tenant_lane_depth(lane_pool smallint, lane_band smallint, most integer) TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.api_keys TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.api_keys TO duly_tenant;

GRANT SELECT,INSERT ON TABLE duly.attempts TO duly_engine;
GRANT SELECT ON TABLE duly.attempts TO duly_purger;
GRANT SELECT,INSERT ON TABLE duly.attempts TO duly_tenant;

GRANT UPDATE(result) ON TABLE duly.attempts TO duly_purger;

GRANT UPDATE(error) ON TABLE duly.attempts TO duly_purger;

GRANT SELECT,INSERT ON TABLE duly.audit TO duly_engine;
GRANT SELECT,INSERT ON TABLE duly.audit TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.breakers TO duly_engine;
GRANT SELECT,DELETE ON TABLE duly.breakers TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.bulk_operations TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.bulk_operations TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.dead_letters TO duly_engine;
GRANT SELECT,DELETE ON TABLE duly.dead_letters TO duly_purger;
GRANT SELECT,DELETE,UPDATE ON TABLE duly.dead_letters TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.idempotency_keys TO duly_engine;

GRANT SELECT ON TABLE duly.installation_secrets TO duly_engine;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.lease_expiry_batches TO duly_engine;
GRANT SELECT ON TABLE duly.lease_expiry_batches TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.log_usage TO duly_engine;
GRANT SELECT ON TABLE duly.log_usage TO duly_tenant;

GRANT SELECT ON TABLE duly.migrations TO duly_engine;
GRANT SELECT ON TABLE duly.migrations TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.nodes TO duly_engine;
GRANT SELECT ON TABLE duly.nodes TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.nonces TO duly_engine;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.notification_events TO duly_engine;
GRANT SELECT,INSERT,DELETE ON TABLE duly.notification_events TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.notifications TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.notifications TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.occurrences TO duly_engine;
GRANT SELECT,INSERT,UPDATE ON TABLE duly.occurrences TO duly_tenant;

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

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.request_tokens TO duly_engine;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.schedule_timers TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.schedule_timers TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.schedules TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.schedules TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.stats TO duly_engine;
GRANT SELECT ON TABLE duly.stats TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.submit_throttles TO duly_engine;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.submit_tokens TO duly_engine;

GRANT SELECT,INSERT,DELETE ON TABLE duly.task_logs TO duly_engine;
GRANT SELECT,DELETE ON TABLE duly.task_logs TO duly_purger;
GRANT SELECT ON TABLE duly.task_logs TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.task_types TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.task_types TO duly_tenant;

GRANT SELECT,INSERT ON TABLE duly.tasks TO duly_engine;
GRANT SELECT ON TABLE duly.tasks TO duly_purger;
GRANT SELECT,INSERT ON TABLE duly.tasks TO duly_tenant;

GRANT UPDATE(payload) ON TABLE duly.tasks TO duly_purger;

GRANT UPDATE(policy) ON TABLE duly.tasks TO duly_purger;

GRANT UPDATE(url) ON TABLE duly.tasks TO duly_purger;

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

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.webhook_secrets TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.webhook_secrets TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.worker_history TO duly_engine;
GRANT SELECT ON TABLE duly.worker_history TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workers TO duly_engine;
GRANT SELECT ON TABLE duly.workers TO duly_tenant;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_map_pages TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_map_pages TO duly_tenant;
GRANT SELECT ON TABLE duly.workflow_map_pages TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_maps TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_maps TO duly_tenant;
GRANT SELECT ON TABLE duly.workflow_maps TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_nodes TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_nodes TO duly_tenant;
GRANT SELECT ON TABLE duly.workflow_nodes TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_signals TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_signals TO duly_tenant;
GRANT SELECT ON TABLE duly.workflow_signals TO duly_purger;

GRANT UPDATE(payload) ON TABLE duly.workflow_signals TO duly_purger;

GRANT UPDATE(idempotency_key) ON TABLE duly.workflow_signals TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_timers TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_timers TO duly_tenant;
GRANT SELECT ON TABLE duly.workflow_timers TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_types TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflow_types TO duly_tenant;
GRANT SELECT ON TABLE duly.workflow_types TO duly_purger;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflows TO duly_engine;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE duly.workflows TO duly_tenant;
GRANT SELECT ON TABLE duly.workflows TO duly_purger;
