-- name: put_task_type
-- The whole of it, so that no two writers can mix theirs; past the bound only known ones change.
INSERT INTO duly.task_types AS kept (tenant, name, schema, defaults, keys, created_at, updated_at)
SELECT $1, $2, $3, $4, $5, duly.now(), duly.now()
 WHERE (SELECT count(*) FROM duly.task_types WHERE tenant = $1 AND name <> $2) < $6
    ON CONFLICT (tenant, name) DO UPDATE
   SET schema = excluded.schema, defaults = excluded.defaults, keys = excluded.keys,
       updated_at = excluded.updated_at
RETURNING name, schema, defaults, keys, created_at, updated_at

-- name: find_task_type
-- One kind of task of one tenant.
SELECT name, schema, defaults, keys, created_at, updated_at
  FROM duly.task_types
 WHERE tenant = $1 AND name = $2

-- name: list_task_types
-- By name, a page at a time.
SELECT name, schema, defaults, keys, created_at, updated_at
  FROM duly.task_types
 WHERE tenant = $1 AND name > $2
 ORDER BY name
 LIMIT $3

-- name: pass_on_types
-- A rotated key keeps what it may submit; keys that ended make room, so that no list grows for ever.
UPDATE duly.task_types AS kept
   SET keys = ARRAY(SELECT live.id
                      FROM duly.api_keys live
                     WHERE live.tenant = $1
                       AND live.id = ANY (kept.keys)
                       AND live.revoked_at IS NULL
                       AND (live.expires_at IS NULL OR live.expires_at > duly.now())) || $3::text
 WHERE kept.tenant = $1 AND $2 = ANY (kept.keys)
RETURNING name

-- name: delete_task_type
-- Nothing deleted: it was not there. Tasks of that type are not touched.
DELETE FROM duly.task_types
 WHERE tenant = $1 AND name = $2
RETURNING name
