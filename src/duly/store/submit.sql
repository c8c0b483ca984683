-- name: submit_tasks
-- Many callers' tasks in one commit. The timer comes only from the RETURNING of the task that won
-- its id: the same ids again are refused as a whole, so that nothing is stored twice and nothing
-- that has ended is revived. Fire times are reckoned by the database's clock. A column without NULL
-- that is the same for all of them has one element; a target that all of them share is not in its
-- column but apart, with its host. Where a consumer waits for all of them, those that are due are
-- stored as its leases.
WITH placed AS (
    INSERT INTO duly.placements (tenant, shard, lane)
    SELECT * FROM unnest($18::integer[], $19::smallint[], $20::smallint[])
        ON CONFLICT DO NOTHING
), stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at,
                            start_by, type, payload, policy, url, execution_key, tags)
    SELECT shard, id, tenant, pool, priority, timeout_ms, duly.now(),
           coalesce(run_at, duly.now() + make_interval(secs => delay_s)),
           start_by, type, payload, policy, url, execution_key, tags::jsonb
      FROM (SELECT id, coalesce(shard, ($1)[1]) AS shard, coalesce(tenant, ($3)[1]) AS tenant,
                   coalesce(pool, ($4)[1]) AS pool, coalesce(priority, ($5)[1]) AS priority,
                   coalesce(timeout_ms, ($6)[1]) AS timeout_ms, run_at,
                   coalesce(delay_s, ($8)[1]) AS delay_s, start_by,
                   coalesce(type, ($10)[1]) AS type, payload, policy,
                   coalesce(url, $16::text) AS url, execution_key, tags
              FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::smallint[], $5::smallint[],
                          $6::integer[], $7::timestamptz[], $8::double precision[],
                          $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[],
                          $14::text[], $15::text[])
                   AS sent(shard, id, tenant, pool, priority, timeout_ms, run_at, delay_s, start_by,
                           type, payload, policy, url, execution_key, tags)) AS asked
    RETURNING shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, start_by, type,
              policy, url
), armed AS (
    INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms, due_at, start_by,
                             type, concurrency_key, concurrency_limit, host,
                             fence, holder, started_at, lease_until)
    SELECT shard, id, tenant,
           CASE WHEN lease_until IS NULL THEN duly.lane_of(pool, priority) ELSE 0 END,
           pool, priority, timeout_ms, coalesce(lease_until, greatest(run_at, created_at)),
           start_by, type, duly.concurrency_key_of(policy), duly.concurrency_limit_of(policy),
           coalesce($17::text, duly.host_of(url)), (lease_until IS NOT NULL)::integer,
           CASE WHEN lease_until IS NOT NULL THEN $21 END,
           CASE WHEN lease_until IS NOT NULL THEN created_at END, lease_until
      FROM (SELECT *, CASE WHEN $21::uuid IS NOT NULL AND run_at <= created_at
                           THEN created_at + least(make_interval(secs => $22),
                                                   timeout_ms * interval '1 millisecond')
                      END AS lease_until
              FROM stored) AS due
)
SELECT duly.now() AS now

-- name: submit_lone
-- One task that is due at once and that a consumer waits for: the row of the statement above, and its
-- lease. Most tasks of a resting system come alone, and there the arrays above are half of the work,
-- here and in the driver. No key, no place that is new, and nothing that a gate asks about.
WITH stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at,
                            type, payload, policy, url, execution_key, tags)
    VALUES ($1, $2, $3, $4, $5, $6, duly.now(), duly.now(), $7, $8, $9, $10, $11, $12::text::jsonb)
    RETURNING shard, id, tenant, pool, priority, timeout_ms, created_at, type,
              created_at + least(make_interval(secs => $15),
                                 timeout_ms * interval '1 millisecond') AS lease_until
)
INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms, due_at, type, host,
                         fence, holder, started_at, lease_until)
SELECT shard, id, tenant, 0, pool, priority, timeout_ms, lease_until, type, $13, 1, $14, created_at,
       lease_until
  FROM stored
RETURNING started_at AS now

