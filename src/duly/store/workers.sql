-- name: see_worker
-- A worker came for work: here since its first time, alive for a while longer.
INSERT INTO duly.workers AS known (tenant, id, holder, pools, started_at, seen_at, expires_at)
VALUES ($1, $2, $3, $4, duly.now(), duly.now(), duly.now() + make_interval(secs => $5))
    ON CONFLICT (tenant, id) DO UPDATE
   SET pools = excluded.pools, seen_at = excluded.seen_at, expires_at = excluded.expires_at
