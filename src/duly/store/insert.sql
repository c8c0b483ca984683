-- fragment: sent_tasks
-- The rows of the arrays $1 to $15 and of their trace contexts. A column without NULL that is the same for all of them has one
-- element; a target that all of them share is not in its column but apart, with its host. Fire times
-- are reckoned by the database's clock.
    SELECT id, coalesce(shard, ($1)[1]) AS shard, coalesce(tenant, ($3)[1]) AS tenant,
           coalesce(pool, ($4)[1]) AS pool, coalesce(priority, ($5)[1]) AS priority,
           coalesce(timeout_ms, ($6)[1]) AS timeout_ms,
           coalesce(run_at, duly.now() + make_interval(secs => coalesce(delay_s, ($8)[1])))
               AS run_at,
           start_by, coalesce(type, ($10)[1]) AS type, payload, policy,
           coalesce(url, $16::text) AS url, execution_key, tags::jsonb AS tags,
           NULL::uuid AS replay_of, traceparent
      FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::smallint[], $5::smallint[],
                  $6::integer[], $7::timestamptz[], $8::double precision[], $9::timestamptz[],
                  $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
                  $23::text[])
           AS sent(shard, id, tenant, pool, priority, timeout_ms, run_at, delay_s, start_by, type,
                   payload, policy, url, execution_key, tags, traceparent)

-- fragment: new_queues
-- Timer queues that this process has not seen in use: loaders and reapers look where one is listed.
placed AS (
    INSERT INTO duly.placements (tenant, shard, queue)
    SELECT * FROM unnest($18::integer[], $19::smallint[], $20::smallint[])
        ON CONFLICT DO NOTHING
)

-- fragment: task_and_timer
-- The insert move: a task and its timer for each row of `arriving`. The timer comes only from the
-- RETURNING of the task that won its id: the same ids again are refused as a whole, so that nothing is
-- stored twice and nothing that has ended is revived. With a holder, what is due is stored as its lease.
-- A node that waits for its parents (`pending`), or for a step of its own, is due at no instant.
stored AS (
    INSERT INTO duly.tasks (shard, id, tenant, pool, priority, timeout_ms, created_at, run_at,
                            start_by, type, payload, policy, url, execution_key, tags, replay_of,
                            traceparent)
    SELECT shard, id, tenant, pool, priority, timeout_ms, duly.now(), run_at, start_by, type,
           payload, policy, url, execution_key, tags, replay_of, traceparent
      FROM arriving
    RETURNING shard, id, tenant, pool, priority, timeout_ms, created_at, run_at, start_by, type,
              policy, url, replay_of
), armed AS (
    INSERT INTO duly.timers (shard, id, tenant, queue, pool, priority, timeout_ms, due_at, start_by,
                             type, concurrency_key, concurrency_limit, host,
                             fence, holder, started_at, lease_until,
                             wait_rule, parents_pending, parents_completed, parents_failed,
                             parents_skipped)
    SELECT shard, id, tenant,
           CASE WHEN lease_until IS NULL THEN duly.timer_queue(pool, priority) ELSE 0 END,
           pool, priority, timeout_ms,
           CASE WHEN :pending IS NULL AND NOT :is_step THEN coalesce(lease_until, greatest(run_at, created_at)) END,
           start_by, type, duly.concurrency_key_of(policy), duly.concurrency_limit_of(policy),
           coalesce(:host, duly.host_of(url)), (lease_until IS NOT NULL)::integer,
           CASE WHEN lease_until IS NOT NULL THEN :holder END,
           CASE WHEN lease_until IS NOT NULL THEN created_at END, lease_until,
           :rule, :pending, :pending * 0, :pending * 0, :pending * 0
      FROM (SELECT *, CASE WHEN :holder IS NOT NULL AND :pending IS NULL AND run_at <= created_at
                           THEN created_at + least(make_interval(secs => :lease_s),
                                                   timeout_ms * interval '1 millisecond')
                      END AS lease_until
              FROM :rows) AS due
)

-- fragment: callbacks
-- The timer that tells of a task's end. It is due when the task has ended, and never before.
told AS (
    INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
    SELECT shard, tenant, id, 'callback', 'infinity'
      FROM stored
     WHERE duly.has_callback(id) AND policy::jsonb ? 'callback'
)

