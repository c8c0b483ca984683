-- name: forward
-- Text as domain/limits.py takes it: nothing that cannot be seen in names, tags and keys; idempotency
-- keys of visible ASCII, which a header and a body carry alike; no U+0000 anywhere; one time, not two.
CREATE FUNCTION duly.invisible_characters() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]';

CREATE FUNCTION duly.character_name(value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 'U+' || lpad(upper(to_hex(ascii(value))), greatest(4, length(to_hex(ascii(value)))), '0');

CREATE FUNCTION duly.idempotency_key_reason(value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NULL THEN NULL
            WHEN jsonb_typeof(value) <> 'string' THEN 'is not text'
            WHEN char_length(value #>> '{}') NOT BETWEEN 1 AND 255 THEN 'is not from 1 to 255 characters'
            WHEN value #>> '{}' ~ '[^!-~]'
                 THEN 'contains ' || duly.character_name(substring(value #>> '{}' from '[^!-~]'))
                      || '; a key is visible ASCII without spaces' END;

CREATE OR REPLACE FUNCTION duly.text_reason(value jsonb, characters_max integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NULL THEN NULL
            WHEN jsonb_typeof(value) <> 'string' THEN 'is not text'
            WHEN char_length(value #>> '{}') NOT BETWEEN 1 AND characters_max
                 THEN format('is not from 1 to %s characters', characters_max)
            WHEN value #>> '{}' ~ duly.invisible_characters()
                 THEN 'contains ' || duly.character_name(substring(value #>> '{}' from duly.invisible_characters())) END;

CREATE OR REPLACE FUNCTION duly.entries_reason(entries jsonb, entries_max integer, name_pattern text,
                                    name_max integer, value_max integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN entries IS NULL THEN NULL
    WHEN jsonb_typeof(entries) <> 'object' THEN 'is not an object'
    ELSE (SELECT CASE
              WHEN count(*) > entries_max THEN format('has more than %s entries', entries_max)
              WHEN bool_or(duly.text_reason(to_jsonb(key), name_max) IS NOT NULL)
                   THEN 'has a name that ' || min(duly.text_reason(to_jsonb(key), name_max))
              WHEN bool_or(key !~ name_pattern) THEN 'has a name that does not match ' || name_pattern
              WHEN bool_or(value <> '""' AND duly.text_reason(value, value_max) IS NOT NULL)
                   THEN 'has a value that '
                        || min(duly.text_reason(value, value_max)) FILTER (WHERE value <> '""') END
            FROM jsonb_each(entries)) END;

-- domain/limits.py retry_problems is the same.
CREATE OR REPLACE FUNCTION duly.retry_problems(retry jsonb)
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
                          WHERE length(kind) NOT BETWEEN 1 AND 128 OR kind ~ duly.invisible_characters())
                 THEN 'has an entry that is too long or not plain text' END)
        ) AS checks(pointer, reason)
     UNION ALL
    SELECT unknown.pointer, unknown.reason
      FROM duly.unknown_members(retry, '/retry', ARRAY['max_attempts', 'backoff', 'initial_s', 'factor',
                                                       'max_s', 'jitter', 'non_retryable', 'retry_4xx']) AS unknown;
END;

CREATE OR REPLACE FUNCTION duly.submission_problems(type text, payload json, run_at timestamptz,
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
$$;

-- Whether a delay was given, not how long it is, tells that there are two times.
DO $$
BEGIN
    EXECUTE replace(pg_get_functiondef('duly.submit_task'::regproc),
                    'submit_task.run_at, wait_s,', 'submit_task.run_at, submit_task.delay_s,');
END
$$;

-- name: reverse
-- The functions as they were before; then what they no longer need.
DO $$
BEGIN
    EXECUTE replace(pg_get_functiondef('duly.submit_task'::regproc),
                    'submit_task.run_at, submit_task.delay_s,', 'submit_task.run_at, wait_s,');
END
$$;

CREATE OR REPLACE FUNCTION duly.text_reason(value jsonb, characters_max integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN value IS NULL THEN NULL
            WHEN jsonb_typeof(value) <> 'string' THEN 'is not text'
            WHEN char_length(value #>> '{}') NOT BETWEEN 1 AND characters_max
                 THEN format('is not from 1 to %s characters', characters_max)
            WHEN value #>> '{}' ~ '[\x01-\x1f\x7f]' THEN 'contains a control character' END;

CREATE OR REPLACE FUNCTION duly.entries_reason(entries jsonb, entries_max integer, name_pattern text,
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

CREATE OR REPLACE FUNCTION duly.retry_problems(retry jsonb)
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

CREATE OR REPLACE FUNCTION duly.submission_problems(type text, payload json, run_at timestamptz,
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

DROP FUNCTION duly.idempotency_key_reason;
DROP FUNCTION duly.character_name;
DROP FUNCTION duly.invisible_characters;
