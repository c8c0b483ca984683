-- name: find_pools
-- Names become numbers once per process and pool; the answer never changes.
SELECT pools.tenant, pools.name, pools.number
  FROM unnest($1::integer[], $2::text[]) AS asked(tenant, name)
  JOIN duly.pools ON pools.tenant = asked.tenant AND pools.name = asked.name

-- name: create_pool
-- The next free number of the tenant. Two processes may race for it: the loser changes nothing and
-- asks again. More pools than the bound violate the check, which is an answer too.
INSERT INTO duly.pools (tenant, number, name)
SELECT $1, (SELECT coalesce(max(number), 0) + 1 FROM duly.pools WHERE tenant = $1), $2
    ON CONFLICT DO NOTHING

-- name: may_have_pool
-- Whether a task of the tenant would find its pool, or a number for a new one.
SELECT EXISTS (SELECT FROM duly.pools WHERE pools.tenant = $1 AND pools.name = $2)
       OR coalesce((SELECT max(pools.number) FROM duly.pools WHERE pools.tenant = $1), 0) < $3
       AS may_have

-- name: name_pools
-- The way back, for people.
SELECT pools.tenant, pools.number, pools.name
  FROM unnest($1::integer[], $2::smallint[]) AS asked(tenant, number)
  JOIN duly.pools ON pools.tenant = asked.tenant AND pools.number = asked.number