-- fragment: claimed_keys
-- The ids that won the idempotency key they claim. Needs `bounded`, which bounds the wait for a key.
claimed AS (
    INSERT INTO duly.idempotency_keys AS held (shard, tenant, key, request_hash, task_id, expires_at)
    SELECT asked.shard, asked.tenant, asked.key, asked.request_hash, asked.task_id,
           duly.now() + make_interval(secs => asked.ttl_s)
      FROM bounded,
           unnest(:shards::smallint[], :tenants::integer[], :keys::text[], :hashes::bytea[], :ids::uuid[],
                  :ttls::double precision[])
           AS asked(shard, tenant, key, request_hash, task_id, ttl_s)
        ON CONFLICT (shard, tenant, key) DO UPDATE
       SET request_hash = excluded.request_hash,
           task_id = excluded.task_id,
           expires_at = excluded.expires_at
     WHERE held.expires_at <= duly.now()
    RETURNING task_id
)

-- name: insert_tasks
-- Many callers' tasks in one commit. Where a consumer waits for all of them, those that are due are
-- stored as its leases.
WITH
-- include: insert.new_queues
, arriving AS (
-- include: insert.sent_tasks
),
-- include: insert.task_and_timer holder=$21::uuid lease_s=$22 host=$17::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
SELECT duly.now() AS now

-- name: insert_tasks_with_callbacks
-- The same where the ends of some are to be told. Apart, so that no other batch pays for it.
WITH
-- include: insert.new_queues
, arriving AS (
-- include: insert.sent_tasks
),
-- include: insert.task_and_timer holder=$21::uuid lease_s=$22 host=$17::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
,
-- include: insert.callbacks
SELECT duly.now() AS now

-- name: insert_nodes
-- The nodes of workflows whose graphs were stored a moment ago in this transaction: these say who waits
-- for how many parents.
WITH
-- include: insert.new_queues
, arriving AS (
-- include: insert.sent_tasks
),
-- include: insert.task_and_timer holder=$21::uuid lease_s=$22 host=$17::text rows="stored JOIN duly.workflow_nodes USING (shard, id, tenant)" rule="CASE WHEN cardinality(parents) > 0 THEN wait_rule END" pending="nullif(cardinality(parents), 0)" is_step=is_step
SELECT duly.now() AS now

-- name: insert_keyed
-- The same as the first for tasks of which some have an idempotency key, in the same round trip: the
-- row that wins a key decides which request becomes the task, and a loser is not stored. A key past its
-- time to live counts as free; one that an open transaction holds is waited for, but not for long, and
-- hardly at all while a consumer waits: its lease would be as old. Apart from the first, because most
-- tasks have no key, and a tenant's own session may not claim one.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', CASE WHEN $21::uuid IS NULL THEN '1s' ELSE '50ms' END, true)
),
-- include: insert.claimed_keys shards=$24 tenants=$25 keys=$26 hashes=$27 ids=$28 ttls=$29
, lost AS (
    SELECT unnest($28::uuid[]) AS id EXCEPT SELECT task_id FROM claimed
),
-- include: insert.new_queues
, arriving AS (
-- include: insert.sent_tasks
     WHERE sent.id NOT IN (SELECT lost.id FROM lost)
),
-- include: insert.task_and_timer holder=$21::uuid lease_s=$22 host=$17::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
SELECT duly.now() AS now, ARRAY(SELECT lost.id FROM lost) AS lost

-- name: insert_keyed_with_callbacks
-- The same where the ends of some are to be told.
WITH bounded AS MATERIALIZED (
    SELECT set_config('lock_timeout', CASE WHEN $21::uuid IS NULL THEN '1s' ELSE '50ms' END, true)
),
-- include: insert.claimed_keys shards=$24 tenants=$25 keys=$26 hashes=$27 ids=$28 ttls=$29
, lost AS (
    SELECT unnest($28::uuid[]) AS id EXCEPT SELECT task_id FROM claimed
),
-- include: insert.new_queues
, arriving AS (
-- include: insert.sent_tasks
     WHERE sent.id NOT IN (SELECT lost.id FROM lost)
),
-- include: insert.task_and_timer holder=$21::uuid lease_s=$22 host=$17::text rows=stored rule=NULL::smallint pending=NULL::integer is_step=false
,
-- include: insert.callbacks
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
