-- name: forward
-- What shares a concurrency key shares a shard, whether or not its tenant has a cap: one node dispatches
-- all of a capped tenant, wherever its tasks lie, and a cap that is set or removed while tasks of a key
-- wait must not part them.
CREATE OR REPLACE FUNCTION duly.choose_shard(tenant integer, spread integer, is_capped boolean, key text)
RETURNS smallint LANGUAGE sql VOLATILE
RETURN CASE WHEN key IS NOT NULL THEN duly.key_shard(tenant, key)
            WHEN is_capped THEN duly.tenant_shard(tenant, 1, 0)
            ELSE duly.tenant_shard(tenant, spread, floor(random() * 1024)::integer) END;

-- name: reverse
-- Of a capped tenant, everything at home.
CREATE OR REPLACE FUNCTION duly.choose_shard(tenant integer, spread integer, is_capped boolean, key text)
RETURNS smallint LANGUAGE sql VOLATILE
RETURN CASE WHEN is_capped THEN duly.tenant_shard(tenant, 1, 0)
            WHEN key IS NOT NULL THEN duly.key_shard(tenant, key)
            ELSE duly.tenant_shard(tenant, spread, floor(random() * 1024)::integer) END;
