-- name: forward
-- Where a webhook goes, for breakers, without a regular expression: PostgreSQL spends more on one
-- than on everything else that is reckoned for a timer. domain/task.py says the same.
CREATE OR REPLACE FUNCTION duly.host_of(url text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN strpos(url, '://') > 0 THEN
    nullif(lower(split_part(split_part(split_part(
        substr(url, strpos(url, '://') + 3), '/', 1), '?', 1), '#', 1)), '') END;

-- name: reverse
CREATE OR REPLACE FUNCTION duly.host_of(url text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lower(substring(url FROM '^[A-Za-z]+://([^/?#]+)'));
