-- name: forward
-- What Python knows of a submission, said again in SQL, for producers that submit without it: where a
-- task goes, what is wrong with a request, and how a policy is kept. tests/store/test_twins.py and
-- tests/client hold both against each other.

-- domain/ids.py says the same three.
CREATE FUNCTION duly.tenant_shard(tenant integer, spread integer, choice integer) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (((((tenant::bigint * 2654435761) & 4294967295) >> 22)::integer) # (choice % spread))::smallint;

CREATE FUNCTION duly.key_shard(tenant integer, key text) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog
AS $$
DECLARE
    digest bytea := sha256(convert_to(tenant || ':' || key, 'UTF8'));
BEGIN
    RETURN ((get_byte(digest, 0) << 8 | get_byte(digest, 1)) >> 6)::smallint;
END
$$;

-- The last 64 bits of a random UUID are a variant and 62 random bits already.
CREATE FUNCTION duly.make_task_id(placed timestamptz, shard smallint, random uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(replace(duly.id_bound(placed)::text, '-', ''), 12) || '7'
        || lpad(to_hex((shard::integer << 2) | (get_byte(uuid_send(random), 0) & 3)), 3, '0')
        || right(replace(random::text, '-', ''), 16))::uuid;

-- An object's members that say something; null means the same as not given.
CREATE FUNCTION duly.members_given(object jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT coalesce(jsonb_object_agg(key, value), '{}')
          FROM jsonb_each(object) WHERE value <> 'null');

CREATE FUNCTION duly.number_reason(value jsonb, lowest numeric, highest numeric, is_whole boolean)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NULL THEN NULL
            WHEN jsonb_typeof(value) <> 'number' THEN 'is not a number'
            WHEN value::numeric NOT BETWEEN lowest AND highest
                 THEN format('is not from %s to %s', lowest, highest)
            WHEN is_whole AND value::numeric % 1 <> 0 THEN 'is not a whole number' END;

CREATE FUNCTION duly.text_reason(value jsonb, characters_max integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NULL THEN NULL
            WHEN jsonb_typeof(value) <> 'string' THEN 'is not text'
            WHEN char_length(value #>> '{}') NOT BETWEEN 1 AND characters_max
                 THEN format('is not from 1 to %s characters', characters_max)
            WHEN value #>> '{}' ~ '[\x01-\x1f\x7f]' THEN 'contains a control character' END;

-- Of tags and headers: names by a pattern or as plain text, values as plain text or empty.
CREATE FUNCTION duly.entries_reason(entries jsonb, entries_max integer, name_pattern text,
                                    name_max integer, value_max integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN entries IS NULL THEN NULL
    WHEN jsonb_typeof(entries) <> 'object' THEN 'is not an object'
    ELSE (SELECT CASE
              WHEN count(*) > entries_max THEN format('has more than %s entries', entries_max)
              WHEN bool_or(key !~ name_pattern OR duly.text_reason(to_jsonb(key), name_max) IS NOT NULL)
                   THEN 'has a name that is empty, too long, or not plain text'
              WHEN bool_or(value <> '""' AND duly.text_reason(value, value_max) IS NOT NULL)
                   THEN 'has a value that is too long or not plain text' END
            FROM jsonb_each(entries)) END;

-- What two readers would read differently, or none could: members that occur twice, numbers no
-- double holds, lone surrogates, deep nesting. jsonb knows no \u0000, which JSON allows.
CREATE FUNCTION duly.payload_reason(payload json) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog
AS $$
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
$$;

-- Members that nobody would read, with a pointer to each.
CREATE FUNCTION duly.unknown_members(object jsonb, place text, known text[])
RETURNS TABLE (pointer text, reason text) LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT place || '/' || left(replace(replace(key, '~', '~0'), '/', '~1'), 64), 'is not a known field'
      FROM jsonb_object_keys(CASE jsonb_typeof(object) WHEN 'object' THEN object END) AS key
     WHERE key <> ALL (known);
END;

-- domain/limits.py retry_problems is the same.
CREATE FUNCTION duly.retry_problems(retry jsonb)
RETURNS TABLE (pointer text, reason text) LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT checks.pointer, checks.reason
      FROM (VALUES
        ('/retry', CASE WHEN jsonb_typeof(retry) <> 'object' THEN 'is not an object' END),
        ('/retry/max_attempts', duly.number_reason(retry -> 'max_attempts', 1, 100, true)),
        ('/retry/backoff', CASE WHEN retry -> 'backoff' NOT IN ('"fixed"', '"exponential"')
                                THEN 'is fixed or exponential' END),
        ('/retry/initial_s', duly.number_reason(retry -> 'initial_s', 0, 2592000, false)),
        ('/retry/factor', duly.number_reason(retry -> 'factor', 1, 100, false)),
        ('/retry/max_s', duly.number_reason(retry -> 'max_s', 0, 2592000, false)),
        ('/retry/jitter', CASE WHEN jsonb_typeof(retry -> 'jitter') <> 'boolean'
                               THEN 'is not true or false' END),
        ('/retry/retry_4xx', CASE WHEN jsonb_typeof(retry -> 'retry_4xx') <> 'boolean'
                                  THEN 'is not true or false' END),
        ('/retry/non_retryable', CASE
            WHEN jsonb_typeof(retry -> 'non_retryable') <> 'array' THEN 'is not a list'
            WHEN jsonb_array_length(retry -> 'non_retryable') > 32 THEN 'has more than 32 entries'
            WHEN EXISTS (SELECT FROM jsonb_array_elements(retry -> 'non_retryable') AS kind
                          WHERE jsonb_typeof(kind) <> 'string') THEN 'has an entry that is not text'
            WHEN EXISTS (SELECT FROM jsonb_array_elements_text(retry -> 'non_retryable') AS kind
                          WHERE length(kind) NOT BETWEEN 1 AND 128 OR kind ~ '[\x01-\x1f\x7f]')
                 THEN 'has an entry that is too long or not plain text' END)
        ) AS checks(pointer, reason)
     UNION ALL
    SELECT unknown.pointer, unknown.reason
      FROM duly.unknown_members(retry, '/retry', ARRAY['max_attempts', 'backoff', 'initial_s', 'factor',
                                                       'max_s', 'jitter', 'non_retryable', 'retry_4xx']) AS unknown;
END;

-- domain/webhook_headers.py reserved_reason is the same.
CREATE FUNCTION duly.reserved_reason(headers jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT CASE
            WHEN bool_or(lower(name) ~ '^(content-|duly-|proxy-|webhook-|x-forwarded-)'
                         OR lower(name) IN ('accept-encoding', 'connection', 'date', 'expect', 'forwarded',
                                            'host', 'http2-settings', 'idempotency-key', 'keep-alive', 'te',
                                            'trailer', 'transfer-encoding', 'upgrade', 'user-agent', 'via',
                                            'traceparent', 'tracestate', 'x-real-ip'))
                 THEN 'may not set a header that is duly''s own or frames the request'
            WHEN bool_or(value !~ '^([!-~]([ -~]*[!-~])?)?$') THEN 'has a value that is not printable ASCII'
            WHEN count(*) <> count(DISTINCT lower(name)) THEN 'has a name twice' END
          FROM jsonb_each_text(CASE jsonb_typeof(headers) WHEN 'object' THEN headers END) AS header(name, value));

CREATE FUNCTION duly.target_problems(target jsonb)
RETURNS TABLE (pointer text, reason text) LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT checks.pointer, checks.reason
      FROM (VALUES
        ('/target', CASE WHEN jsonb_typeof(target) <> 'object' THEN 'is not an object'
                         WHEN target ->> 'url' IS NOT NULL AND target ->> 'pool' IS NOT NULL
                         THEN 'is a url or a pool, not both' END),
        ('/target/url', duly.text_reason(nullif(target -> 'url', 'null'), 2048)),
        ('/target/pool', CASE WHEN target -> 'pool' <> 'null'
                               AND (jsonb_typeof(target -> 'pool') <> 'string'
                                    OR target ->> 'pool' !~ '^[a-z0-9][a-z0-9._-]{0,63}$')
                              THEN 'does not match [a-z0-9][a-z0-9._-]{0,63}' END),
        ('/target/headers', CASE WHEN target ->> 'url' IS NULL
                                  AND target -> 'headers' <> '{}' THEN 'belong to a url' END),
        ('/target/headers', coalesce(
            duly.entries_reason(target -> 'headers', 32, '^[A-Za-z0-9][A-Za-z0-9-]{0,63}$', 64, 1024),
            duly.reserved_reason(target -> 'headers')))) AS checks(pointer, reason)
     UNION ALL
    SELECT unknown.pointer, unknown.reason
      FROM duly.unknown_members(target, '/target', ARRAY['url', 'pool', 'headers']) AS unknown;
END;

-- domain/limits.py submission_problems is the same: everything that is wrong, with a pointer to each.
CREATE FUNCTION duly.submission_problems(type text, payload json, run_at timestamptz,
    delay_s double precision, start_by timestamptz, options jsonb, now_at timestamptz) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog
AS $$
BEGIN
    RETURN (
        SELECT jsonb_agg(jsonb_build_object('pointer', found.pointer, 'detail', found.reason))
          FROM (
            SELECT checks.pointer, checks.reason
              FROM (VALUES
                ('/type', CASE WHEN type IS NULL OR type !~ '^[a-z0-9][a-z0-9._-]{0,127}$'
                               THEN 'does not match [a-z0-9][a-z0-9._-]{0,127}' END),
                ('/payload', duly.payload_reason(payload)),
                ('/run_at', CASE WHEN run_at < now_at - interval '7 days' THEN 'is more than 7 days ago'
                                 WHEN run_at > now_at + interval '3660 days' THEN 'is more than 3660 days ahead'
                            END),
                ('/delay_s', CASE WHEN delay_s NOT BETWEEN 0 AND 3660 * 86400
                                  THEN 'is not from 0 to 316224000'
                                  WHEN delay_s > 0 AND run_at IS NOT NULL
                                  THEN 'give run_at or delay_s, not both' END),
                ('/start_by', CASE WHEN start_by <= now_at THEN 'has passed already'
                                   WHEN start_by >= '9999-12-31 00:00Z' THEN 'is after the year 9999' END),
                ('/priority', duly.number_reason(options -> 'priority', 0, 9, true)),
                ('/timeout_s', duly.number_reason(options -> 'timeout_s', 0.1, 86400, false)),
                ('/jitter_s', duly.number_reason(options -> 'jitter_s', 0, 86400, false)),
                ('/idempotency_key', duly.text_reason(options -> 'idempotency_key', 255)),
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
$$;

-- A number as store/policies.py writes it: never without a point or an exponent.
CREATE FUNCTION duly.seconds_text(value jsonb, usual text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(CASE WHEN value::double precision::text ~ '[.e]' THEN value::double precision::text
                     ELSE value::double precision::text || '.0' END, usual);

CREATE FUNCTION duly.instant_text(instant timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN replace(to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '.000000Z', 'Z');

-- Only what departs from the defaults of domain/task.py, or null: the format of store/policies.py.
CREATE FUNCTION duly.policy_text(options jsonb, start_by timestamptz) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog
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

-- name: reverse
-- Everything of this migration.
DROP FUNCTION duly.policy_text;
DROP FUNCTION duly.instant_text;
DROP FUNCTION duly.seconds_text;
DROP FUNCTION duly.submission_problems;
DROP FUNCTION duly.target_problems;
DROP FUNCTION duly.reserved_reason;
DROP FUNCTION duly.retry_problems;
DROP FUNCTION duly.unknown_members;
DROP FUNCTION duly.payload_reason;
DROP FUNCTION duly.entries_reason;
DROP FUNCTION duly.text_reason;
DROP FUNCTION duly.number_reason;
DROP FUNCTION duly.members_given;
DROP FUNCTION duly.make_task_id;
DROP FUNCTION duly.key_shard;
DROP FUNCTION duly.tenant_shard;