-- name: submit_keyed
-- The same as the first for tasks of which some have a key, in the same round trip: the row that wins a key decides
-- which request becomes the task, and who loses is not stored. A key past its time to live counts as
-- free; one that somebody's open transaction holds is waited for, but not for long, and hardly at all
-- while a consumer waits: its lease would be as old. Apart from the statement above, because most
-- tasks have no key, and a tenant's own session may not claim one.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', CASE WHEN $21::uuid IS NULL THEN '1s' ELSE '50ms' END, true)
), claimed AS (
    INSERT INTO duly.idempotency_keys AS held (shard, tenant, key, request_hash, task_id, expires_at)
    SELECT asked.shard, asked.tenant, asked.key, asked.request_hash, asked.task_id,
           duly.now() + make_interval(secs => $28)
      FROM bounded,
           unnest($23::smallint[], $24::integer[], $25::text[], $26::bytea[], $27::uuid[])
           AS asked(shard, tenant, key, request_hash, task_id)
        ON CONFLICT (shard, tenant, key) DO UPDATE
       SET request_hash = excluded.request_hash,
           task_id = excluded.task_id,
           expires_at = excluded.expires_at
     WHERE held.expires_at <= duly.now()
    RETURNING task_id
), lost AS (
    SELECT unnest($27::uuid[]) AS id EXCEPT SELECT task_id FROM claimed
), placed AS (
    INSERT INTO duly.placements (tenant, shard, lane)
    SELECT * FROM unnest($18::integer[], $19::smallint[], $20::smallint[])
        ON CONFLICT DO NOTHING
), stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at,
                            start_by, type, payload, policy, url, execution_key, tags)
    SELECT shard, id, tenant, pool, priority, timeout_ms, duly.now(),
           coalesce(run_at, duly.now() + make_interval(secs => delay_s)),
           start_by, type, payload, policy, url, execution_key, tags::jsonb
      FROM (SELECT id, coalesce(shard, ($1)[1]) AS shard, coalesce(tenant, ($3)[1]) AS tenant,
                   coalesce(pool, ($4)[1]) AS pool, coalesce(priority, ($5)[1]) AS priority,
                   coalesce(timeout_ms, ($6)[1]) AS timeout_ms, run_at,
                   coalesce(delay_s, ($8)[1]) AS delay_s, start_by,
                   coalesce(type, ($10)[1]) AS type, payload, policy,
                   coalesce(url, $16::text) AS url, execution_key, tags
              FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::smallint[], $5::smallint[],
                          $6::integer[], $7::timestamptz[], $8::double precision[],
                          $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[],
                          $14::text[], $15::text[])
                   AS sent(shard, id, tenant, pool, priority, timeout_ms, run_at, delay_s, start_by,
                           type, payload, policy, url, execution_key, tags)) AS asked
     WHERE asked.id NOT IN (SELECT lost.id FROM lost)
    RETURNING shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, start_by, type,
              policy, url
), armed AS (
    INSERT INTO duly.timers (shard, id, tenant, lane, pool, priority, timeout_ms, due_at, start_by,
                             type, concurrency_key, concurrency_limit, host,
                             fence, holder, started_at, lease_until)
    SELECT shard, id, tenant,
           CASE WHEN lease_until IS NULL THEN duly.lane_of(pool, priority) ELSE 0 END,
           pool, priority, timeout_ms, coalesce(lease_until, greatest(run_at, created_at)),
           start_by, type, duly.concurrency_key_of(policy), duly.concurrency_limit_of(policy),
           coalesce($17::text, duly.host_of(url)), (lease_until IS NOT NULL)::integer,
           CASE WHEN lease_until IS NOT NULL THEN $21 END,
           CASE WHEN lease_until IS NOT NULL THEN created_at END, lease_until
      FROM (SELECT *, CASE WHEN $21::uuid IS NOT NULL AND run_at <= created_at
                           THEN created_at + least(make_interval(secs => $22),
                                                   timeout_ms * interval '1 millisecond')
                      END AS lease_until
              FROM stored) AS due
)
SELECT duly.now() AS now, ARRAY(SELECT lost.id FROM lost) AS lost

-- name: read_stored
-- Which of these tasks exist.
SELECT tasks.id
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  JOIN duly.tasks ON tasks.shard = asked.shard AND tasks.id = asked.id

-- name: read_keys
-- What the keys that were not free stand for; a second statement, to see what the winner committed.
SELECT held.key, held.request_hash, held.task_id
  FROM unnest($1::smallint[], $2::integer[], $3::text[]) AS asked(shard, tenant, key)
  JOIN duly.idempotency_keys held
    ON held.shard = asked.shard AND held.tenant = asked.tenant AND held.key = asked.key
