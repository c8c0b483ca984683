-- name: take_starts
-- So many starts of each throttle, one after the other at its distance; no row for a throttle whose
-- starts would lie too far ahead. Taken before the tasks are stored: a start that is lost with its
-- submit costs a gap, never the limit.
INSERT INTO duly.submit_throttles AS held (shard, tenant, key, next_at)
SELECT shard, tenant, key, duly.now() + make_interval(secs => step_s * count)
  FROM unnest($1::smallint[], $2::integer[], $3::text[], $4::double precision[], $5::integer[])
       AS asked(shard, tenant, key, step_s, count)
    ON CONFLICT (shard, tenant, key) DO UPDATE
   SET next_at = greatest(held.next_at, duly.now()) + (excluded.next_at - duly.now())
 WHERE held.next_at <= duly.now() + make_interval(secs => $6)
RETURNING key, next_at, duly.now() AS now

-- name: delete_passed_throttles
-- A bounded batch of throttles whose next task may start at once, as if they were not there.
DELETE FROM duly.submit_throttles
 WHERE (shard, tenant, key) IN (
       SELECT shard, tenant, key FROM duly.submit_throttles
        WHERE next_at <= duly.now()
        ORDER BY next_at LIMIT $1)
   AND next_at <= duly.now()
RETURNING key
