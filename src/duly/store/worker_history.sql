-- name: see_workers
-- Workers that asked, or held leases, since the last flush of a process: first seen once, last seen by
-- the newest of all processes. A heartbeat says less than a lease request: what it leaves out stays.
INSERT INTO duly.worker_history AS kept (tenant, holder, id, sdk, version, pools, slots,
                                         first_seen_at, last_seen_at)
SELECT tenant, holder, id, sdk, version, string_to_array(pools, ' '), slots,
       duly.now() - make_interval(secs => first_ago_s), duly.now() - make_interval(secs => last_ago_s)
  FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[],
              $8::double precision[], $9::double precision[])
       AS seen(tenant, holder, id, sdk, version, pools, slots, first_ago_s, last_ago_s)
 ORDER BY tenant, holder
    ON CONFLICT (tenant, holder) DO UPDATE
   SET sdk = CASE WHEN excluded.sdk = '' THEN kept.sdk ELSE excluded.sdk END,
       version = CASE WHEN excluded.version = '' THEN kept.version ELSE excluded.version END,
       pools = CASE WHEN excluded.pools = '{}' THEN kept.pools ELSE excluded.pools END,
       slots = CASE WHEN excluded.slots = 0 THEN kept.slots ELSE excluded.slots END,
       first_seen_at = least(kept.first_seen_at, excluded.first_seen_at),
       last_seen_at = greatest(kept.last_seen_at, excluded.last_seen_at)

-- name: add_worker_counts
-- Adds, never sets: each process adds its own part. Holders that are not workers have no row here.
WITH given AS (
    SELECT counts.tenant, counts.holder, counts.completed, counts.failed, counts.lost, counts.other,
           counts.busy_s
      FROM unnest($1::integer[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                  $7::double precision[])
           AS counts(tenant, holder, completed, failed, lost, other, busy_s)
), locked AS MATERIALIZED (
    SELECT kept.tenant, kept.holder
      FROM duly.worker_history AS kept
      JOIN given ON given.tenant = kept.tenant AND given.holder = kept.holder
     ORDER BY kept.tenant, kept.holder
       FOR UPDATE OF kept
)
UPDATE duly.worker_history AS kept
   SET completed = kept.completed + given.completed, failed = kept.failed + given.failed,
       lost = kept.lost + given.lost, other = kept.other + given.other,
       busy_s = kept.busy_s + given.busy_s
  FROM given, locked
 WHERE locked.tenant = given.tenant AND locked.holder = given.holder
   AND kept.tenant = given.tenant AND kept.holder = given.holder
RETURNING kept.holder

-- name: list_worker_history
-- One page of a tenant's workers, also of those that are gone: last seen first.
SELECT history.id, history.holder, history.sdk, history.version, history.pools, history.slots,
       history.first_seen_at, history.last_seen_at,
       EXISTS (SELECT FROM duly.workers
                WHERE workers.tenant = history.tenant AND workers.id = history.id
                  AND workers.expires_at > duly.now()) AS is_live,
       history.completed, history.failed, history.lost, history.other, history.busy_s
  FROM duly.worker_history AS history
 WHERE history.tenant = $1
   AND ($2::timestamptz IS NULL OR (history.last_seen_at, history.holder) < ($2, $3::uuid))
 ORDER BY history.last_seen_at DESC, history.holder DESC
 LIMIT $4

-- name: delete_old_worker_history
-- A bounded batch: workers that were last seen before retention, and those of a tenant beyond the
-- newest so many, because a worker chooses its own id.
DELETE FROM duly.worker_history
 WHERE (tenant, holder) IN (
       SELECT old.tenant, old.holder
         FROM duly.tenants
        CROSS JOIN LATERAL (
              (SELECT history.tenant, history.holder
                 FROM duly.worker_history AS history
                WHERE history.tenant = tenants.id
                  AND history.last_seen_at < duly.now() - make_interval(secs => $1)
                LIMIT $3)
              UNION
              (SELECT history.tenant, history.holder
                 FROM duly.worker_history AS history
                WHERE history.tenant = tenants.id
                ORDER BY history.last_seen_at DESC, history.holder DESC
               OFFSET $2
                LIMIT $3)) AS old
        LIMIT $3)
RETURNING holder
